"""One of two ranks (gloo, CPU) that trains a small model in one way, bare twice and watched once; prints JSON.

Arguments: way, rank, rendezvous file. What is compared and counted is decided in test_distributed.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import neuraldbg
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.agent.conftest import Segment, forget_compiled, graphs
from tests.agent.small_models import CLASSES, MODELS, Block, batch, loss_of

STEPS = 3
RANKS = 2


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="aot_eager")


def blocks_compiled(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(backend="aot_eager", fullgraph=True)
    return model


def sharded(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module)
    return fully_shard(model)


def tensor_parallel(model: nn.Module) -> nn.Module:
    """Split over the ranks inside each block, where the activations are DTensors."""
    mesh = init_device_mesh("cpu", (RANKS,))
    plan = {"fc": ColwiseParallel(use_local_output=False), "proj": RowwiseParallel()}
    for module in model.modules():
        if isinstance(module, Block):
            parallelize_module(module, mesh, plan)
    return model


class Wide(nn.Module):
    """More than a bucket's smallest size, 1 MiB, in each of several layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 600)
        self.middle = nn.ModuleList(nn.Linear(600, 600) for _ in range(2))
        self.head = nn.Linear(600, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        for layer in self.middle:
            x = torch.tanh(layer(x))
        return self.head(x)


# What each way makes of the user's model. Several buckets: 2 KiB hold a few parameters.
WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "ddp": DistributedDataParallel,
    "ddp_buckets": lambda model: DistributedDataParallel(model, bucket_cap_mb=2 / 1024),
    "ddp_static": lambda model: DistributedDataParallel(model, static_graph=True),
    "ddp_accumulates": DistributedDataParallel,
    "ddp_of_compiled": lambda model: DistributedDataParallel(compiled(model)),
    "compiled_ddp": lambda model: compiled(DistributedDataParallel(model)),
    "compiled_ddp_buckets": lambda model: compiled(DistributedDataParallel(model, bucket_cap_mb=1)),
    "fsdp": sharded,
    "fsdp_of_compiled_blocks": lambda model: sharded(blocks_compiled(model)),
    "tensor_parallel": tensor_parallel,
    "tensor_parallel_compiled_blocks": lambda model: blocks_compiled(tensor_parallel(model)),
}


def whole(value: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; any other as it is."""
    return value.to_local() if hasattr(value, "to_local") else value


def train(way: str, rank: int, watched: bool) -> dict[str, Any]:
    """Trains and returns what it left: a digest of losses, gradients and parameters, graphs, and its records."""
    forget_compiled()
    torch.manual_seed(0)
    kind = "mlp" if way == "compiled_ddp_buckets" else "gpt"
    model = Wide() if kind == "mlp" else MODELS["gpt"]()
    forward = WAYS[way](model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    session = neuraldbg.attach(model, optimizer=optimizer, run="two", cadence=1) if watched else None
    passes = 2 if way == "ddp_accumulates" else 1
    digest = hashlib.sha256()
    for step in range(STEPS):
        for part in range(passes):
            x, y = batch(kind, seed=100 * step + 10 * part + rank)
            silent = forward.no_sync() if part + 1 < passes else contextlib.nullcontext()
            with silent:
                loss = loss_of(forward(x), y)
                if session is not None:
                    session.log_loss(loss, targets=y)
                loss.backward()
            digest.update(loss.detach().numpy().tobytes())
        for parameter in model.parameters():
            digest.update(whole(parameter.grad).numpy().tobytes())
        optimizer.step()
        optimizer.zero_grad()
    for parameter in model.parameters():
        digest.update(whole(parameter.detach()).numpy().tobytes())
    left: dict[str, Any] = {"digest": digest.hexdigest(), "graphs": graphs()}
    if session is not None:
        status = session.status()
        session.detach()
        left |= records(Segment(status.segment)) | {"level": status.level}
    return left


def records(segment: Segment) -> dict[str, Any]:
    """Counts per site and step, and the sums of the outputs of the first step (evidence of this rank alone)."""
    first = {segment.names[one["site"]]: one for one in segment.records if one["step"] == 0}
    return {
        "planned": sorted(segment.planned()),
        "exact": segment.run["graph_exact"],
        "rank": segment.run["rank"],
        "counts": [dict(segment.counts(step)) for step in range(STEPS)],
        "labels": {name: site["module_kind"] for name, site in segment.sites.items() if ":" not in name},
        "head_gradient": first.get("head:output.grad", {}).get("sum_squares"),
        "parameter_gradient": first.get("head.bias", {}).get("gradient_sum_squares"),
        "elements": {name: one["numel"] for name, one in first.items() if "numel" in one},
    }


def main() -> None:
    """Join, train three times, tell."""
    way, rank, rendezvous = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    told = [train(way, rank, watched) for watched in (False, False, True)]
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
