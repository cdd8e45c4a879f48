"""./run compat: the agent's tests under other releases of torch, with the wheel that users get.

Goal: one binary, built against the stable ABI, serves the oldest release that the package asks for and the newest that
installs. Method: a virtual environment a release, the wheel of ./run release in it, tests/agent. Writes the table of
docs/compatibility.md; exit code 1 if a test failed. Gigabytes are fetched, so CI does not run it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- begin releases -->", "<!-- end releases -->"
_HEAD = "| torch | level in compiled graphs | passed | failed | skipped |\n|---|---|---|---|---|"
_TOOLS = ("numpy", "pytest", "hypothesis")  # what tests/agent imports, at the releases of .venv
_TEST_SECONDS = 3600  # ten times what the tests take


@dataclasses.dataclass(frozen=True)
class Result:
    """What one release did."""

    torch: str
    level: str
    passed: int
    failed: int
    skipped: int

    def row(self) -> str:
        """As in the table."""
        return f"| {self.torch} | `{self.level}` | {self.passed} | {self.failed} | {self.skipped} |"


def oldest() -> str:
    """The release that the package asks for at least."""
    found = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit("compat: pyproject.toml no longer says torch>=X.Y; mend oldest() in tests/compat/__main__.py")
    return f"{found.group(1)}.0"


def environment(name: str, wheel: Path) -> Path:
    """Python of a virtual environment with that release of torch ("newest": whatever installs) and the wheel."""
    home = ROOT / "build" / "compat" / name
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pins = (ROOT / "deploy" / "dependencies" / "python.txt").read_text(encoding="utf-8").splitlines()
    tools = [pin for pin in pins if pin.startswith(_TOOLS)]
    torch = ["--upgrade", "torch"] if name == "newest" else [f"torch=={name}"]
    pip = [python, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, *torch, *tools], check=True)
    subprocess.run([*pip, "--no-deps", "--force-reinstall", wheel], check=True)
    return python


def run(python: Path, results: Path) -> Result:
    """Runs tests/agent there."""
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ask = "import torch; from neuraldbg import self_test; print(torch.__version__, self_test.reached().name.lower())"
    told = subprocess.run([python, "-c", ask], env=surroundings, capture_output=True, text=True, check=True).stdout
    release, level = told.split()
    print(f"compat: torch {release} reaches {level}; running tests/agent", flush=True)
    subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", results, ROOT / "tests" / "agent"],
        cwd=ROOT,
        env=surroundings,
        timeout=_TEST_SECONDS,
        check=False,
    )
    cases = ET.parse(results).getroot().iter("testcase")
    states = [{child.tag for child in case} for case in cases]
    failed = sum(bool(state & {"failure", "error"}) for state in states)
    skipped = sum("skipped" in state for state in states)
    return Result(release, level, len(states) - failed - skipped, failed, skipped)


def document(text: str, results: list[Result]) -> str:
    """The document with the table of these results; rows of releases that were not run now stay."""
    head, begin, rest = text.partition(BEGIN)
    table, end, tail = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"compat: {DOCUMENT} has lost its markers {BEGIN} and {END}")
    rows = {line.split("|")[1].strip(): line for line in table.splitlines() if re.match(r"\| \d", line)}
    rows |= {one.torch: one.row() for one in results}
    ordered = sorted(rows, key=lambda release: [int(part) for part in release.split("+")[0].split(".")])
    return "\n".join([f"{head}{begin}", _HEAD, *(rows[release] for release in ordered), f"{end}{tail}"])


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="./run compat", description=__doc__)
    parser.add_argument("release", nargs="*", help="releases of torch (default: the oldest that is asked for, newest)")
    arguments = parser.parse_args()
    wheels = sorted((ROOT / "dist").glob("neuraldbgd-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        raise SystemExit("compat: there is no wheel in dist/: run ./run release")
    results = []
    for name in arguments.release or [oldest(), "newest"]:
        python = environment(name, wheels[-1])
        results.append(run(python, ROOT / "build" / "compat" / f"{name}.xml"))
        DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8"), results), encoding="utf-8")
    print(_HEAD, *(one.row() for one in results), sep="\n")
    return int(any(one.failed for one in results))


if __name__ == "__main__":
    sys.exit(main())
