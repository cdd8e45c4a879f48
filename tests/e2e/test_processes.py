"""Training must not care what becomes of the daemon, and the daemon must know what became of training."""

from __future__ import annotations

import time
from pathlib import Path

from tests.e2e.conftest import Jobs
from tests.evaluate.daemon_process import Daemon


def points_of(daemon: Daemon, run: str, site: str = "3") -> dict[str, list[int]]:
    """Steps of every stored series of one module, by site."""
    answer = daemon.ask("series", run, "--site", site, "--statistic", "rms")
    return {series["site"]: [int(point["step"]) for point in series["points"]] for series in answer["series"]}


def test_without_a_daemon_training_goes_on_and_records_wait(stopped_daemon: Daemon, jobs: Jobs) -> None:
    code, output, errors = jobs(stopped_daemon, "--steps", "30", "--daemon", "none").finish()
    assert code == 0, output + errors
    assert "step 29" in output
    assert [p.name for p in stopped_daemon.shm.iterdir()], "no segment waits in shared memory"

    stopped_daemon.start()
    (rank,) = stopped_daemon.settle("job")
    assert rank["state"] == "FINISHED"
    assert rank["lastStep"] == 29
    assert int(rank["recordsReceived"]) == int(rank["recordsProduced"]) > 0
    assert int(rank["recordsDropped"]) == 0


def test_a_full_ring_drops_newest_counts_them_and_says_so_once(stopped_daemon: Daemon, jobs: Jobs) -> None:
    code, output, errors = jobs(stopped_daemon, "--steps", "4000", "--daemon", "none").finish()
    assert code == 0, output + errors
    about_us = [line for line in errors.splitlines() if "neuraldbg" in line]
    assert len(about_us) == 1, f"expected one line about dropped records, got: {about_us}"

    stopped_daemon.start()
    (rank,) = stopped_daemon.settle("job")
    dropped, received = int(rank["recordsDropped"]), int(rank["recordsReceived"])
    assert dropped > 0, "the ring was never full: make the run longer"
    assert received + dropped == int(rank["recordsProduced"])
    diagnosis = stopped_daemon.ask("diagnose", "job")
    assert diagnosis["verdict"] == "INCOMPLETE_DATA", "of a run that was not seen nothing is known"
    (notice,) = [one for one in diagnosis["notices"] if one["kind"] == "BLIND_SPOT"]
    assert "were not received" in notice["text"]
    (check,) = [one for one in stopped_daemon.ask("doctor")["checks"] if one["check"] == "records"]
    assert check["result"] == "warning"
    assert f"dropped {dropped} of its {int(rank['recordsProduced'])} (rank 0)" in check["text"]
    assert "neuraldbgd" in check["remedy"]


def test_training_is_bitwise_the_same_with_and_without_a_daemon(daemon: Daemon, jobs: Jobs) -> None:
    attached = jobs(daemon, "--steps", "40", "--run", "a").done()
    alone = jobs(daemon, "--steps", "40", "--run", "b", NEURALDBG_ENABLED="0").done()
    assert attached.split("pid")[0] == alone.split("pid")[0]


def test_a_killed_and_restarted_daemon_repeats_nothing_and_misses_nothing(daemon: Daemon, jobs: Jobs) -> None:
    job = jobs(daemon, "--steps", "120", "--sleep", "0.02")
    job.wait_step(40)
    daemon.kill()
    job.wait_step(60)
    daemon.start()
    job.wait_step(80)
    daemon.kill()
    daemon.start()
    job.done()

    (rank,) = daemon.settle("job")
    assert int(rank["recordsReceived"]) == int(rank["recordsProduced"])
    assert int(rank["recordsDropped"]) == 0
    series = points_of(daemon, "job")
    assert series, "no series of module 3"
    for site, steps in series.items():
        assert steps == list(range(120)), f"{site} has steps {steps}"
    ids = [event["id"] for event in daemon.ask("events", "job")["events"]]
    assert len(ids) == len(set(ids))


def test_a_killed_trainer_is_marked_died_and_its_last_steps_are_diagnosed(daemon: Daemon, jobs: Jobs) -> None:
    job = jobs(daemon, "--steps", "100", "--nan-at", "60", "--hang-at", "61")
    job.wait_step(61)
    job.process.kill()
    job.process.wait()

    (rank,) = daemon.settle("job")
    assert rank["state"] == "DIED"
    assert rank["lastStep"] == 61
    first, *others = daemon.ask("diagnose", "job")["hypotheses"]
    assert (first["kind"], first["module"], first["step"]) == ("NONFINITE_FORWARD", "3", 60)
    (death,) = [other for other in others if other["kind"] == "RANK_DIED"]
    places = [(entry["site"], entry["step"], entry["note"]) for entry in death["evidence"][1:]]
    # On a CPU the backward pass runs on the main thread, too, whose id is the process's. It hung after step 61.
    assert places == [("step", 61, f"Thread {job.process.pid} did this last, in the phase SYSTEM.")]


