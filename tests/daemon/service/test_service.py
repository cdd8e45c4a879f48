"""The gRPC interface of a running neuraldbgd, as a client sees it that knows only what reflection tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.e2e.conftest import Job
from tests.evaluate.daemon_process import Daemon
from tests.evaluate.reflection_client import ReflectionClient

STEPS = 40
TOKEN = "a-token-of-more-than-sixteen-characters"
NOBODY = 65534  # the user who owns nothing


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def daemon(token_file: Path) -> Iterator[Daemon]:
    """A daemon on a unix socket and on loopback TCP, with a token, that has seen one healthy run."""
    config = token_file.parent / "neuraldbgd.toml"
    config.write_text(f'token_file = "{token_file}"\n')
    with Daemon("--grpc", "127.0.0.1:0", "--config", str(config)) as running:
        Job(running, "--steps", str(STEPS)).done()
        running.settle("job")
        yield running
        running.require_no_crash()


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Iterator[ReflectionClient]:
    with_reflection = ReflectionClient(daemon.address)
    yield with_reflection
    with_reflection.close()


def tcp_address(daemon: Daemon) -> str:
    addresses = json.loads((daemon.data / "endpoint.json").read_text())["grpc"]
    return next(address for address in addresses if not address.startswith("unix:"))


def code_of(client: ReflectionClient, method: str, fields: dict[str, Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        client.call(f"neuraldbg.v1.{method}", fields)
    return caught.value.code(), caught.value.details()


def test_reflection_lists_every_service(client: ReflectionClient) -> None:
    assert set(client.services()) >= {
        "neuraldbg.v1.RunService",
        "neuraldbg.v1.SeriesService",
        "neuraldbg.v1.EventService",
        "neuraldbg.v1.DiagnosisService",
        "grpc.health.v1.Health",
    }


@pytest.mark.parametrize("service", ("", "neuraldbg.v1.RunService", "neuraldbg.v1.DiagnosisService"))
def test_health_is_serving(client: ReflectionClient, service: str) -> None:
    # Health is no service of ours, so its messages come from the wire format: field 1 is the name, and the status.
    request = b"\x0a" + bytes([len(service)]) + service.encode() if service else b""
    check = client.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(request, timeout=20) == b"\x08\x01"


METHODS_WITH_RUN = (
    "RunService/GetRun",
    "RunService/ListRanks",
    "RunService/ListSites",
    "SeriesService/QuerySeries",
    "SeriesService/Heatmap",
    "EventService/ListEvents",
    "DiagnosisService/Diagnose",
    "DiagnosisService/GetCausalGraph",
)


@pytest.mark.parametrize("method", METHODS_WITH_RUN)
def test_an_unknown_run_is_not_found(client: ReflectionClient, method: str) -> None:
    code, text = code_of(client, method, {"run": "nobody"})
    assert code == grpc.StatusCode.NOT_FOUND and "nobody" in text


@pytest.mark.parametrize("method", ("EventService/WatchEvents", "DiagnosisService/WatchDiagnoses"))
def test_a_stream_of_an_unknown_run_is_not_found(client: ReflectionClient, method: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(client.stream(f"neuraldbg.v1.{method}", {"run": "nobody"}, 20))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("method", "fields", "name"),
    (
        ("RunService/ListRuns", {"pageToken": "x"}, "page_token"),
        ("RunService/ListSites", {"run": "job", "rank": 7}, "rank"),
        ("SeriesService/QuerySeries", {"run": "job", "statistic": "x"}, "statistic"),
        ("SeriesService/QuerySeries", {"run": "job", "sites": ["x"]}, "sites"),
        ("SeriesService/QuerySeries", {"run": "job", "fromStep": 2, "toStep": 1}, "from_step"),
        ("SeriesService/Heatmap", {"run": "job", "statistic": "x"}, "statistic"),
        ("DiagnosisService/Diagnose", {"run": "job", "waitRank": 0}, "wait_rank"),
    ),
)
def test_a_bad_argument_is_named(client: ReflectionClient, method: str, fields: dict[str, Any], name: str) -> None:
    code, text = code_of(client, method, fields)
    assert code == grpc.StatusCode.INVALID_ARGUMENT and text.startswith(name)


def test_json_of_the_tool_is_the_mapping_of_the_messages(daemon: Daemon, client: ReflectionClient) -> None:
    for words, method in (
        (("ranks", "job"), "RunService/ListRanks"),
        (("sites", "job"), "RunService/ListSites"),
        (("events", "job"), "EventService/ListEvents"),
    ):
        assert daemon.ask(*words) == client.call(f"neuraldbg.v1.{method}", {"run": "job"})
    answer = client.call("neuraldbg.v1.DiagnosisService/Diagnose", {"run": "job"})
    assert daemon.ask("diagnose", "job") == answer["diagnosis"]


def test_pages_make_up_the_whole_list(client: ReflectionClient) -> None:
    whole = client.call("neuraldbg.v1.RunService/ListSites", {"run": "job"})["sites"]
    pages: list[Any] = []
    token = ""
    while True:
        fields = {"run": "job", "pageSize": 3, "pageToken": token}
        page = client.call("neuraldbg.v1.RunService/ListSites", fields)
        assert len(page["sites"]) <= 3
        pages += page["sites"]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert pages == whole and len(whole) > 3


def test_a_stream_of_a_finished_run_ends(client: ReflectionClient) -> None:
    stored = client.call("neuraldbg.v1.EventService/ListEvents", {"run": "job"})["events"]
    live = client.messages("neuraldbg.v1.EventService/WatchEvents", {"run": "job"}, 60)
    assert [message["event"] for message in live] == stored
    diagnoses = list(client.messages("neuraldbg.v1.DiagnosisService/WatchDiagnoses", {"run": "job"}, 60))
    assert len(diagnoses) == 1


def test_a_deadline_of_the_caller_is_honoured(client: ReflectionClient) -> None:
    fields = {"run": "not-yet-there", "waitStep": 1, "waitTimeout": "50s"}
    with pytest.raises(grpc.RpcError) as caught:
        client.call("neuraldbg.v1.DiagnosisService/Diagnose", fields, timeout=0.5)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_waiting_for_a_run_that_never_comes_ends_with_not_found(client: ReflectionClient) -> None:
    fields = {"run": "not-yet-there", "waitStep": 1, "waitTimeout": "0.3s"}
    code, _ = code_of(client, "DiagnosisService/Diagnose", fields)
    assert code == grpc.StatusCode.NOT_FOUND


def test_the_last_step_of_the_run_was_consumed(client: ReflectionClient) -> None:
    fields = {"run": "job", "waitStep": STEPS - 1}
    answer = client.call("neuraldbg.v1.DiagnosisService/Diagnose", fields)
    assert answer["stepConsumed"] and answer["diagnosis"]["stepsSeen"] == STEPS


# Runs as another user, who may not read the checkout: the program comes as text.
STRANGER = """
import sys, grpc
channel = grpc.insecure_channel(sys.argv[1])
metadata = [("authorization", "Bearer " + sys.argv[2])] if len(sys.argv) > 2 else []
try:
    channel.unary_unary("/neuraldbg.v1.RunService/ListRuns")(b"", metadata=metadata, timeout=30)
    print("OK")
