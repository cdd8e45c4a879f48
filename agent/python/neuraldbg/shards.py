"""Distributed tensors (DTensor), of which each rank observes its own part.

Nothing here communicates: an operation on the whole of a sharded tensor may be a collective, and one that a rank alone
enters hangs the job.
"""

from __future__ import annotations

import torch


def part_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a distributed tensor, any other tensor as it is.

    Traceable: the name of the type is a constant for Dynamo, while it does not see the methods that a subclass adds.
    """
    if type(tensor).__name__ == "DTensor":
        part: torch.Tensor = tensor.to_local()  # type: ignore[operator]
        return part
    return tensor


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """`part_of`, detached; shares memory with the tensor."""
    return part_of(tensor).detach()


def label(tensor: torch.Tensor) -> str:
    """What a site says of a distributed tensor: "DTensor (Shard(dim=0)) of [65, 32]". Empty for any other."""
    if type(tensor).__name__ != "DTensor":
        return ""
    return f"DTensor ({', '.join(map(repr, tensor.placements))}) of {list(tensor.shape)}"  # type: ignore[attr-defined]
