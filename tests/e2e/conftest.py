"""What the end-to-end tests share: a real daemon per test, and real training jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.evaluate.daemon_process import ROOT, Daemon, DaemonError

Jobs = Callable[..., "Job"]


class Job:
    """One training process (tests/e2e/job.py)."""

    def __init__(self, daemon: Daemon, *arguments: str, **environment: str) -> None:
        command = [sys.executable, "-m", "tests.e2e.job", *arguments]
        self.output: list[str] = []
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=daemon.environment() | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_step(self, step: int) -> None:
        """Return when the job has printed that step."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            if line.strip() == f"step {step}":
                return
        pytest.fail(f"the job ended before step {step}: {self.finish()}")

    def finish(self, timeout: float = 180.0) -> tuple[int, str, str]:
        """Exit code, everything printed, everything on standard error."""
        rest, errors = self.process.communicate(timeout=timeout)
        return self.process.returncode, "".join(self.output) + rest, errors

    def done(self, timeout: float = 180.0) -> str:
        """Wait for success; the `done` line."""
        code, output, errors = self.finish(timeout)
        assert code == 0, output + errors
        return next(line for line in output.splitlines() if line.startswith("done"))


def daemons_of(directory: Path) -> list[int]:
    """Process ids of the daemons whose command line names this directory."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = any(str(directory).encode() in word for word in words)
            if ours and Path(words[0].decode()).name == "neuraldbgd":
                found.append(int(process.name))
    return found


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A daemon of this test's own, running."""
    with Daemon() as running:
        yield running
        running.require_no_crash()


@pytest.fixture
def stopped_daemon() -> Iterator[Daemon]:
    """Directories and addresses of a daemon that nobody has started."""
    prepared = Daemon()
    yield prepared
    crash = _crash_of(prepared)
    for process in daemons_of(prepared.data):  # a job under daemon="auto" may have started one
        os.kill(process, signal.SIGKILL)
    prepared.close()
    assert crash is None, crash


def _crash_of(daemon: Daemon) -> str | None:
    """What became of it, if that is not what the test wanted; its files are still there to be removed."""
    try:
        daemon.require_no_crash()
    except DaemonError as error:
        return str(error)
    return None


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    """Starts jobs, and ends those that a failing test leaves behind."""
    started: list[Job] = []

    def start(daemon: Daemon, *arguments: str, **environment: str) -> Job:
        started.append(Job(daemon, *arguments, **environment))
        return started[-1]

    yield start
    for job in started:
        if job.process.poll() is None:
            job.process.kill()
        job.process.communicate()
