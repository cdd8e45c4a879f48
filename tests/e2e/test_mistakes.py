"""What goes wrong at the user's hands gets one clear sentence and the right exit code."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Jobs
from tests.evaluate.daemon_process import ROOT, Daemon, binary

USAGE, UNREACHABLE, NO_SUCH_RUN = 2, 3, 4


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """What a person sees; it must not be a stack trace or an abort."""
    assert done.returncode >= 0, f"ended by signal {-done.returncode}: {done.stderr}"
    for ugly in ("Traceback", "terminate called", "what():", "Assertion"):
        assert ugly not in done.stderr + done.stdout, done.stderr
    assert done.stderr.strip(), "nothing was said"
    return done.stderr


def daemon_alone(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(binary("neuraldbgd")), *arguments]
    return subprocess.run(command, env=daemon.environment(), capture_output=True, text=True, timeout=30)


def python(daemon: Daemon, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, env=daemon.environment(), capture_output=True, text=True, timeout=120)


def test_an_unknown_run(daemon: Daemon) -> None:
    for verb in ("diagnose", "events", "ranks", "sites", "series"):
        done = daemon.ctl(verb, "nobody")
        assert done.returncode == NO_SUCH_RUN, verb
        assert "nobody" in sentence(done)


def test_no_run_at_all(daemon: Daemon) -> None:
    done = daemon.ctl("diagnose")
    assert done.returncode == NO_SUCH_RUN
    assert "run" in sentence(done)


@pytest.mark.parametrize(
    "words", (("runs", "--frobnicate"), ("dignose",), ("runs", "-o", "xml"), ("series", "x", "--from", "y"))
)
def test_a_wrong_command_line(daemon: Daemon, words: tuple[str, ...]) -> None:
    done = daemon.ctl(*words)
    assert done.returncode == USAGE
    assert words[-1] in sentence(done)


def test_a_wrong_flag_of_the_daemon(stopped_daemon: Daemon) -> None:
    done = daemon_alone(stopped_daemon, "--frobnicate")
    assert done.returncode == USAGE
    assert "--frobnicate" in sentence(done)


def test_no_daemon(stopped_daemon: Daemon) -> None:
    for verb in ("status", "tail", "top"):
        done = stopped_daemon.ctl(verb)
        assert done.returncode == UNREACHABLE, verb
        assert stopped_daemon.address.removeprefix("unix:") in sentence(done)


def test_a_port_that_is_taken(stopped_daemon: Daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        words = ("--shm-dir", str(stopped_daemon.shm), "--data-dir", str(stopped_daemon.data), "--http", "off")
        done = daemon_alone(stopped_daemon, *words, "--grpc", stopped_daemon.address, "--grpc", f"127.0.0.1:{port}")
    assert done.returncode not in (0, USAGE)
    assert str(port) in sentence(done)


def test_a_second_daemon_on_the_same_socket(daemon: Daemon) -> None:
    done = daemon_alone(
        daemon,
        *("--shm-dir", str(daemon.shm), "--data-dir", str(daemon.base / "other"), "--grpc", daemon.address),
        *("--http", "off"),
    )
    assert done.returncode not in (0, USAGE)
    assert daemon.address.removeprefix("unix:") in sentence(done)
    assert daemon.ctl("status").returncode == 0, "the first one must not suffer"


def test_a_data_directory_that_cannot_be_written(stopped_daemon: Daemon) -> None:
    blocked = stopped_daemon.base / "file"
    blocked.write_text("in the way")  # root may write anywhere, but nobody makes a directory below a file
    words = (
        "--shm-dir",
        str(stopped_daemon.shm),
        "--data-dir",
        str(blocked / "data"),
        "--grpc",
        stopped_daemon.address,
    )
    done = daemon_alone(stopped_daemon, *words)
    assert done.returncode not in (0, USAGE)
    assert str(blocked) in sentence(done)


@pytest.mark.parametrize(
    ("code", "names"),
    (
        ("neuraldbg.attach('model')", "model"),
        ("neuraldbg.attach(torch.jit.script(torch.nn.Linear(2, 2)))", "ScriptModule"),
        ("neuraldbg.attach(torch.nn.Linear(2, 2), run='../etc')", "run"),
        ("neuraldbg.attach(torch.nn.Linear(2, 2), cadence=-1)", "cadence"),
        ("neuraldbg.attach(torch.nn.Linear(2, 2), optimizer=3)", "optimizer"),
        ("neuraldbg.attach(torch.nn.Linear(2, 2), daemon='maybe')", "daemon"),
    ),
)
def test_wrong_arguments_of_attach_raise_at_once(stopped_daemon: Daemon, code: str, names: str) -> None:
    catch = f"try:\n    {code}\nexcept (TypeError, ValueError) as error:\n    print('refused:', error)\n"
    done = python(stopped_daemon, f"import torch, neuraldbg\n{catch}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused:") and names in done.stdout, done.stdout


def test_an_unwritable_segment_directory_does_not_stop_training(stopped_daemon: Daemon, jobs: Jobs) -> None:
    blocked = stopped_daemon.base / "no-directory"
    blocked.write_text("")
    job = jobs(stopped_daemon, "--steps", "5", "--daemon", "none", NEURALDBG_SHM_DIR=str(blocked))
    code, output, errors = job.finish()
    assert code == 0 and "step 4" in output, errors
    assert len([line for line in errors.splitlines() if "neuraldbg" in line]) == 1, errors


def test_the_socket_is_private(daemon: Daemon) -> None:
    assert Path(daemon.address.removeprefix("unix:")).stat().st_mode & 0o777 == 0o600
