"""Whose loss a loss is: that of the sessions whose models it was computed by or from.

A process may train several models, in turns or in threads, watched or not. A loss inside of a model's forward pass is
the model's own. For any other the model's output stamps its node of the autograd graph, and the loss is traced back
along the graph to the stamps. Nodes keep the stamps, so nothing lives longer.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

_STAMP = "neuraldbg"
# A loss stands a few nodes behind the output of its model; further away only behind another model (a generator behind
# its critic). The bound is on what a loss that is nobody's costs: its graph is searched up to here.
_NODES_MAX = 512

_numbers = itertools.count(1)
_passes = threading.local()


class Owner:
    """One session as the owner of losses. Called at the root modules' forward passes, outside compiled code."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.stamps = False  # an output carried the stamp: then the losses from outside of the model lead to one

    def pass_begins(self) -> None:
        """A root's forward pass begins in this thread."""
        _running().add(self.number)

    def pass_ended(self, output: Any) -> None:
        """A root returned this."""
        _running().discard(self.number)
        for tensor in _tensors_in(output):
            node = tensor.grad_fn
            if node is not None:
                node.metadata.setdefault(_STAMP, set()).add(self.number)
                self.stamps = True


def owners_of(loss: torch.Tensor, wanted: set[int]) -> set[int]:
    """The owners of a loss that was computed just now, as far as they are wanted."""
    found = _running() & wanted
    seen = {loss.grad_fn}
    queue = deque([loss.grad_fn])
    while queue and len(seen) <= _NODES_MAX and not wanted <= found:
        node = queue.popleft()
        if node is None:
            continue
        found |= node.metadata.get(_STAMP, set()) & wanted
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                queue.append(parent)
    return found


def _running() -> set[int]:
    """Owners whose models are computing in this thread."""
    if not hasattr(_passes, "owners"):
        _passes.owners = set()
    owners: set[int] = _passes.owners
    return owners


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors_in(getattr(value, field.name, None))
