"""Writes the section of docs/evaluation.md about a fresh machine, from the log of `./run fresh`.

    python3 -m tests.evaluate.fresh_section LOG

Standard library only: it runs on the host, which need not have the project's virtual environment.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.evaluate.document import table, write_section

STAGE = re.compile(r"^fresh: (.+) took (\d+) s$", re.MULTILINE)
SUITE = re.compile(r"^== suite (\S+) (passed|FAILED.*?) in (\d+) s$", re.MULTILINE)
CLOSING = re.compile(r"^=+ (\d+ passed.*?) =+$|^(\d+ passed.*)$", re.MULTILINE)
VERDICT = re.compile(r"^(Verdict|Cause) +(.+)$", re.MULTILINE)


def body(log: str) -> str:
    """The section: stages, suites, the closing line of the tests and the two answers of the demo."""
    rows = [[name, seconds] for name, seconds in STAGE.findall(log)]
    rows += [[f"suite {name}: {state}", seconds] for name, state, seconds in SUITE.findall(log)]
    closing = [first or second for first, second in CLOSING.findall(log)]
    answers = [f"{label} {text}" for label, text in VERDICT.findall(log)[:3]]
    return "\n\n".join(
        [
            "A minimal Debian 12 root, made for the purpose; the project cloned into it; the two commands of its "
            "README run there, nothing else. Compilers, libraries and torch are installed by the commands themselves.",
            table(["stage", "seconds"], rows),
            f"Tests: {closing[-1] if closing else 'no closing line'}.",
            "The demo's answers:",
            "```\n" + "\n".join(answers) + "\n```",
        ]
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python3 -m tests.evaluate.fresh_section LOG", file=sys.stderr)
        sys.exit(2)
    write_section("fresh", "A fresh machine", "./run fresh", body(Path(sys.argv[1]).read_text()))
