"""daemon="auto": a training script with no daemon around starts one, which ends by itself and leaves a report."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Jobs, daemons_of
from tests.evaluate.daemon_process import Daemon


def wait_for(condition: object, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.2)
    return False


def test_a_script_gets_its_answer_without_anybody_starting_a_daemon(stopped_daemon: Daemon, jobs: Jobs) -> None:
    job = jobs(stopped_daemon, "--steps", "100", "--nan-at", "70", "--diagnose")
    code, output, errors = job.finish()
    assert code == 0, output + errors
    (daemon,) = daemons_of(stopped_daemon.data)
    assert "NONFINITE_FORWARD" in output and " 70" in output, output
    assert Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[3] != str(job.process.pid)
    for descriptor in ("0", "1", "2"):
        assert not (Path(f"/proc/{daemon}/fd") / descriptor).resolve().name.startswith("pipe:")


def test_several_scripts_at_once_start_one_daemon(stopped_daemon: Daemon, jobs: Jobs) -> None:
    started = [jobs(stopped_daemon, "--steps", "60", "--run", f"job-{number}") for number in range(3)]
    for job in started:
        job.done()
    assert len(daemons_of(stopped_daemon.data)) == 1
    for number in range(3):
        stopped_daemon.settle(f"job-{number}")


def test_an_idle_daemon_ends_and_leaves_reports(stopped_daemon: Daemon, jobs: Jobs) -> None:
    stopped_daemon.arguments = ("--exit-when-idle", "2")
    stopped_daemon.start()
    jobs(stopped_daemon, "--steps", "100", "--nan-at", "70").done()
    assert stopped_daemon.process is not None
    assert stopped_daemon.process.wait(30) == 0
    report = json.loads((stopped_daemon.data / "reports" / "job.json").read_text())
    assert report["verdict"] == "FAULT"
    assert "NONFINITE_FORWARD" in (stopped_daemon.data / "reports" / "job.txt").read_text()
    assert stopped_daemon.ask("diagnose", "job")["verdict"] == "FAULT", (
        "verbs on stored runs must work without a daemon"
    )


@pytest.mark.slow
def test_the_daemon_that_a_script_started_ends_after_a_minute(stopped_daemon: Daemon, jobs: Jobs) -> None:
    jobs(stopped_daemon, "--steps", "30").done()
    assert daemons_of(stopped_daemon.data)
    assert wait_for(lambda: not daemons_of(stopped_daemon.data), 120)
    assert (stopped_daemon.data / "reports" / "job.json").exists()
