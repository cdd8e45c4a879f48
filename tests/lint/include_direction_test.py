"""Data flows one way through the rooms, and so do includes: a room may include itself and what stands before it.

The table is the contract; docs/architecture.md draws it. A new arrow is a design decision, to be made here first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)
SUFFIXES = {".h", ".cc", ".inc"}

# Rooms that are functions of the records: no clock, file, thread or chance, or a replay would give another verdict.
IMPURE = (
    "chrono", "ctime", "time.h", "sys/", "unistd.h", "fcntl.h", "thread", "mutex", "condition_variable", "future",
    "fstream", "iostream", "filesystem", "random", "spdlog", "sqlite3.h", "grpc",
)  # fmt: skip
PROTOBUF = ("google/protobuf", "grpc", "neuraldbg/v1")
DAEMON_LIBRARIES = ("absl", "spdlog", "sqlite3.h", "zstd.h", "CLI/", "toml", "nlohmann", "prometheus", "boost/beast")


@dataclass(frozen=True)
class Room:
    """What the sources of one folder may include: `allowed` paths of ours, nothing that starts with `forbidden`."""

    allowed: tuple[str, ...]
    forbidden: tuple[str, ...] = ()


TABLE: dict[str, Room] = {
    "shared": Room(("shared",), (*PROTOBUF, *DAEMON_LIBRARIES, "torch", "ATen", "c10")),
    "shared/series": Room(("shared/series",), (*PROTOBUF, *IMPURE, "torch", "ATen", "c10")),
    "agent/src": Room(("agent/src", "agent/include", "shared"), (*PROTOBUF, *DAEMON_LIBRARIES, "ATen", "c10")),
    "daemon/model": Room(("daemon/model", "shared"), PROTOBUF),
    "daemon/ingest": Room(("daemon/ingest", "daemon/model", "shared"), PROTOBUF),
    "daemon/detect": Room(
        ("daemon/detect", "daemon/model", "shared/series", "shared/record.h", "shared/manifest.h"),
        (*PROTOBUF, *IMPURE),
    ),
    "daemon/infer": Room(("daemon/infer", "daemon/detect", "daemon/model", "shared/series"), (*PROTOBUF, *IMPURE)),
    "daemon/store": Room(("daemon/store", "daemon/model", "shared"), PROTOBUF),
    "daemon/service": Room(
        ("daemon/service", "daemon/store", "daemon/model", "daemon/infer/run_engine.h", "neuraldbg/v1")
    ),
    "daemon/export": Room(("daemon/export", "daemon/store/store.h", "daemon/model", "shared"), PROTOBUF),
    "daemon/http": Room(("daemon/http", "daemon/service", "daemon/model/daemon_warnings.h"), PROTOBUF),
    # Verbs on stored runs answer without a daemon, with the queries that the daemon answers with; import writes.
    "daemon/cli": Room(
        (
            "daemon/cli",
            "daemon/service",
            "daemon/store/store.h",
            "daemon/store/run_import.h",
            "daemon/model",
            "daemon/app/config.h",
            "neuraldbg/v1",
        )
    ),
    "daemon/app": Room(("daemon", "shared", "neuraldbg/v1")),
}
OURS = ("shared/", "agent/", "daemon/", "proto/", "tests/", "neuraldbg/")


def starts_with(include: str, prefixes: tuple[str, ...]) -> bool:
    """Whether the path is one of the prefixes or lies below one (a prefix without slash also matches `prefix*`)."""
    return any(
        include == prefix or include.startswith(prefix if prefix.endswith("/") else prefix + "/") for prefix in prefixes
    ) or any(include.startswith(prefix) for prefix in prefixes if prefix in {"grpc", "toml", "sqlite3.h"})


def violations(source: str, room: Room) -> list[str]:
    """The includes of a source text that its room does not allow, each with the reason."""
    found = []
    for quote, include in INCLUDE.findall(source):
        if starts_with(include, room.forbidden):
            found.append(f"{include}: this room links no such library")
        elif include.startswith(OURS) and not starts_with(include, room.allowed):
            found.append(f"{include}: points against the flow of data")
        elif quote == '"' and "/" not in include:
            found.append(f"{include}: includes name their room")
    return found


def sources(room: str) -> list[Path]:
    """All C++ files of a room."""
    return sorted(path for path in (ROOT / room).rglob("*") if path.suffix in SUFFIXES)


@pytest.mark.parametrize("name", TABLE)
def test_includes_point_one_way(name: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {violation}"
        for path in sources(name)
        for violation in violations(path.read_text(encoding="utf-8"), TABLE[name])
    ]
    assert not found, "\n".join(found)


def test_every_source_lies_in_a_room() -> None:
    strays = [
        str(path.relative_to(ROOT))
        for top in ("shared", "agent", "daemon")
        for path in sources(top)
        if not any(path.is_relative_to(ROOT / room) for room in TABLE)
        and path != ROOT / "daemon" / "main.cc"
        and not path.is_relative_to(ROOT / "agent" / "include")
    ]
    assert not strays, f"add their folders to the table: {strays}"


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("shared", '#include "daemon/model/sample.h"'),
        ("shared", "#include <torch/csrc/stable/library.h>"),
        ("shared", '#include "tests/shared/child_process.h"'),
        ("agent/src", "#include <google/protobuf/message.h>"),
        ("daemon/detect", '#include "daemon/infer/chain.h"'),
        ("daemon/detect", '#include "shared/ring_reader.h"'),
        ("daemon/detect", "#include <chrono>"),
        ("daemon/infer", "#include <thread>"),
        ("daemon/ingest", '#include "daemon/store/store.h"'),
        ("daemon/store", "  #  include <grpcpp/grpcpp.h>"),
        ("daemon/service", '#include "daemon/infer/chain.h"'),
        ("daemon/export", '#include "daemon/http/http_server.h"'),
        ("daemon/http", '#include "daemon/store/store.h"'),
        ("daemon/cli", '#include "daemon/ingest/rank_reader.h"'),
        ("daemon/app", '#include "tests/daemon/x.h"'),
        ("daemon/app", '#include "config.h"'),
    ],
)
def test_the_table_catches_a_wrong_arrow(room: str, line: str) -> None:
    assert violations(f"#include <vector>\n{line}\n", TABLE[room])


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("shared", '#include "shared/record.h"'),
        ("shared", "#include <boost/crc.hpp>"),
        ("daemon/detect", '#include "shared/record.h"'),
        ("daemon/service", '#include "neuraldbg/v1/runs.pb.h"'),
        ("daemon/app", '#include "daemon/infer/chain.h"'),
    ],
)
def test_the_table_lets_a_right_arrow_pass(room: str, line: str) -> None:
    assert not violations(f"#include <vector>\n{line}\n", TABLE[room])
