"""docs/compatibility.md's table, made from the rows that the tests run: `python -m tests.agent.compatibility_table`."""

from __future__ import annotations

from pathlib import Path

from tests.agent import (
    rows_backends,
    rows_compile,
    rows_control_flow,
    rows_life,
    rows_modules,
    rows_numbers,
    rows_training,
)
from tests.agent.rows import ROWS, Row

__all__ = ["ROWS"]
# Importing them fills ROWS; the page has them in this order.
_MODULES = (rows_compile, rows_backends, rows_control_flow, rows_modules, rows_training, rows_life, rows_numbers)
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- begin rows -->", "<!-- end rows -->"
_HEAD = "| {} | eager | compiled | |\n|---|---|---|---|"


def table(rows: list[Row]) -> str:
    """One Markdown table a section; a row's level in each form, a dash where the form does not exist."""
    sections: dict[str, list[str]] = {module.SECTION: [] for module in _MODULES}
    for one in rows:
        levels = [one.level(form) if form in one.forms else "–" for form in ("eager", "compiled")]
        blind = "BLIND_SPOT: " + ", ".join(f"`{site}`" for site in sorted(one.blind)) if one.blind else ""
        note = "; ".join(part for part in (blind, "" if one.exact else "execution order", one.note) if part)
        sections[one.section].append(f"| {one.title} | {' | '.join(levels)} | {note} |")
    return "\n\n".join("\n".join([_HEAD.format(section), *lines]) for section, lines in sections.items())


def document(text: str) -> str:
    """The document with the table as it should be."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{DOCUMENT} has lost its markers {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{table(ROWS)}\n{END}{tail}"


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
