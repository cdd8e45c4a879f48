"""An exported run leaves its host: what a replay finds is what the daemon found, and an import is the run again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Job, Jobs
from tests.evaluate.daemon_process import Daemon
from tests.evaluate.runner import Job as Scenario
from tests.evaluate.runner import run_job


@pytest.fixture(scope="module")
def recorded() -> Iterator[tuple[Daemon, Path]]:
    """A daemon that goes on, and the file of a run with NaN from module 3 at step 70."""
    with Daemon() as daemon:
        Job(daemon, "--steps", "90", "--nan-at", "70").done()
        daemon.settle("job")
        file = daemon.base / "job.run"
        done = daemon.ctl("export", "job", "--file", str(file))
        assert done.returncode == 0, done.stderr
        yield daemon, file


@pytest.mark.parametrize("scenario", ("mixer-lr-2", "healthy-eval_passes-1"))
def test_a_replay_finds_what_the_daemon_found(daemon: Daemon, scenario: str) -> None:
    run_job(daemon, Scenario(scenario, False, "job"))
    file = str(daemon.base / "job.run")
    assert daemon.ctl("export", "job", "--file", file).returncode == 0
    live, again = daemon.ctl("diagnose", "job", "-o", "json"), daemon.ctl("replay", file, "-o", "json")
    assert again.stdout == live.stdout
    assert again.returncode == live.returncode
    assert not again.stderr


def test_a_replay_of_a_fault_speaks_as_diagnose_does(recorded: tuple[Daemon, Path]) -> None:
    daemon, file = recorded
    for format_ in ("table", "json", "jsonl"):
        live = daemon.ctl("diagnose", "job", "-o", format_)
        again = daemon.ctl("replay", str(file), "-o", format_)
        assert (again.returncode, again.stdout, again.stderr) == (1, live.stdout, "")


def test_a_replay_knows_where_a_rank_died(daemon: Daemon, jobs: Jobs) -> None:
    job = jobs(daemon, "--steps", "100000")
    job.wait_step(60)
    os.kill(job.process.pid, signal.SIGKILL)
    daemon.settle("job")
    file = str(daemon.base / "job.run")
    assert daemon.ctl("export", "--file", file).returncode == 0
    live = daemon.ctl("diagnose", "job", "-o", "json")
    assert "RANK_DIED" in live.stdout and "did this last" in live.stdout
    assert daemon.ctl("replay", file, "-o", "json").stdout == live.stdout


def test_a_running_run_can_be_exported(daemon: Daemon, jobs: Jobs) -> None:
    job = jobs(daemon, "--steps", "100000")
    job.wait_step(40)
    file = daemon.base / "job.run"
    deadline = time.monotonic() + 60
    while daemon.ctl("export", "job", "--file", str(file), "--force").returncode != 0:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert daemon.ctl("replay", str(file), "-o", "json").stdout.startswith("{")


def test_an_export_replaces_nothing_unasked(recorded: tuple[Daemon, Path]) -> None:
    daemon, file = recorded
    before = file.read_bytes()
    done = daemon.ctl("export", "job", "--file", str(file))
    assert done.returncode == 2 and "--force" in done.stderr and file.read_bytes() == before
    assert daemon.ctl("export", "job", "--file", str(file), "--force").returncode == 0
    assert file.read_bytes() == before


def test_an_unknown_run_is_not_exported(recorded: tuple[Daemon, Path]) -> None:
    daemon, _ = recorded
    target = daemon.base / "none.run"
    done = daemon.ctl("export", "other", "--file", str(target))
    assert done.returncode == 4 and "other" in done.stderr and not target.exists()


def test_a_file_that_is_none_is_a_usage_error(recorded: tuple[Daemon, Path]) -> None:
    daemon, file = recorded
    broken = daemon.base / "broken.run"
    broken.write_bytes(file.read_bytes()[:-20])
    for verb in ("replay", "import"):
        for name in (broken, daemon.log, daemon.base / "missing"):
            done = daemon.ctl(verb, str(name), "--data-dir", str(daemon.base / "other"))
            assert done.returncode == 2, done.stderr
            assert str(name) in done.stderr and len(done.stderr.splitlines()) == 1
    runs = daemon.ctl("runs", "--data-dir", str(daemon.base / "other"), "--address", f"unix:{daemon.base}/none")
    assert "broken" not in runs.stdout and "job" not in runs.stdout


def test_an_import_beside_a_daemon_is_refused(recorded: tuple[Daemon, Path]) -> None:
    daemon, file = recorded
    done = daemon.ctl("import", str(file))
    assert done.returncode == 3 and "only one program may" in done.stderr
    assert len(daemon.ask("runs")["runs"]) == 1


def test_an_imported_run_answers_like_the_one_it_was(recorded: tuple[Daemon, Path]) -> None:
    daemon, file = recorded
    offline = ("--data-dir", str(daemon.base / "elsewhere"), "--address", f"unix:{daemon.base}/none")
    assert daemon.ctl("import", str(file), *offline).returncode == 0
    again = daemon.ctl("import", str(file), *offline)
    assert again.returncode == 2 and "imported before" in again.stderr
    for words in (("diagnose",), ("events",), ("sites",), ("graph",), ("series", "--site", "3", "--statistic", "rms")):
        verb, *more = words
        expected = daemon.ctl(verb, "job", *more, "-o", "json").stdout
        assert daemon.ctl(verb, "job", *more, "-o", "json", *offline).stdout == expected, words


def test_an_export_replaces_only_files_that_are_no_part_of_the_store(recorded: tuple[Daemon, Path]) -> None:
    daemon, _ = recorded
    pipe = daemon.base / "pipe"
    os.mkfifo(pipe)
    store = daemon.data / "neuraldbg.db"
    inode = store.stat().st_ino
    for target, words in ((pipe, ()), (pipe, ("--force",)), (Path("/dev/full"), ("--force",)), (store, ("--force",))):
        done = daemon.ctl("export", "job", "--file", str(target), *words)
        assert done.returncode == 2, done.stderr
        assert str(target) in done.stderr and len(done.stderr.splitlines()) == 1
    assert store.stat().st_ino == inode and pipe.is_fifo() and Path("/dev/full").is_char_device()


def test_a_replay_does_not_wait_for_a_pipe(recorded: tuple[Daemon, Path]) -> None:
    daemon, _ = recorded
    pipe = daemon.base / "silent"
    os.mkfifo(pipe)
    done = daemon.ctl("replay", str(pipe))
    assert done.returncode == 2 and "regular file" in done.stderr


def test_a_failed_import_leaves_no_store_where_none_was(recorded: tuple[Daemon, Path]) -> None:
    daemon, file = recorded
    cut = daemon.base / "cut.run"
    cut.write_bytes(file.read_bytes()[:-20])
    fresh, kept = daemon.base / "fresh", daemon.base / "kept"
    assert daemon.ctl("import", str(cut), "--data-dir", str(fresh)).returncode == 2
    assert not fresh.exists()
    assert daemon.ctl("import", str(file), "--data-dir", str(kept)).returncode == 0
    assert daemon.ctl("import", str(cut), "--data-dir", str(kept)).returncode == 2
    assert (kept / "neuraldbg.db").stat().st_size > 0, "what was there stays"


def test_an_unknown_launch_is_told_from_an_unknown_run(recorded: tuple[Daemon, Path]) -> None:
    daemon, _ = recorded
    done = daemon.ctl("diagnose", "job@nowhere")
    assert done.returncode == 4 and "Run 'job' has no launch 'nowhere'." in done.stderr
    assert "There is no run 'other'." in daemon.ctl("diagnose", "other@nowhere").stderr
