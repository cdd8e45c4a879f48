"""What the agent's Python tests share: a directory for segments, a clean compiler, and what a segment holds."""

from __future__ import annotations

import collections
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import neuraldbg
import pytest
import torch
import torch._dynamo as dynamo
from torch._dynamo.utils import counters

from tests.evaluate.daemon_process import binary

NOT_OBSERVED = 4  # ObservationLevel::kNotObserved

if "tests.agent.rows" not in sys.modules:  # who imports the rows and not this file runs none of them
    pytest.register_assert_rewrite("tests.agent.rows")  # so that a row that fails shows its values


class Segment:
    """The contents of one segment, read by the same code as the daemon's."""

    def __init__(self, path: str) -> None:
        dump = subprocess.run(
            [str(binary("neuraldbg-segment-dump")), path], capture_output=True, text=True, check=True, timeout=60
        )
        self.sites: dict[str, dict[str, Any]] = {}
        self.names: dict[int, str] = {}
        self.run: dict[str, Any] = {}
        self.marks: list[dict[str, Any]] = []
        self.inits: dict[str, dict[str, Any]] = {}
        self.sinks: set[str] = set()
        self.edges: set[tuple[str, str]] = set()
        self.records: list[dict[str, Any]] = []
        edges, sinks, inits = [], [], []
        for text in dump.stdout.splitlines():
            line = json.loads(text)
            entry = line.get("entry")
            if entry == "site":
                self.sites[line["name"]] = line
                self.names[line["id"]] = line["name"]
            elif entry == "run":
                self.run = line
            elif entry == "mark":
                self.marks.append(line)
            elif entry == "edge":
                edges.append((line["producer"], line["consumer"]))
            elif entry == "sink":
                sinks.append(line["site"])
            elif entry == "parameter_init":
                inits.append(line)
            elif "record" in line:
                self.records.append(line)
        self.edges = {(self.names[a], self.names[b]) for a, b in edges}
        self.sinks = {self.names[site] for site in sinks}
        self.inits = {self.names[line["site"]]: line for line in inits}

    def of(self, site: str, **fields: Any) -> list[dict[str, Any]]:
        """Records of a site whose fields have the given values."""
        number = self.sites[site]["id"]
        return [
            record
            for record in self.records
            if record["site"] == number and all(record[key] == value for key, value in fields.items())
        ]

    def planned(self) -> set[str]:
        return {name for name, site in self.sites.items() if site["level"] != NOT_OBSERVED}

    def counts(self, step: int) -> collections.Counter[str]:
        """Records per site in one step."""
        return collections.Counter(self.names[record["site"]] for record in self.records if record["step"] == step)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread (sums must not depend on how work is split), no daemon, a compiler that has seen nothing."""
    for name in ("SHM_DIR", "DATA_DIR"):
        directory = tmp_path / name.lower()
        directory.mkdir()
        monkeypatch.setenv(f"NEURALDBG_{name}", str(directory))
    monkeypatch.setenv("NEURALDBG_DAEMON", "none")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("NEURALDBG_RUN", "NEURALDBG_LAUNCH", "NEURALDBG_ADDRESS", "NEURALDBG_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    forget_compiled()
    yield
    torch.set_num_threads(threads)
    forget_compiled()


def forget_compiled() -> None:
    """Also takes back the hook guards that attach switches on, so that bare runs are as bare as a user's."""
    dynamo.reset()
    dynamo.config.skip_nnmodule_hook_guards = True
    counters.clear()


def graphs() -> tuple[int, int]:
    """Compiled graphs and graph breaks since the compiler was last made to forget."""
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


@pytest.fixture
def attach() -> Iterator[Callable[..., neuraldbg.Session]]:
    """neuraldbg.attach with every step observed; sessions that a failing test leaves open are closed."""
    sessions: list[neuraldbg.Session] = []

    def attach_every_step(model: Any, **arguments: Any) -> neuraldbg.Session:
        session = neuraldbg.attach(model, **{"cadence": 1, "run": "test"} | arguments)
        assert session.enabled
        sessions.append(session)
        return session

    yield attach_every_step
    for session in sessions:
        session.detach()
