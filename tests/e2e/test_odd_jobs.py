"""However a trainer ends, forks or threads: its exit code is its own, its records are counted, nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.odd_job import LAST_STEP, STEPS
from tests.evaluate.daemon_process import ROOT, Daemon

TIMEOUT_S = 120  # catches a hang


def run(daemon: Daemon, job: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.e2e.odd_job", job],
        cwd=ROOT,
        env=daemon.environment() | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def require_counted(rank: dict[str, object]) -> None:
    assert int(rank["recordsReceived"]) > 0
    assert int(rank["recordsReceived"]) + int(rank["recordsDropped"]) == int(rank["recordsProduced"])


def leftovers(daemon: Daemon) -> list[str]:
    return [path.name for path in daemon.shm.iterdir()]


@pytest.mark.parametrize(
    ("job", "code", "state", "last_step"),
    [
        ("falls_off_the_end", 0, "FINISHED", STEPS - 1),
        ("sys_exit", 5, "FINISHED", LAST_STEP),
        ("os_exit", 3, "DIED", LAST_STEP),
        ("segfault", -signal.SIGSEGV, "DIED", LAST_STEP),
        ("abort", -signal.SIGABRT, "DIED", LAST_STEP),
        ("exec", 0, "DIED", LAST_STEP),
    ],
)
def test_every_end_is_seen_and_none_is_changed(daemon: Daemon, job: str, code: int, state: str, last_step: int) -> None:
    ended = run(daemon, job)
    assert ended.returncode == code, ended.stderr
    (rank,) = daemon.settle("odd")
    assert (rank["state"], int(rank["lastStep"])) == (state, last_step)
    require_counted(rank)
    assert int(rank["recordsDropped"]) == 0
    assert leftovers(daemon) == []


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group of 1 GiB whose processes are killed when they want more. `cgroup.procs` takes members."""
    roots = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}
    for root, limit in roots.items():
        group = root / f"ndbg-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(1 << 30))
        except OSError:
            group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("this environment permits no control group for memory")


@pytest.mark.parametrize("drained", [True, False])
def test_the_out_of_memory_killer_takes_nothing_with_it(
    stopped_daemon: Daemon, memory_group: Path, drained: bool
) -> None:
    if drained:
        stopped_daemon.start()
    enter = f"echo $$ > {memory_group}/cgroup.procs && exec {sys.executable} -m tests.e2e.odd_job out_of_memory"
    environment = stopped_daemon.environment() | {"NEURALDBG_DAEMON": "none"}
    ended = subprocess.run(
        ["sh", "-c", enter], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    if not drained:
        stopped_daemon.start()
    (rank,) = stopped_daemon.settle("odd")
    assert (rank["state"], int(rank["lastStep"])) == ("DIED", LAST_STEP)
    require_counted(rank)
    assert int(rank["recordsDropped"]) == 0
    (death,) = [one for one in stopped_daemon.ask("diagnose", "odd")["hypotheses"] if one["kind"] == "RANK_DIED"]
    assert [entry["step"] for entry in death["evidence"][1:]] == [LAST_STEP]
    assert leftovers(stopped_daemon) == []


@pytest.mark.parametrize("job", ["workers_fork", "workers_spawn", "forks"])
def test_processes_of_the_trainers_own_leave_its_records_alone(daemon: Daemon, job: str) -> None:
    ended = run(daemon, job)
    assert ended.returncode == 0, ended.stderr
    assert "done" in ended.stdout
    (rank,) = daemon.settle("odd")
    steps = STEPS if job == "forks" else 2 * STEPS
    assert (rank["state"], int(rank["lastStep"])) == ("FINISHED", steps - 1)
    require_counted(rank)
    assert int(rank["recordsDropped"]) == 0
    assert [found["name"] for found in daemon.ask("runs")["runs"]] == ["odd"]
    assert leftovers(daemon) == []


def test_two_models_in_one_process_are_two_runs(daemon: Daemon) -> None:
    ended = run(daemon, "two_models")
    assert ended.returncode == 0, ended.stderr
    for name in ("odd", "second"):
        (rank,) = daemon.settle(name)
        assert (rank["state"], int(rank["lastStep"])) == ("FINISHED", STEPS - 1)
        require_counted(rank)
    assert leftovers(daemon) == []


def test_threads_that_come_and_go_are_all_accounted_for(daemon: Daemon) -> None:
    ended = run(daemon, "threads")
    assert ended.returncode == 0, ended.stderr
    (rank,) = daemon.settle("odd")
    assert (rank["state"], int(rank["lastStep"])) == ("FINISHED", STEPS - 1)
    require_counted(rank)
    assert int(rank["recordsProduced"]) >= 200 * 3, "the threads' passes were not observed"
    assert leftovers(daemon) == []


def run_on_small_memory(daemon: Daemon, mebibytes: int) -> tuple[int, str, list[int]]:
    """Exit code, standard error and sizes of the segments of a job whose shared memory is a file system of its own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a mount of one's own needs root and unshare")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("this environment permits no mount namespace")
    directory = Path(daemon.base) / "small"
    directory.mkdir()
    script = (
        f"mount -t tmpfs -o size={mebibytes}m none {directory} || exit 99\n"
        f"{sys.executable} -m tests.e2e.odd_job falls_off_the_end; code=$?\n"
        f"find {directory} -type f -printf '%s\\n'; exit $code"
    )
    environment = daemon.environment() | {"NEURALDBG_SHM_DIR": str(directory), "NEURALDBG_DAEMON": "none"}
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    if ended.returncode == 99:
        pytest.skip("this environment permits no mount")
    done, *sizes = ended.stdout.split()
    assert done == "done", ended.stdout + ended.stderr
    return ended.returncode, ended.stderr, [int(size) for size in sizes]


def test_a_small_shared_memory_shrinks_the_segment(stopped_daemon: Daemon) -> None:
    code, errors, sizes = run_on_small_memory(stopped_daemon, 6)
    assert code == 0, errors
    assert len(sizes) == 1 and sizes[0] <= 6 << 20, sizes
    assert "neuraldbg" not in errors or "ring is full" in errors


def test_a_full_shared_memory_disables_the_agent_with_one_line(stopped_daemon: Daemon) -> None:
    code, errors, sizes = run_on_small_memory(stopped_daemon, 2)
    assert code == 0, errors
    assert sizes == [], "something half-made was left"
    assert len([line for line in errors.splitlines() if "neuraldbg" in line]) == 1, errors
    assert "not observed" in errors
