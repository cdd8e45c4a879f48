"""The second attempt of a script from the same shell was taken for a restart of the first and inherited its verdict."""

from __future__ import annotations

from tests.e2e.conftest import Job
from tests.evaluate.daemon_process import Daemon


def test_a_corrected_second_attempt_is_judged_by_itself() -> None:
    with Daemon() as daemon:
        Job(daemon, "--steps", "80", "--nan-at", "60", "--run", "again").done()
        daemon.settle("again")
        assert daemon.ask("diagnose", "again")["verdict"] == "FAULT"
        Job(daemon, "--steps", "80", "--run", "again").done()
        daemon.settle("again")
        assert daemon.ask("diagnose", "again")["verdict"] == "HEALTHY", "the plain name is the newest launch"
        assert daemon.ask("diagnose", "again#2")["verdict"] == "HEALTHY"
        assert len(daemon.ask("runs")["runs"]) == 2
