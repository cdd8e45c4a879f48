"""Whose loss a loss is: that of the sessions whose models' outputs it was computed from.

A process may train several models, in turns or in threads, watched or not. A model's output marks its node of the
autograd graph, and a loss is traced back along the graph to the marks. Nodes keep the marks, so nothing lives longer.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

_MARK = "neuraldbg"
# A loss stands a few nodes behind the output of its model. Further away, behind another model (a generator behind its
# critic), a graph is searched up to here: about a millisecond for a loss that is nobody's.
_NODES_MAX = 512


def mark(output: Any, owner: int) -> bool:
    """Marks all tensors of a model's output that take part in autograd. Returns whether there were any."""
    found = False
    for tensor in _tensors_in(output):
        node = tensor.grad_fn
        if node is not None:
            node.metadata.setdefault(_MARK, set()).add(owner)
            found = True
    return found


def owners_of(loss: torch.Tensor, wanted: set[int]) -> set[int]:
    """The owners that a loss was computed from, as far as they are wanted."""
    found: set[int] = set()
    seen = {loss.grad_fn}
    queue = deque([loss.grad_fn])
    while queue and len(seen) <= _NODES_MAX and not wanted <= found:
        node = queue.popleft()
        if node is None:
            continue
        found |= node.metadata.get(_MARK, set()) & wanted
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                queue.append(parent)
    return found


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
