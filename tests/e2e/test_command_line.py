"""Every verb of neuraldbgctl in every format, on one finished faulty run, with a daemon and without."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Job
from tests.evaluate.daemon_process import Daemon

# Verb and arguments; exit code.
ON_RUNS = {
    ("runs",): 0,
    ("ranks", "job"): 0,
    ("sites", "job"): 0,
    ("events", "job"): 0,
    ("series", "job", "--site", "3", "--statistic", "rms"): 0,
    ("diagnose", "job"): 1,
    ("graph", "job"): 0,
    ("report", "job"): 0,
}
WITH_DAEMON = {("status",): 0, ("tail", "job"): 0, ("top", "job", "--count", "1"): 0}


@pytest.fixture(scope="module")
def finished() -> Iterator[Daemon]:
    """A daemon that has seen one run, with NaN from module 3 at step 70."""
    with Daemon() as daemon:
        Job(daemon, "--steps", "90", "--nan-at", "70").done()
        daemon.settle("job")
        yield daemon


def no_constants(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


@pytest.mark.parametrize("words", [*ON_RUNS, *WITH_DAEMON])
@pytest.mark.parametrize("format_", ("table", "json", "jsonl"))
def test_a_verb_in_a_format(finished: Daemon, words: tuple[str, ...], format_: str) -> None:
    done = finished.ctl(*words, "-o", format_)
    assert done.returncode == {**ON_RUNS, **WITH_DAEMON}[words], done.stderr
    assert done.stdout.strip()
    if format_ == "json":
        json.loads(done.stdout, parse_constant=no_constants)
    if format_ == "jsonl":
        for line in done.stdout.splitlines():
            assert isinstance(json.loads(line, parse_constant=no_constants), dict)


def test_shapes_of_the_answers(finished: Daemon) -> None:
    site = finished.ask("sites", "job")["sites"][0]
    assert set(site) >= {"site", "module", "phase", "kind", "records", "lastStep", "state"}
    rank = finished.ask("ranks", "job")["ranks"][0]
    counts = {"recordsProduced", "recordsReceived", "recordsDropped"}
    assert set(rank) >= {"rank", "incarnation", "host", "pid", "state", "lastStep", "lastSite"} | counts
    assert rank["rank"] == 0 and rank["state"] == "FINISHED"
    event = finished.ask("events", "job")["events"][0]
    assert set(event) >= {"id", "step", "rank", "site", "module", "phase", "transition", "value", "severity"}
    assert set(event["transition"]) == {"from", "to"}
    series = finished.ask("series", "job", "--site", "3", "--statistic", "rms")["series"][0]
    assert set(series) >= {"site", "module", "phase", "rank", "statistic", "points"}
    assert [int(point["step"]) for point in series["points"]][:70] == list(range(70))


def test_the_answer_for_people_says_verdict_why_and_next(finished: Daemon) -> None:
    text = finished.ctl("diagnose", "job").stdout
    for word in ("Verdict", "Why", "Next", "NONFINITE_FORWARD", "70", "3"):
        assert word in text, text


def test_a_run_may_be_left_out_or_given_as_an_option(finished: Daemon) -> None:
    expected = finished.ctl("events", "job", "-o", "json").stdout
    assert finished.ctl("events", "-o", "json").stdout == expected
    assert finished.ctl("events", "--run", "job", "-o", "json").stdout == expected


def test_a_range_of_steps(finished: Daemon) -> None:
    answer = finished.ask("series", "job", "--site", "3", "--statistic", "rms", "--from", "10", "--to", "12")
    for series in answer["series"]:
        assert [int(point["step"]) for point in series["points"]] == [10, 11, 12]


def test_file_writes_what_would_have_been_printed(finished: Daemon) -> None:
    target = finished.base / "events.jsonl"
    assert finished.ctl("events", "job", "-o", "jsonl", "--file", str(target)).returncode == 0
    assert target.read_text() == finished.ctl("events", "job", "-o", "jsonl").stdout


@pytest.mark.parametrize("shell", ("bash", "zsh", "fish"))
def test_completion(finished: Daemon, shell: str) -> None:
    done = finished.ctl("completion", shell)
    assert done.returncode == 0 and "diagnose" in done.stdout


def test_help_lists_the_verbs(finished: Daemon) -> None:
    text = finished.ctl("--help").stdout
    for words in (*ON_RUNS, *WITH_DAEMON):
        assert words[0] in text


def test_doctor_finds_everything_in_place(finished: Daemon) -> None:
    done = finished.ctl("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "was dropped" in done.stdout


def test_stored_runs_answer_the_same_without_a_daemon_and_say_so(finished: Daemon) -> None:
    """Must stay last: it ends the daemon of this file."""
    alive = {words: finished.ctl(*words, "-o", "json").stdout for words in ON_RUNS}
    assert finished.stop() == 0
    for words, code in ON_RUNS.items():
        done = finished.ctl(*words, "-o", "json")
        assert done.returncode == code, done.stderr
        assert done.stdout == alive[words], words
        assert "daemon" in done.stderr, f"{words} does not say that no daemon answered"