def test_a_trainer_killed_without_a_daemon_is_diagnosed_by_the_one_that_comes(
    stopped_daemon: Daemon, jobs: Jobs
) -> None:
    job = jobs(stopped_daemon, "--steps", "100", "--nan-at", "60", "--hang-at", "62", "--daemon", "none")
    job.wait_step(62)
    job.process.kill()
    job.process.wait()
    stopped_daemon.start()

    (rank,) = stopped_daemon.settle("job")
    assert rank["state"] == "DIED"
    first = stopped_daemon.ask("diagnose", "job")["hypotheses"][0]
    assert (first["kind"], first["module"], first["step"]) == ("NONFINITE_FORWARD", "3", 60)


def test_a_crash_long_after_the_ring_was_full_is_diagnosed_from_the_black_box(
    stopped_daemon: Daemon, jobs: Jobs
) -> None:
    job = jobs(stopped_daemon, "--steps", "4000", "--nan-at", "3000", "--hang-at", "3002", "--daemon", "none")
    job.wait_step(3002)
    job.process.kill()
    job.process.wait()
    stopped_daemon.start()

    (rank,) = stopped_daemon.settle("job")
    assert (rank["state"], rank["lastStep"]) == ("DIED", 3002)
    produced, received = int(rank["recordsProduced"]), int(rank["recordsReceived"])
    assert received + int(rank["recordsDropped"]) == produced
    assert received < produced // 3001 * 3000, "the ring reached to the fault: make the run longer"
    first = stopped_daemon.ask("diagnose", "job")["hypotheses"][0]
    assert (first["kind"], first["module"], first["step"]) == ("NONFINITE_FORWARD", "3", 3000)


def plant_garbage(directory: Path) -> list[str]:
    """Files that have no business in a segment directory; their names."""
    (directory / "foreign.txt").write_text("hello")
    (directory / "neuraldbg.noise").write_bytes(bytes(range(256)) * 64)
    (directory / "neuraldbg.0.0123456789abcdef.r0.1.0").write_bytes(b"")
    (directory / "neuraldbg.0.0123456789abcdef.r0.2.0").write_bytes(b"\x00" * 4096)
    (directory / "neuraldbg.0.0123456789abcdef.r0.3.0").mkdir()
    (directory / "neuraldbg.0.0123456789abcdef.r0.4.0").symlink_to(directory / "nowhere")
    return [path.name for path in directory.iterdir()]


def test_garbage_in_the_segment_directory_is_ignored_and_logged_once(stopped_daemon: Daemon, jobs: Jobs) -> None:
    names = plant_garbage(stopped_daemon.shm)
    template = jobs(stopped_daemon, "--steps", "5", "--daemon", "none", "--run", "template")
    template.done()
    (segment,) = [path for path in stopped_daemon.shm.iterdir() if path.name not in names]
    damaged = segment.with_name(segment.name[:-1] + ("0" if segment.name[-1] != "0" else "1"))
    damaged.write_bytes(b"\xff" * 65536)  # named like a segment, and none
    segment.unlink()

    stopped_daemon.start()
    jobs(stopped_daemon, "--steps", "30", "--run", "good").done()
    (rank,) = stopped_daemon.settle("good")
    assert rank["lastStep"] == 29
    time.sleep(1.0)  # several scans of the directory
    for name in [*names, damaged.name]:
        mentions = [line for line in stopped_daemon.log_text().splitlines() if name in line]
        assert len(mentions) <= 1, f"{name} was logged {len(mentions)} times"
    assert [line for line in stopped_daemon.log_text().splitlines() if damaged.name in line], "nothing said about it"
    runs = [run["name"] for run in stopped_daemon.ask("runs")["runs"]]
    assert runs == ["good"]


def test_two_jobs_at_once_are_two_runs(daemon: Daemon, jobs: Jobs) -> None:
    both = [jobs(daemon, "--steps", "60", "--run", name) for name in ("left", "right")]
    for job in both:
        job.done()
    for name in ("left", "right"):
        (rank,) = daemon.settle(name)
        assert rank["lastStep"] == 59
    assert {run["name"] for run in daemon.ask("runs")["runs"]} == {"left", "right"}


def test_sigterm_stores_and_exits_zero(daemon: Daemon, jobs: Jobs) -> None:
    job = jobs(daemon, "--steps", "200", "--sleep", "0.02")
    job.wait_step(30)
    assert daemon.stop() == 0
    daemon.start()
    job.done()
    (rank,) = daemon.settle("job")
    assert int(rank["recordsReceived"]) == int(rank["recordsProduced"])
