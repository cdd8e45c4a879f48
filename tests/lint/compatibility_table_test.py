"""docs/compatibility.md's table is the one that the tests' rows make, and no row stands in it twice."""

from __future__ import annotations

from tests.agent.compatibility_table import DOCUMENT, ROWS, document


def test_the_table_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == document(text), "run: .venv/bin/python -m tests.agent.compatibility_table"


def test_no_two_rows_have_one_name() -> None:
    names = [one.name for one in ROWS]
    assert len(names) == len(set(names)) and names
