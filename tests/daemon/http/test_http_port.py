"""The HTTP port of a running neuraldbgd, as a scraper, a browser and another user of the host meet it."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.evaluate.daemon_process import ROOT, Daemon

TOKEN = "a-token-of-more-than-sixteen-characters"
NOBODY = 65534  # the user who owns nothing
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    config = token.parent / "neuraldbgd.toml"
    config.write_text(f'token_file = "{token}"\n')
    with Daemon("--config", str(config)) as running:
        yield running
        running.require_no_crash()


def http_address(daemon: Daemon) -> str:
    address: str = json.loads((daemon.data / "endpoint.json").read_text())["http"]
    return address


def get(daemon: Daemon, path: str, **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(http_address(daemon), timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def documented() -> dict[str, str]:
    """Name to type, from the tables of docs/metrics.md."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    return dict(re.findall(r"^\| `(neuraldbg_\w+)` \| (counter|gauge) \|", text, re.MULTILINE))


def test_a_scraper_can_read_every_metric_and_the_documentation_names_each(daemon: Daemon) -> None:
    status, text, headers = get(daemon, "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    served = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    assert len(served) == len(dict(served)) and dict(served) == documented()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    # The parser takes the ending of a counter off its name.
    assert set(families) == {name.removesuffix("_total") if kind == "counter" else name for name, kind in served}
    for name, kind in served:
        assert name.endswith("_total") == (kind == "counter"), name
        family = families[name.removesuffix("_total") if kind == "counter" else name]
        assert family.documentation and family.type == kind
    (build,) = families["neuraldbg_build_info"].samples
    assert build.value == 1 and set(build.labels) == {"version", "segment_layout"}
    assert families["neuraldbg_process_resident_memory_bytes"].samples[0].value > 0
    assert families["neuraldbg_store_bytes"].samples[0].value > 0


def test_counts_of_the_process_grow(daemon: Daemon) -> None:
    def value(name: str) -> float:
        families = text_string_to_metric_families(get(daemon, "/metrics")[1])
        return float(next(family.samples[0].value for family in families if family.name == name))

    names = ("neuraldbg_process_cpu_seconds", "neuraldbg_uptime_seconds")
    before = [value(name) for name in names]
    assert all(later > earlier for later, earlier in zip([value(name) for name in names], before, strict=True))


def test_health_of_a_daemon_that_records(daemon: Daemon) -> None:
    assert get(daemon, "/healthz")[:2] == (200, "ok\n")


def test_a_page_of_somebody_else_gets_nothing(daemon: Daemon) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        status, text, answered = get(daemon, "/metrics", **headers)
        assert status == 403 and text.count("\n") == 1 and "neuraldbg_" not in text
        assert "Access-Control-Allow-Origin" not in answered


# Runs as another user, with the Python of the system: that user may not read the checkout.
STRANGER = """
import sys, http.client
connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
headers = {"Authorization": "Bearer " + sys.argv[2]} if len(sys.argv) > 2 else {}
connection.request("GET", "/metrics", headers=headers)
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


def as_nobody(*arguments: str) -> str:
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "/usr/bin/python3", "-c", STRANGER]
    done = subprocess.run([*prefix, *arguments], capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_root
def test_another_user_needs_the_token(daemon: Daemon) -> None:
    if not Path("/usr/bin/python3").exists():
        pytest.skip("no Python that another user can start")
    address = http_address(daemon)
    assert as_nobody(address).startswith(f"401 User {NOBODY} may not use")
    assert as_nobody(address, TOKEN[:-1] + "X").startswith("401 ")
    assert as_nobody(address, TOKEN).startswith("200 # HELP neuraldbg_")


def test_an_open_connection_does_not_hold_the_end_up(daemon: Daemon) -> None:
    """Must stay last: it ends the daemon."""
    connection = http.client.HTTPConnection(http_address(daemon), timeout=60)
    connection.request("GET", "/healthz")
    connection.getresponse().read()
    assert daemon.stop() == 0
    assert not (daemon.data / "endpoint.json").exists()