except grpc.RpcError as error:
    print(error.code().name, error.details())
"""


def as_nobody(*command: str) -> subprocess.CompletedProcess[str]:
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=120, cwd="/")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def python_for_everybody() -> str:
    """An interpreter with grpc that user nobody can start, or skip."""
    if as_nobody(sys.executable, "-c", "import grpc").returncode != 0:
        pytest.skip("another user cannot read this Python environment")
    return sys.executable


@needs_root
def test_another_user_is_refused_on_loopback_tcp(daemon: Daemon) -> None:
    done = as_nobody(python_for_everybody(), "-c", STRANGER, tcp_address(daemon))
    assert done.stdout.startswith(f"UNAUTHENTICATED User {NOBODY} may not use"), done.stdout + done.stderr


@needs_root
def test_another_user_with_the_token_is_served(daemon: Daemon) -> None:
    python = python_for_everybody()
    assert as_nobody(python, "-c", STRANGER, tcp_address(daemon), TOKEN).stdout == "OK\n"
    wrong = as_nobody(python, "-c", STRANGER, tcp_address(daemon), TOKEN[:-1] + "X")
    assert wrong.stdout.startswith("UNAUTHENTICATED")


@needs_root
def test_another_user_cannot_open_the_unix_socket(daemon: Daemon) -> None:
    daemon.base.chmod(0o755)  # so that only the mode of the socket stands in the way
    done = as_nobody(python_for_everybody(), "-c", STRANGER, daemon.address)
    assert done.stdout.startswith("UNAVAILABLE"), done.stdout + done.stderr


def test_the_own_user_is_served_on_loopback_tcp(daemon: Daemon) -> None:
    done = daemon.ctl("runs", "--address", tcp_address(daemon))
    assert done.returncode == 0 and "job" in done.stdout


def test_a_wrong_token_file_is_a_usage_error(daemon: Daemon, tmp_path: Path) -> None:
    readable = tmp_path / "token"
    readable.write_text(TOKEN)
    readable.chmod(0o644)
    done = daemon.ctl("runs", "--token-file", str(readable))
    assert done.returncode == 2 and "chmod 600" in done.stderr


def test_health_says_not_serving_before_the_end(daemon: Daemon) -> None:
    """Must stay last: it ends the daemon. A watcher of health sees it go, or is cut off by the end itself."""
    channel = grpc.insecure_channel(daemon.address)
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=60)
    assert next(watch) == b"\x08\x01"
    assert daemon.stop() == 0
    assert next(watch) == b"\x08\x02"
