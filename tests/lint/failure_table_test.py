"""docs/ring-format.md promises: every fault has a test that exists, and every atomic of shared/ is accounted for."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "ring-format.md"
CPP_TEST = re.compile(r"TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)")
ATOMIC = re.compile(r"std::atomic<[^<>]+>(?:, kMaxLanes>)?[&*]? (\w+)(?:;|\{|\()")


def rows_under(heading: str, columns: int) -> list[list[str]]:
    """Cells of the first table below a heading, without its head."""
    section = DOCUMENT.read_text(encoding="utf-8").split(heading, 1)[1]
    table: list[list[str]] = []
    for line in section.splitlines():
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split("|")])
        elif table:
            break
    assert all(len(row) == columns for row in table), table
    return table[2:]


def existing_tests() -> set[str]:
    """Suite.Name of every C++ test, file::name of every Python test."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.cc"):
        found.update(f"{suite}.{name}" for suite, name in CPP_TEST.findall(path.read_text(encoding="utf-8")))
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found.update(f"{path.name}::{name}" for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE))
    return found


def test_every_fault_names_a_test_that_exists() -> None:
    tests = existing_tests()
    rows = rows_under("## What happens when", 3)
    assert len(rows) >= 15
    for fault, promise, cell in rows:
        named = re.findall(r"`([^`]+)`", cell)
        assert promise, fault
        assert named, f"no test holds the promise for: {fault}"
        missing = [name for name in named if name not in tests]
        assert not missing, f"{fault}: {missing}"


def test_every_atomic_of_the_wire_names_its_partner() -> None:
    rows = rows_under("Every atomic and its partner", 4)
    documented = {name.split(".")[-1] for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    declared: dict[str, str] = {}
    for path in sorted(path for path in (ROOT / "shared").rglob("*") if path.is_file()):
        for name in ATOMIC.findall(path.read_text(encoding="utf-8")):
            declared[name] = path.name
    assert {"tail", "head", "lane_owner", "site_drops", "g_next_thread"} <= declared.keys(), "the search sees them"
    missing = {name: file for name, file in declared.items() if name not in documented}
    assert not missing, "an atomic without a row"
    gone = documented - declared.keys()
    assert not gone, "a row without an atomic"
