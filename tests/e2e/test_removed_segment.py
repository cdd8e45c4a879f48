"""Somebody removes the segment's file under a live trainer: systemd's RemoveIPC at a logout, or a cleaning script."""

from __future__ import annotations

from tests.e2e.conftest import Job, Jobs
from tests.e2e.test_processes import points_of
from tests.evaluate.daemon_process import Daemon

ARGUMENTS = ("--steps", "160", "--sleep", "0.03")


def remove_segment(daemon: Daemon, job: Job, step: int) -> None:
    """Take the job's segment away once it has taken that step."""
    job.wait_step(step)
    (segment,) = daemon.shm.glob("neuraldbg.*")
    segment.unlink()


def lines_about_us(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if "neuraldbg" in line]


def test_under_a_daemon_no_record_is_lost_or_read_twice(daemon: Daemon, jobs: Jobs) -> None:
    job = jobs(daemon, *ARGUMENTS, "--nan-at", "150")
    remove_segment(daemon, job, 40)
    code, output, errors = job.finish()
    assert code == 0, output + errors
    assert len(lines_about_us(errors)) == 1, errors
    assert "removed by somebody" in errors

    ranks = daemon.settle("job", ranks=2)
    assert [rank["state"] for rank in ranks] == ["FINISHED", "FINISHED"]
    assert [int(rank["incarnation"]) for rank in ranks] == [0, 1]
    assert int(ranks[1]["lastStep"]) == 159
    for rank in ranks:
        assert rank["recordsReceived"] == rank["recordsProduced"]
        assert int(rank["recordsDropped"]) == 0
    steps = points_of(daemon, "job")["3:output"]
    assert steps == list(range(151)), "a step is missing, or there twice; from 151 on nothing is finite"
    first = daemon.ask("diagnose", "job")["hypotheses"][0]
    assert (first["kind"], first["module"], first["step"]) == ("NONFINITE_FORWARD", "3", 150)


def test_without_a_daemon_the_loss_is_counted(stopped_daemon: Daemon, jobs: Jobs) -> None:
    job = jobs(stopped_daemon, *ARGUMENTS, "--daemon", "none")
    remove_segment(stopped_daemon, job, 40)
    code, output, errors = job.finish()
    assert code == 0, output + errors
    assert len(lines_about_us(errors)) == 1, errors

    stopped_daemon.start()
    (rank,) = stopped_daemon.settle("job")
    received, dropped = int(rank["recordsReceived"]), int(rank["recordsDropped"])
    steps = points_of(stopped_daemon, "job")["3:output"]
    assert steps == list(range(steps[0], 160))
    a_step = received / len(steps)
    assert 41 <= steps[0] < 159, "the daemon saw the removed file, or nothing at all"
    assert dropped >= steps[0] * (a_step - 1), "what lay in the removed file is counted"
    assert received + dropped == int(rank["recordsProduced"])
