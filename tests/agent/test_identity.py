"""Who a process is, where things lie, and which setting wins."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from neuraldbg import config, daemon, identity


def who(environment: dict[str, str], rank: int | None = None, world_size: int | None = None) -> identity.Identity:
    settings = config.load("run", None, {**os.environ, **environment})
    return identity.resolve(settings, rank, world_size, environment)


@pytest.mark.parametrize(
    ("environment", "launch", "rank", "world_size"),
    [
        ({"TORCHELASTIC_RUN_ID": "abc", "RANK": "3", "WORLD_SIZE": "8", "SLURM_JOB_ID": "9"}, "torchelastic-abc", 3, 8),
        ({"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "1", "SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, "slurm-9.1", 2, 4),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "9"}, "slurm-9.0", 0, 1),
        ({"POD_UID": "p-1"}, "pod-p-1", 0, 1),
        ({"NEURALDBG_LAUNCH": "mine", "TORCHELASTIC_RUN_ID": "abc"}, "mine", 0, 1),
    ],
)
def test_launch_and_rank_come_from_the_launcher(
    environment: dict[str, str], launch: str, rank: int, world_size: int
) -> None:
    found = who(environment)
    assert (found.launch, found.rank, found.world_size) == (launch, rank, world_size)


def test_arguments_win_over_variables() -> None:
    found = who({"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "a"}, rank=1, world_size=2)
    assert (found.rank, found.world_size) == (1, 2)


def test_ranks_without_a_launcher_are_named_by_their_parent() -> None:
    launch = who({}, rank=1, world_size=2).launch
    start = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    assert launch == f"pid-{os.getppid()}-{start}"
    assert who({}, rank=0, world_size=2).launch == launch


def test_a_job_of_one_process_is_a_launch_of_its_own_each_time() -> None:
    first, second = who({}), who({})
    assert first.launch.startswith(f"pid-{os.getpid()}-") and first.launch != second.launch
    assert first.incarnation == second.incarnation == 0


def counters() -> set[str]:
    """Launches that have a counter."""
    directory = config.load("run", None, os.environ).runtime_directory / "incarnations"
    return {path.read_text().partition(" ")[2] for path in directory.iterdir()} if directory.is_dir() else set()


def test_counters_of_launches_whose_process_is_gone_are_swept() -> None:
    start = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    alive, gone, reused = f"pid-{os.getppid()}-{start}", "pid-4194305-77", f"pid-{os.getppid()}-{int(start) + 1}"
    for launch in (alive, gone, reused, "slurm-9.0"):
        who({"NEURALDBG_LAUNCH": launch})
    who({"NEURALDBG_LAUNCH": alive})
    assert counters() == {alive, "slurm-9.0"}
    assert who({"NEURALDBG_LAUNCH": alive}).incarnation == 2


def test_counters_of_launches_that_no_process_names_are_swept_when_they_are_old() -> None:
    who({"NEURALDBG_LAUNCH": "slurm-9.0"})
    directory = config.load("run", None, os.environ).runtime_directory / "incarnations"
    (path,) = directory.iterdir()
    os.utime(path, (time.time() - 8 * 86400,) * 2)
    who({"NEURALDBG_LAUNCH": "slurm-10.0"})
    assert counters() == {"slurm-10.0"}


def test_a_start_that_meets_the_sweep_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    who({"NEURALDBG_LAUNCH": "l1"})
    directory = config.load("run", None, os.environ).runtime_directory / "incarnations"
    (path,) = directory.iterdir()
    lock, swept = identity.fcntl.flock, []

    def sweep_first(file: Any, operation: int) -> None:
        if not swept and operation == identity.fcntl.LOCK_EX:
            swept.append(path.unlink())  # between the opening and the lock
        lock(file, operation)

    monkeypatch.setattr(identity.fcntl, "flock", sweep_first)
    assert who({"NEURALDBG_LAUNCH": "l1"}).incarnation == 0 and swept
    assert who({"NEURALDBG_LAUNCH": "l1"}).incarnation == 1


def test_incarnations_count_starts_of_the_same_launch_and_rank() -> None:
    same = {"NEURALDBG_LAUNCH": "l1"}
    assert [who(same).incarnation for _ in range(3)] == [0, 1, 2]
    assert who(same, rank=1).incarnation == 0
    assert who({"NEURALDBG_LAUNCH": "l2"}).incarnation == 0
    assert who({"NEURALDBG_LAUNCH": "l1", "TORCHELASTIC_RESTART_COUNT": "5"}).incarnation == 5


def test_argument_then_environment_then_script_names_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.run_name("given", {"NEURALDBG_RUN": "env"}) == "given"
    assert config.run_name(None, {"NEURALDBG_RUN": "env"}) == "env"
    monkeypatch.setattr("sys.argv", ["/a/b/.train it (2).py"])
    assert config.run_name(None, {}) == "train-it--2-"
    with pytest.raises(ValueError, match="run"):
        config.run_name(None, {"NEURALDBG_RUN": "../x"})


def test_private_directories_refuse_what_is_not_ours(tmp_path: Path) -> None:
    directory = tmp_path / "neuraldbg-0" / "neuraldbg"
    config.ensure_private_directory(directory)
    assert directory.stat().st_mode & 0o777 == directory.parent.stat().st_mode & 0o777 == 0o700
    link = tmp_path / "link"
    link.symlink_to(directory)
    with pytest.raises(OSError, match="another user"):
        config.ensure_private_directory(link)


def test_who_listens_is_asked_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "d.sock"
    assert not daemon.answers(f"unix:{path}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert not daemon.answers(f"unix:{path}"), "bound, but nobody listens"
        server.listen()
        assert daemon.answers(f"unix:{path}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert daemon.answers(f"127.0.0.1:{port}")
    assert not daemon.answers(f"127.0.0.1:{port}")
    assert not daemon.answers("nonsense")


def test_a_missing_daemon_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(daemon.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NEURALDBG_DAEMON")
    daemon.ensure_running(config.load("x", "auto"))
    assert len(caplog.messages) == 1 and "neuraldbgd is not installed" in caplog.messages[0]


def test_the_daemon_is_started_detached_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a program that only tells how it was started: what the real one does then is tested in tests/e2e."""
    program = tmp_path / "neuraldbgd"
    program.write_text(
        '#!/bin/sh\nls -l /proc/self/fd | grep -c -v total\ncat /proc/self/stat\necho "$@"\nexec sleep 60\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(daemon, "binary", lambda name: str(program))
    monkeypatch.delenv("NEURALDBG_DAEMON")
    settings = config.load("x", "auto")
    leaked: Any = open(tmp_path / "leak", "w")
    os.set_inheritable(leaked.fileno(), True)
    daemon.ensure_running(settings)
    daemon.ensure_running(settings)
    (process,) = daemon._started
    try:
        log = settings.data_directory / "neuraldbgd.log"
        while log.read_text().count("\n") < 3:
            assert process.poll() is None
            time.sleep(0.02)
        text = log.read_text().splitlines()
        assert int(text[0]) == 4, "stdin, stdout, stderr and the directory that ls reads"
        assert os.getsid(process.pid) == process.pid
        assert text[2].startswith("--exit-when-idle 60 --grpc unix:") and "--http" not in text[2]
        assert log.stat().st_mode & 0o077 == 0
    finally:
        process.kill()
        process.wait()
        daemon._started.clear()
        leaked.close()
