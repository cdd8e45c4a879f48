"""The daemon as a stranger meets it: a stock grpcio client that learns everything by reflection."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from tests.e2e.conftest import Jobs
from tests.evaluate.daemon_process import Daemon
from tests.evaluate.reflection_client import ReflectionClient

PACKAGE = "neuraldbg.v1"


@pytest.fixture
def client(daemon: Daemon) -> Iterator[ReflectionClient]:
    connected = ReflectionClient(daemon.address)
    yield connected
    connected.close()


@pytest.fixture
def faulty(daemon: Daemon, jobs: Jobs) -> str:
    """A finished run with a fault in module 3 at step 70."""
    jobs(daemon, "--steps", "90", "--nan-at", "70").done()
    daemon.settle("job")
    return "job"


SERVING = b"\x08\x01"  # HealthCheckResponse with status = 1


def health(client: ReflectionClient, service: str) -> bytes:
    """gRPC's own health service, by hand: the C++ server does not describe that one to reflection."""
    check = client.channel.unary_unary("/grpc.health.v1.Health/Check")
    name = service.encode()
    return check(b"\x0a" + bytes([len(name)]) + name if name else b"", timeout=20)


def code_of(call: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()  # type: ignore[operator]
    return error.value.code(), error.value.details()


def test_reflection_names_all_services_and_health_is_serving(client: ReflectionClient) -> None:
    names = client.services()
    for service in ("RunService", "SeriesService", "EventService", "DiagnosisService"):
        assert f"{PACKAGE}.{service}" in names
    assert "grpc.health.v1.Health" in names
    for service in ("", f"{PACKAGE}.RunService"):
        assert health(client, service) == SERVING


def test_unary_calls_and_the_command_line_tool_give_the_same_answer(
    daemon: Daemon, client: ReflectionClient, faulty: str
) -> None:
    of_run = {"run": faulty}
    assert client.call(f"{PACKAGE}.RunService/ListRanks", of_run)["ranks"] == daemon.ask("ranks", faulty)["ranks"]
    assert client.call(f"{PACKAGE}.RunService/ListSites", of_run)["sites"] == daemon.ask("sites", faulty)["sites"]
    assert client.call(f"{PACKAGE}.EventService/ListEvents", of_run)["events"] == daemon.ask("events", faulty)["events"]
    diagnosis = client.call(f"{PACKAGE}.DiagnosisService/Diagnose", of_run)["diagnosis"]
    assert diagnosis == daemon.ask("diagnose", faulty)
    first = diagnosis["hypotheses"][0]
    assert (first["kind"], first["module"], first["step"]) == ("NONFINITE_FORWARD", "3", 70)
    assert first["evidence"] and first["chain"] and first["remedy"]
    assert math.isclose(sum(link["share"] for link in first["chain"]), 1.0, abs_tol=0.01)


def test_evidence_can_be_checked_in_the_stored_series(client: ReflectionClient, faulty: str) -> None:
    diagnosis = client.call(f"{PACKAGE}.DiagnosisService/Diagnose", {"run": faulty})["diagnosis"]
    known = {site["site"] for site in client.call(f"{PACKAGE}.RunService/ListSites", {"run": faulty})["sites"]}
    for evidence in diagnosis["hypotheses"][0]["evidence"]:
        assert evidence["site"] in known
        series = client.call(
            f"{PACKAGE}.SeriesService/QuerySeries",
            {"run": faulty, "sites": [evidence["site"]], "fromStep": evidence["step"], "toStep": evidence["step"]},
        )["series"]
        assert series, f"nothing is stored for {evidence}"


def test_lists_come_in_pages_and_add_up(client: ReflectionClient, faulty: str) -> None:
    whole = client.call(f"{PACKAGE}.RunService/ListSites", {"run": faulty})["sites"]
    pages, token = [], ""
    while True:
        page = client.call(f"{PACKAGE}.RunService/ListSites", {"run": faulty, "pageSize": 3, "pageToken": token})
        assert len(page["sites"]) <= 3
        pages += page["sites"]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert pages == whole and len(whole) > 3


def test_a_stream_follows_a_running_job_and_repeats_nothing(
    daemon: Daemon, client: ReflectionClient, jobs: Jobs
) -> None:
    job = jobs(daemon, "--steps", "100", "--sleep", "0.02", "--nan-at", "70")
    job.wait_step(20)
    arrived: list[tuple[int, float]] = []

    def follow() -> None:
        for message in client.messages(f"{PACKAGE}.EventService/WatchEvents", {"run": "job"}, timeout=60):
            arrived.append((message["event"]["id"], time.monotonic()))

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    job.wait_step(75)
    deadline = time.monotonic() + 20
    while not arrived and time.monotonic() < deadline:
        time.sleep(0.05)
    assert arrived, "the fault never reached the stream"
    assert job.process.poll() is None, "events came only after the job had ended"
    job.done()
    daemon.settle("job")
    listed = [e["id"] for e in client.call(f"{PACKAGE}.EventService/ListEvents", {"run": "job"})["events"]]
    while len(arrived) < len(listed) and time.monotonic() < deadline + 20:
        time.sleep(0.05)
    assert [number for number, _ in arrived] == listed


def test_a_stream_of_diagnoses_ends_with_the_fault(daemon: Daemon, client: ReflectionClient, jobs: Jobs) -> None:
    job = jobs(daemon, "--steps", "90", "--nan-at", "70", "--sleep", "0.01")
    job.wait_step(5)
    verdicts = []
    for message in client.messages(f"{PACKAGE}.DiagnosisService/WatchDiagnoses", {"run": "job"}, timeout=60):
        verdicts.append(message["diagnosis"]["verdict"])
        if verdicts[-1] == "FAULT":
            break
    assert verdicts[-1] == "FAULT"
    job.done()


def test_errors_are_named(client: ReflectionClient, faulty: str) -> None:
    diagnose, series = f"{PACKAGE}.DiagnosisService/Diagnose", f"{PACKAGE}.SeriesService/QuerySeries"
    code, text = code_of(lambda: client.call(diagnose, {"run": "nobody"}))
    assert code is grpc.StatusCode.NOT_FOUND and "nobody" in text
    code, text = code_of(lambda: client.call(series, {"run": faulty, "statistic": "beauty"}))
    assert code is grpc.StatusCode.INVALID_ARGUMENT and "statistic" in text
    code, text = code_of(lambda: client.call(f"{PACKAGE}.RunService/ListRuns", {"pageToken": "no such page"}))
    assert code is grpc.StatusCode.INVALID_ARGUMENT and "page_token" in text


def test_deadlines_and_cancellation_are_honoured(daemon: Daemon, client: ReflectionClient, jobs: Jobs) -> None:
    job = jobs(daemon, "--steps", "400", "--sleep", "0.02")
    job.wait_step(5)
    waiting = {"run": "job", "waitStep": 100000, "waitTimeout": "60s"}
    code, _ = code_of(lambda: client.call(f"{PACKAGE}.DiagnosisService/Diagnose", waiting, timeout=0.5))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    stream = client.stream(f"{PACKAGE}.EventService/WatchEvents", {"run": "job"})
    stream.cancel()
    assert stream.code() is grpc.StatusCode.CANCELLED
    assert client.call(f"{PACKAGE}.RunService/ListRuns")["runs"][0]["name"] == "job"
    job.process.kill()
