"""Modules with a lever: source-level mistakes that a tensor switches on, so that a compiled graph stays the same.

The levers are non-persistent buffers: a compiled graph reads their value at run time, and a change neither recompiles
nor shows in a state_dict.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class ScaleBackward(torch.autograd.Function):
    """Identity forward; multiplies the gradient on the way back (a wrong hand-written backward)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        """Keep the factor for the way back."""
        ctx.save_for_backward(factor)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Scale the gradient."""
        (factor,) = ctx.saved_tensors
        return gradients[0] * factor, None


class Levers(nn.Module):
    """The three levers of an activation function: temperature, offset and backward factor. 1, 0 and 1 do nothing."""

    temperature: Tensor
    offset: Tensor
    backward_factor: Tensor

    def install_levers(self) -> None:
        """Register the levers in their neutral position."""
        self.register_buffer("temperature", torch.ones(()), persistent=False)
        self.register_buffer("offset", torch.zeros(()), persistent=False)
        self.register_buffer("backward_factor", torch.ones(()), persistent=False)

    def before(self, x: Tensor) -> Tensor:
        """What reaches the activation function: cooled down, moved and with a scaled way back."""
        return cast(Tensor, ScaleBackward.apply(x, self.backward_factor)) / self.temperature - self.offset


class LeverReLU(nn.ReLU, Levers):
    """ReLU over an annealed, shifted input."""

    def __init__(self) -> None:
        super().__init__()
        self.install_levers()

    def forward(self, input: Tensor) -> Tensor:
        """ReLU(x / temperature - offset) * temperature."""
        return functional.relu(self.before(input)) * self.temperature


class LeverGELU(nn.GELU, Levers):
    """GELU over an annealed, shifted input."""

    def __init__(self) -> None:
        super().__init__()
        self.install_levers()

    def forward(self, input: Tensor) -> Tensor:
        """GELU(x / temperature - offset) * temperature."""
        return functional.gelu(self.before(input)) * self.temperature


@torch.no_grad()
def pull(module: nn.Module, lever: str, value: float) -> None:
    """Set a lever of `module` in place."""
    cast(Tensor, getattr(module, lever)).fill_(value)
