"""The agent's library shares a process with libtorch, which exports protobuf symbols and has no stable C++ ABI.

Therefore it may need neither protobuf nor gRPC (two copies clash), and nothing of c10:: or at:: (they differ from
release to release); what it needs of torch is the stable C interface.
"""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = ("google::protobuf", "grpc", "absl::", "c10::", "at::", "torch::jit", "torch::autograd")


def agent_libraries() -> list[Path]:
    """The agent as built in any build folder, and as installed."""
    found = [*ROOT.glob("build/*/agent/*neuraldbg_agent*.so"), *ROOT.glob("build/*/agent/**/*neuraldbg_agent*.so")]
    package = find_spec("neuraldbg")
    if package is not None and package.submodule_search_locations:
        for location in package.submodule_search_locations:
            found += Path(location).rglob("*neuraldbg_agent*.so")
    return sorted(set(found))


def undefined_symbols(library: Path) -> list[str]:
    """Demangled names that the dynamic linker must find elsewhere."""
    listed = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", "--demangle", str(library)], check=True, capture_output=True, text=True
    ).stdout
    return [line.split(maxsplit=1)[1] for line in listed.splitlines() if line.strip()]


def forbidden(symbols: list[str]) -> list[str]:
    """The symbols whose qualified name (not merely an argument type) belongs to a library that must not be needed."""
    return [
        symbol for symbol in symbols if symbol.startswith(FORBIDDEN) or symbol.split(" for ")[-1].startswith(FORBIDDEN)
    ]


def test_the_agent_needs_no_symbol_that_could_clash() -> None:
    libraries = agent_libraries()
    if not libraries:
        assert os.environ.get("CI") != "true", "the agent must be built before the structure tests run"
        pytest.skip("the agent is not built")
    for library in libraries:
        symbols = undefined_symbols(library)
        assert symbols, f"{library}: nm lists nothing"
        assert not forbidden(symbols), f"{library}: {forbidden(symbols)}"


def test_the_push_path_reads_thread_locals_through_descriptors() -> None:
    """The default model calls __tls_get_addr (a push costs twice as much), the static one exhausts a small block."""
    for library in agent_libraries():
        assert not [symbol for symbol in undefined_symbols(library) if symbol.startswith("__tls_get_addr")], library
        dynamic = subprocess.run(["readelf", "--dynamic", str(library)], check=True, capture_output=True, text=True)
        assert "STATIC_TLS" not in dynamic.stdout, library


def test_forbidden_symbols_are_recognised() -> None:
    symbols = ["google::protobuf::Message::Clear()", "grpc_init", "at::_ops::add(at::Tensor const&)",
               "typeinfo for c10::Error", "memcpy@GLIBC_2.14", "std::terminate()@GLIBCXX_3.4"]  # fmt: skip
    assert forbidden(symbols) == symbols[:4]
