"""The release of torch, and what earlier ones cannot do. docs/compatibility.md, "Releases of torch"."""

from __future__ import annotations

import torch

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
TRIED = (2, 13), (2, 15)  # first and last that the tests of compiled graphs were run with, level fused
# Before 2.13, Dynamo takes no hook on a tensor inside of a graph (2.10), or not under checkpointing (2.11, 2.12);
# compiles blocks once more for each of their hooks that take keyword arguments; and crashes where two threads make fake
# tensors.
OLD = RELEASE < TRIED[0]
