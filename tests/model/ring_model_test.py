"""Checks the model of the lane protocol with spin: right as it is, and wrong without each order that it depends on."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("ring.pml")
# What each variant leaves out, and the check that must fail then.
TORN = "copied==content"
ACCOUNTING = "started==(durable_head"
VARIANTS = {
    "NO_RELEASE": TORN,
    "NO_HANDOVER": "",  # whichever comes first: both the content and the accounting are wrong
    "HEAD_FIRST": TORN,
    "EARLY_RELEASE": ACCOUNTING,
    "TAIL_FIRST": ACCOUNTING,
    "REACHED": "assertion violated 0",
}


def verify(folder: Path, variant: str) -> str:
    """All reachable states of a variant; what the verifier says."""
    for tool in ("spin", "gcc"):
        assert shutil.which(tool), f"{tool} is missing; ./run build installs it"
    define = [f"-D{variant}"] if variant else []
    for command in (
        ["spin", *define, "-a", str(MODEL)],
        ["gcc", "-O0" if variant else "-O2", "-DSAFETY", "-DNOFAIR", "-w", "-o", "pan", "pan.c"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    # -E: processes that are stopped by death are no deadlock.
    return subprocess.run(["./pan", "-E"], cwd=folder, check=True, capture_output=True, text=True, timeout=240).stdout


def errors(report: str) -> int:
    found = re.search(r"errors: (\d+)", report)
    assert found, report
    return int(found.group(1))


def test_the_protocol_holds_in_every_reachable_state(tmp_path: Path) -> None:
    report = verify(tmp_path, "")
    assert errors(report) == 0, report
    assert "max search depth too small" not in report
    states = re.search(r"(\d+) states, stored", report)
    assert states and int(states.group(1)) > 100_000, "the search was exhaustive, not cut short"


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_it_a_check_fails(tmp_path: Path, variant: str) -> None:
    report = verify(tmp_path, variant)
    assert errors(report) == 1, report
    violated = next(line for line in report.splitlines() if line.startswith("pan:1:"))
    assert VARIANTS[variant] in violated, violated
