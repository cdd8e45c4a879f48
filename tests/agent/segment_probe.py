"""A segment of a test's own, read back with neuraldbg-segment-dump."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from neuraldbg import native, ops

ROOT = Path(__file__).resolve().parents[2]


def dump_tool() -> Path:
    """The tool of this checkout that was built last."""
    named = os.environ.get("NEURALDBG_SEGMENT_DUMP")
    found = [Path(named)] if named else list((ROOT / "build").glob("*/tests/tools/neuraldbg-segment-dump"))
    if not found:
        pytest.skip("neuraldbg-segment-dump is not built (./run test builds it)")
    return max(found, key=lambda path: path.stat().st_mtime)


class Probe:
    """A segment of this test's own, and one site after the other in it."""

    def __init__(self, directory: Path, capacity: int = 4096) -> None:
        options = native.SessionOptions(
            shm_directory=str(directory).encode(),
            run_name=b"probe",
            launch=b"test",
            host=b"here",
            framework=b"torch",
            world_size=1,
            lane_capacity=capacity,
        )
        self.segment = native.Segment(options)
        self._seen = 0
        self._sites = 0

    def slot(
        self, unit_mode: int = 0, saturation: int = 0, dead: int = 0, role: int = 0, phase: int = 1
    ) -> torch.Tensor:
        none = native.NO_SITE
        self._sites += 1
        site = native.SiteRecord(
            name=f"site{self._sites}".encode(),
            module=b"m",
            module_kind=b"M",
            owner=b"",
            role=role,
            phase=phase,
            dtype=1,
            twin=none,
            covered_by=none,
            optimizer_group=none,
            unit_mode=unit_mode,
            saturation=saturation,
            dead=dead,
        )
        return torch.tensor([self.segment.slot(self.segment.add_site(site))])

    def lines(self) -> list[dict]:
        command = [str(dump_tool()), self.segment.path, "--release"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [json.loads(line) for line in output.splitlines()]

    def records(self) -> list[dict]:
        """The records since the last call."""
        return [line for line in self.lines() if "record" in line]

    def observe(self, tensor: torch.Tensor, **site: int) -> dict:
        ops.observe(tensor, self.slot(**site))
        (record,) = self.records()
        return record
