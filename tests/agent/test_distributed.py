"""Two ranks (gloo): what each of them observes of itself, and that training does not notice.

Verdicts over ranks are tested elsewhere; here every planned site reports on every rank, and tells of this rank alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from neuraldbg.release import OLD

from tests.agent.rows import LEVELS
from tests.agent.two_rank_job import RANKS, STEPS, WAYS
from tests.evaluate.daemon_process import ROOT

TIMEOUT_S = 300  # catches a hang

EAGER = {"ddp", "ddp_buckets", "ddp_static", "ddp_accumulates", "fsdp", "tensor_parallel"}


def ranks_of(way: str, directory: Path) -> list[tuple[list[dict[str, Any]], str]]:
    """What each rank told, and what it logged."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": str(RANKS),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.agent.two_rank_job", way, str(rank), str(directory / "rendezvous")],
            cwd=ROOT,
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    told = []
    try:
        for process in processes:
            output, errors = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, errors
            told.append((json.loads(output.splitlines()[-1]), errors))
    finally:
        for process in processes:
            process.kill()
    return told


def require_untouched(bare: dict[str, Any], again: dict[str, Any], watched: dict[str, Any]) -> None:
    assert bare["digest"] == again["digest"], "the comparison itself is not deterministic"
    assert watched["digest"] == bare["digest"]
    assert watched["graphs"] == bare["graphs"]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "compiled_ddp_buckets"])
def test_every_site_reports_on_every_rank_and_nothing_changes(way: str, tmp_path: Path) -> None:
    told = ranks_of(way, tmp_path)
    for rank, ((bare, again, watched), errors) in enumerate(told):
        require_untouched(bare, again, watched)
        assert (watched["rank"], watched["exact"], watched["level"]) == (
            rank,
            True,
            LEVELS["eager" if way in EAGER else "compiled"],
        )
        once = dict.fromkeys(watched["planned"], 1)
        if way == "ddp_accumulates":
            of_passes = [site for site in once if ":" in site or site.startswith(("batch", "loss"))]
            once |= dict.fromkeys(of_passes, 2)
        if OLD and way == "tensor_parallel_compiled_blocks":  # no rule for how a tap is spread over a mesh
            counted = watched["counts"][0]
            once = {site: times for site, times in once.items() if not site.endswith(".grad") or site in counted}
        assert watched["counts"] == [once] * STEPS
        assert "neuraldbg" not in errors
    # The ranks saw different batches. What the reduction made equal must not be all that they report.
    first, second = (watched for (_, _, watched), _ in told)
    assert first["head_gradient"] != second["head_gradient"]
    assert first["parameter_gradient"] == second["parameter_gradient"] or way.startswith(("fsdp", "tensor"))


def test_a_graph_that_is_cut_into_buckets_is_left_alone_and_named(tmp_path: Path) -> None:
    for (bare, again, watched), errors in ranks_of("compiled_ddp_buckets", tmp_path):
        require_untouched(bare, again, watched)
        assert watched["level"] == "not_observed"
        assert not [site for site in watched["planned"] if site.endswith((":output", ".grad"))]
        assert {"loss", "batch[0]", "first.weight", "optimizer[0]", "step"} <= set(watched["planned"])
        (line,) = [line for line in errors.splitlines() if "neuraldbg" in line]
        assert "buckets" in line and "optimize_ddp" in line


def test_parts_of_distributed_tensors_are_observed_and_labelled(tmp_path: Path) -> None:
    for (_, _, watched), _ in ranks_of("tensor_parallel", tmp_path):
        assert watched["labels"]["blocks.0.fc.weight"] == "DTensor (Shard(dim=0)) of [64, 32]"
        assert watched["labels"]["blocks.0.proj.weight"] == "DTensor (Shard(dim=1)) of [32, 64]"
        assert watched["labels"]["blocks.0.qkv.weight"] == ""
        # Of an activation, too, the part: 4 samples, 12 tokens, half of 64 units.
        assert watched["elements"]["blocks.0.act:output"] == 4 * 12 * 32
        assert watched["elements"]["blocks.0.act:output.grad"] == 4 * 12 * 32
        assert watched["elements"]["blocks.0.fc.weight"] == 32 * 32
