"""Users of one host, each with jobs: none sees another's runs unless both sides were told to share a group.

Needs root, which becomes each of the users in turn. They need no account: a user id is enough. Jobs keep the
capability to read files, because root's checkout and interpreter may be closed to others; daemons and clients do not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.daemon_process import ROOT, START_TIMEOUT_S, binary

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")

ANN, BOB, SERVICE = 61001, 61002, 61003
LAB = 61100  # the group that is configured
TIMEOUT_S = 120  # catches a hang
SETTLE_TIMEOUT_S = 60


@dataclass
class User:
    """One user's processes, all in directories of the user's own but for the shared memory."""

    uid: int
    base: Path
    shm: Path
    binaries: Path
    groups: tuple[int, ...] = ()

    def environment(self, **more: str) -> dict[str, str]:
        """Nothing of the tests' own settings, so that no user meets another's socket by accident."""
        return {
            "PATH": os.pathsep.join((str(self.binaries), os.environ["PATH"])),
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.base),
            "XDG_RUNTIME_DIR": str(self.base),
            "NEURALDBG_SHM_DIR": str(self.shm),
            "OMP_NUM_THREADS": "1",
        } | more

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run as this user; standard output and error as text."""
        return subprocess.run(
            [*self.become(), *command],
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    def become(self, *options: str) -> list[str]:
        """The command prefix that turns root into this user."""
        groups = f"--groups={','.join(map(str, self.groups))}" if self.groups else "--clear-groups"
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", groups, *options, "--"]

    def train(self, run: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A short job with the ring alone."""
        may_read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        job = [sys.executable, "-m", "tests.e2e.job", "--steps", "20", "--run", run, "--daemon", "none"]
        return subprocess.run(
            [*self.become(*may_read), *job],
            cwd=ROOT,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    def ctl(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """neuraldbgctl as this user."""
        return self.run(str(self.binaries / "neuraldbgctl"), *arguments, **environment)

    @property
    def address(self) -> str:
        """Of this user's daemon."""
        return f"unix:{self.base}/neuraldbg/neuraldbgd.sock"

    def daemon(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a daemon of this user's own; return when it answers."""
        process = subprocess.Popen(
            [*self.become(), str(self.binaries / "neuraldbgd"), "--grpc", self.address, "--http", "off", *arguments],
            env=self.environment(),
            stdout=(self.base / "log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.ctl("status").returncode != 0:
            assert process.poll() is None and time.monotonic() < deadline, (self.base / "log").read_text()
            time.sleep(0.05)
        return process

    def ask(self, *arguments: str) -> Any:
        """What neuraldbgctl answers this user."""
        return json.loads(self.ctl(*arguments, "-o", "json").stdout)

    def runs(self, count: int) -> dict[str, str]:
        """Name and state of the runs this user sees, once there are `count` that have ended."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            seen = {run["name"]: run["state"] for run in self.ask("runs")["runs"]}
            if sum(state != "RUNNING" for state in seen.values()) >= count:
                return seen
            assert time.monotonic() < deadline, f"{seen}\n{(self.base / 'log').read_text()}"
            time.sleep(0.1)


class Host:
    """A shared-memory directory as /dev/shm is, and who uses it."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="ndbg-", dir="/tmp"))
        self.shm = Path(tempfile.mkdtemp(prefix="ndbg-", dir="/dev/shm"))
        self.base.chmod(0o755)
        self.shm.chmod(0o1777)
        self.binaries = self.base / "bin"  # copies, which every user can reach
        self.binaries.mkdir()
        for name in ("neuraldbgd", "neuraldbgctl"):
            shutil.copy(binary(name), self.binaries / name)
        self.processes: list[subprocess.Popen[bytes]] = []

    def user(self, uid: int, *groups: int) -> User:
        base = self.base / str(uid)
        base.mkdir(mode=0o700)
        os.chown(base, uid, uid)
        return User(uid, base, self.shm, self.binaries, groups)

    def daemon(self, user: User, *arguments: str) -> None:
        self.processes.append(user.daemon(*arguments))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.base)
        shutil.rmtree(self.shm)


@pytest.fixture
def host() -> Iterator[Host]:
    """A host of this test's own; its daemons end with it."""
    made = Host()
    yield made
    made.close()


def require_trained(*jobs: subprocess.CompletedProcess[str]) -> None:
    for job in jobs:
        assert job.returncode == 0, job.stderr


def test_without_a_group_nobody_sees_anothers_runs(host: Host) -> None:
    ann, bob = host.user(ANN), host.user(BOB)
    require_trained(ann.train("of-ann"), bob.train("of-bob"))
    for segment in host.shm.iterdir():
        assert segment.stat().st_mode & 0o777 == 0o600

    host.daemon(ann)
    host.daemon(bob)
    assert ann.runs(1) == {"of-ann": "FINISHED"}
    assert bob.runs(1) == {"of-bob": "FINISHED"}
    assert list(host.shm.iterdir()) == [], "each daemon removes what its user's jobs left"
    # Neither the other's socket nor the other's store can be opened.
    for address in (ann.address, f"unix:{ann.base}/none.sock"):
        store = str(ann.base / ".local/state/neuraldbg")
        asked = bob.ctl("runs", NEURALDBG_ADDRESS=address, NEURALDBG_DATA_DIR=store)
        assert asked.returncode != 0 and "of-ann" not in asked.stdout, asked.stdout


def test_a_segment_that_was_not_opened_to_the_group_stays_private(host: Host) -> None:
    ann, service = host.user(ANN, LAB), host.user(SERVICE, LAB)
    require_trained(ann.train("private"), ann.train("shared", NEURALDBG_SEGMENT_GROUP=str(LAB)))
    host.daemon(service, "--group", str(LAB))
    assert service.runs(1) == {"shared": "FINISHED"}
    assert (ann.base / ".local").exists() is False, "the job wrote a store"


def test_a_configured_group_shares_and_leaves_no_memory_behind(host: Host) -> None:
    ann, bob, service = host.user(ANN, LAB), host.user(BOB, LAB), host.user(SERVICE, LAB)
    group = {"NEURALDBG_SEGMENT_GROUP": str(LAB)}
    require_trained(ann.train("of-ann", **group), bob.train("of-bob", **group))
    for segment in host.shm.iterdir():
        status = segment.stat()
        assert (status.st_mode & 0o777, status.st_gid) == (0o660, LAB)

    host.daemon(service, "--group", str(LAB))
    assert service.runs(2) == {"of-ann": "FINISHED", "of-bob": "FINISHED"}
    # The directory is sticky: the service may not remove the files of others, so it gives their memory back.
    left = list(host.shm.iterdir())
    assert len(left) == 2 and sum(segment.stat().st_blocks for segment in left) == 0
    # Nobody is told of them again, and the owner's next job removes the names.
    require_trained(ann.train("again", **group))
    assert service.runs(3)["again"] == "FINISHED"
    owners = [segment.stat().st_uid for segment in host.shm.iterdir()]
    assert sorted(owners) == [ANN, BOB], "one of the second job, none of the first"
    assert "left alone" not in (service.base / "log").read_text()


def test_a_group_that_is_not_ones_own_is_a_clear_mistake(host: Host) -> None:
    ann = host.user(ANN)
    ended = ann.train("none", NEURALDBG_SEGMENT_GROUP=str(LAB))
    assert ended.returncode != 0
    assert "NEURALDBG_SEGMENT_GROUP must name a group that this process is a member of" in ended.stderr
    refused = ann.run(str(ann.binaries / "neuraldbgd"), "--group", str(LAB), "--check-config")
    assert refused.returncode == 2 and "--group must name a group that neuraldbgd runs in" in refused.stderr
