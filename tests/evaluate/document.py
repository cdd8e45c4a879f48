"""docs/evaluation.md is written by programs: each owns the text between its two markers."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"

PREAMBLE = """# Evaluation

What was measured, by which command, on which machine. Every section is written by the command it names; nothing here is
typed in by hand. Ratios compare things measured side by side in one run; absolute times describe that machine only.
"""


def machine_line() -> str:
    """The machine these figures belong to."""
    model = platform.processor() or "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    try:
        framework = f", torch {version('torch')}"
    except PackageNotFoundError:
        framework = ""
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, load {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}{framework}; {time.strftime('%Y-%m-%d')}"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def write_section(name: str, title: str, command: str, body: str, path: Path = DOCUMENT) -> None:
    """Replace the section called `name`, or append it where there is none yet."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    section = f"{begin}\n## {title}\n`{command}` on {machine_line()}.\n\n{body.strip()}\n{end}"
    text = path.read_text() if path.exists() else PREAMBLE
    if begin in text and end in text:
        head, _, rest = text.partition(begin)
        text = head + section + rest.partition(end)[2]
    else:
        text = text.rstrip("\n") + "\n\n" + section + "\n"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
