"""What the wheel ships must start on machines that have none of the libraries it was built with.

Programs need the C and C++ runtime and nothing else; the agent's library needs torch besides, which is there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDED = re.compile(r"\(NEEDED\)\s+Shared library: \[([^\]]+)\]")
RUNTIME = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "ld-linux-x86-64.so.2"}
TORCH = {"libtorch.so", "libtorch_cpu.so", "libc10.so"}
PROGRAMS = ("neuraldbgd", "neuraldbgctl")


def needed(binary: Path) -> set[str]:
    """Libraries that the dynamic linker must find, as the binary names them."""
    listed = subprocess.run(["readelf", "--dynamic", str(binary)], check=True, capture_output=True, text=True).stdout
    return set(NEEDED.findall(listed))


def programs() -> list[Path]:
    """As installed beside this interpreter, and as a release build makes them."""
    found = [Path(sys.executable).parent / name for name in PROGRAMS]
    found += [path for name in PROGRAMS for path in (ROOT / "build" / "release").glob(f"daemon/**/{name}")]
    return [path for path in found if path.is_file()]


def agent_libraries() -> list[Path]:
    """As installed, and as a release build makes them."""
    found = list((ROOT / "build" / "release").glob("agent/**/*neuraldbg_agent*.so"))
    package = find_spec("neuraldbg")
    for location in (package.submodule_search_locations or []) if package is not None else []:
        found += Path(location).rglob("*neuraldbg_agent*.so")
    return found


@pytest.mark.parametrize(("find", "more"), [(programs, set()), (agent_libraries, TORCH)])
def test_what_is_shipped_needs_the_runtime_alone(find: object, more: set[str]) -> None:
    assert callable(find)
    binaries = find()
    if not binaries:
        assert os.environ.get("CI") != "true", "build and install before the structure tests run"
        pytest.skip("nothing is built")
    for binary in binaries:
        libraries = needed(binary)
        assert "libc.so.6" in libraries, f"{binary}: readelf lists {libraries}"
        assert not libraries - RUNTIME - more, f"{binary} needs {sorted(libraries - RUNTIME - more)}"


def test_libraries_of_a_build_machine_are_recognised() -> None:
    listed = " 0x1 (NEEDED)             Shared library: [libfmt.so.9]\n 0x1 (NEEDED)  Shared library: [libc.so.6]\n"
    assert set(NEEDED.findall(listed)) - RUNTIME == {"libfmt.so.9"}
