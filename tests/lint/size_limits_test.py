"""Files of at most 400 lines, functions of at most 60, and no file whose name says nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import lizard
import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
SOURCE_SUFFIXES = {".cc", ".h", ".inc", ".py", ".ts", ".js", ".svelte", ".sql", ".proto", ".cmake", ".sh"}
FUNCTION_SUFFIXES = {".cc", ".h", ".inc", ".py", ".ts", ".js"}
# Such a name collects whatever has no place yet, and then keeps it.
FORBIDDEN_NAMES = {"util", "utils", "common", "manager", "managers", "helper", "helpers", "misc"}


def tracked_files() -> list[Path]:
    """Everything that is or would be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    return sorted(ROOT / name for name in listed if name and (ROOT / name).is_file())


FILES = tracked_files()


def long_functions(path: Path) -> Iterator[str]:
    """Names and lengths of the functions in a file that are too long."""
    for function in lizard.analyze_file(str(path)).function_list:
        if function.length > MAX_FUNCTION_LINES:
            yield f"{path.name}:{function.start_line} {function.name} has {function.length} lines"


def test_no_file_is_too_long() -> None:
    counted = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in FILES
        if path.suffix in SOURCE_SUFFIXES or path.name in {"run", "CMakeLists.txt"}
    }
    assert {"shared/record.h", "tests/lint/size_limits_test.py"} <= counted.keys(), "the check sees the sources"
    assert not {name: lines for name, lines in counted.items() if lines > MAX_FILE_LINES}


def test_no_function_is_too_long() -> None:
    found = [line for path in FILES if path.suffix in FUNCTION_SUFFIXES for line in long_functions(path)]
    assert not found, "\n".join(found)


def test_no_name_says_nothing() -> None:
    assert not [str(path.relative_to(ROOT)) for path in FILES if path.stem.lower() in FORBIDDEN_NAMES]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("long.cc", "int Long() {\n" + "  Call();\n" * MAX_FUNCTION_LINES + "  return 0;\n}\n"),
        ("long.py", "def long() -> None:\n" + "    call()\n" * (MAX_FUNCTION_LINES + 1)),
    ],
)
def test_a_long_function_is_found(tmp_path: Path, name: str, source: str) -> None:
    path = tmp_path / name
    path.write_text(source, encoding="utf-8")
    assert len(list(long_functions(path))) == 1
