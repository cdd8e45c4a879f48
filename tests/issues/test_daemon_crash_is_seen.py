"""A crashed daemon went unnoticed by every end-to-end test: clients fell back to the store and answered rightly."""

from __future__ import annotations

import os
import signal

import pytest

from tests.evaluate.daemon_process import Daemon, DaemonError


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_daemon_that_ends_by_itself_is_a_crash(number: signal.Signals) -> None:
    with Daemon() as daemon:
        daemon.require_no_crash()
        assert daemon.process is not None
        os.kill(daemon.process.pid, number)
        daemon.process.wait()
        with pytest.raises(DaemonError, match="neuraldbgd ended with"):
            daemon.require_no_crash()


def test_a_fallback_to_stored_runs_is_said_in_one_line() -> None:
    with Daemon() as daemon:
        daemon.stop()
        answer = daemon.ctl("runs")
        assert answer.returncode == 0
        (line,) = answer.stderr.splitlines()
        assert "no daemon answers" in line and "stored runs" in line


def test_an_end_that_the_test_wanted_is_none() -> None:
    with Daemon() as daemon:
        daemon.kill()
        daemon.require_no_crash()
        daemon.start()
        assert daemon.stop() == 0
        daemon.require_no_crash()


def test_a_sanitizer_report_is_a_crash_although_the_daemon_lives() -> None:
    with Daemon() as daemon:
        with daemon.log.open("a") as log:
            log.write("a.cc:1:2: runtime error: signed integer overflow\n")
        with pytest.raises(DaemonError, match="signed integer overflow"):
            daemon.require_no_crash()
