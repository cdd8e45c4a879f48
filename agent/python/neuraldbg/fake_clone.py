"""A structural copy of a model on fake tensors, so that one forward pass shows the module graph and touches nothing.

Parameters and buffers become fake tensors (no memory, no arithmetic), modules and the built-in containers between
them are copied, hooks are left out, and everything else is shared by reference. Reading a model must not change it:
BatchNorm would otherwise count a batch, a user's hook would see a pass that never was.
"""

from __future__ import annotations

import collections
import types
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from neuraldbg.hooks import ATTRIBUTE

_HOOK_DICTIONARIES = frozenset(
    {
        "_backward_hooks",
        "_backward_pre_hooks",
        "_forward_hooks",
        "_forward_hooks_always_called",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
    }
)
_LEFT_OUT = frozenset({ATTRIBUTE, "_compiled_call_impl"})
_CONTAINERS = (list, tuple, set, dict, collections.OrderedDict)


class FakeClone:
    """Copies modules and inputs into one FakeTensorMode. `originals` maps each copy to the module it stands for."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._memo: dict[int, Any] = {}
        self._alive: list[Any] = []  # an id is only meaningful while its object lives
        self.originals: dict[nn.Module, nn.Module] = {}

    def module(self, module: nn.Module) -> nn.Module:
        """The copy of a module, made at most once."""
        return self._convert(module)

    def inputs(self, tree: Any) -> Any:
        """The copy of a structure of model inputs."""
        return self._convert(tree)

    def _remember(self, original: Any, copy: Any) -> Any:
        self._memo[id(original)] = copy
        self._alive.append(original)
        return copy

    def _convert(self, value: Any) -> Any:
        if id(value) in self._memo:
            return self._memo[id(value)]
        if isinstance(value, torch.Tensor):
            return self._remember(value, self._tensor(value))
        if isinstance(value, nn.Module):
            return self._module(value)
        if type(value) in _CONTAINERS:
            return self._container(value)
        if isinstance(value, types.MethodType) and isinstance(value.__self__, nn.Module):
            return types.MethodType(value.__func__, self._convert(value.__self__))
        return value

    def _module(self, module: nn.Module) -> nn.Module:
        if type(module).__name__ == "OptimizedModule":
            return self._remember(module, self._convert(module._orig_mod))
        copy = object.__new__(type(module))
        self._remember(module, copy)
        state = {}
        for name, value in module.__dict__.items():
            if name in _HOOK_DICTIONARIES:
                state[name] = collections.OrderedDict()
            elif name == "_compiled_call_impl":
                state[name] = None
            elif name not in _LEFT_OUT:
                state[name] = self._convert(value)
        copy.__dict__.update(state)
        self.originals[copy] = module
        return copy

    def _container(self, value: Any) -> Any:
        if isinstance(value, dict):
            copy = self._remember(value, type(value)())
            copy.update({key: self._convert(item) for key, item in value.items()})
            return copy
        if isinstance(value, list):
            copy = self._remember(value, [])
            copy.extend(self._convert(item) for item in value)
            return copy
        return type(value)(self._convert(item) for item in value)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor) or not _is_plain(tensor):
            return self._like(tensor)
        return self._mode.from_tensor(tensor, static_shapes=True)

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor of the same shape, for one that belongs to another fake mode (Dynamo's, at trace time)."""
        with self._mode:
            copy = torch.empty_strided(
                [_hint(n) for n in tensor.shape],
                [_hint(n) for n in tensor.stride()],
                dtype=tensor.dtype,
                device=tensor.device,
            )
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(copy, requires_grad=tensor.requires_grad)
        if copy.is_floating_point():
            copy.requires_grad_(tensor.requires_grad)
        return copy


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer)


def _hint(size: int | torch.SymInt) -> int:
    """The value that a symbolic size had when it was traced; asking for it in any other way would add a guard."""
    return size if isinstance(size, int) else int(size.node.hint)


def tensors_in(tree: Any, found: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
    """All tensors of a structure, dataclasses included, in order."""
    found = [] if found is None else found
    if isinstance(tree, torch.Tensor):
        found.append(tree)
    elif isinstance(tree, dict):
        for item in tree.values():
            tensors_in(item, found)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            tensors_in(item, found)
    elif hasattr(tree, "__dataclass_fields__"):
        for name in tree.__dataclass_fields__:
            tensors_in(getattr(tree, name, None), found)
    return found
