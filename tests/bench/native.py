"""Runs a native benchmark and writes its section. It prints one JSON object a line: name, value, unit, goal.

python -m tests.bench.native SECTION TITLE PROGRAM
"""

from __future__ import annotations

import json
import subprocess
import sys

from tests.evaluate.document import table, write_section


def figures(program: str) -> list[list[str]]:
    """Rows of one program."""
    done = subprocess.run([program], capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        raise SystemExit(f"{program} ended with {done.returncode}: {done.stderr}")
    entries = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [[entry["name"], f"{entry['value']:g}", entry["unit"], entry.get("goal", "")] for entry in entries]


def main(section: str, title: str, program: str) -> int:
    """Run and write."""
    text = table(["what", "measured", "unit", "goal"], figures(program))
    print(text)
    write_section(section, title, "./run bench", text)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
