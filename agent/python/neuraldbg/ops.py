"""The agent's operators. The only file that names torch.ops.

Importing this module loads the shared library, and fails with OSError where that is impossible; attach.py then turns
itself off. Rule 1 of compiled observation lives here: an operator that returns nothing survives the compiler only if it
is registered as effectful, and its schema must not declare a mutation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.effects import EffectType

from neuraldbg.native import LIBRARY_PATH

torch.ops.load_library(str(LIBRARY_PATH))

_library = torch.library.Library("neuraldbg", "FRAGMENT")
_namespace = torch.ops.neuraldbg

# Forward passes of a root module that was inlined into a compiled graph run no Python of ours, except through this
# operator. `token` identifies the session; grad_mode is a constant of the trace.
_library.define("enter(Tensor token, bool grad_mode, SymInt samples) -> ()")

_enter_handler: Callable[[int, bool, int], None] | None = None


def set_enter_handler(handler: Callable[[int, bool, int], None]) -> None:
    """Names the function that a compiled root calls at run time with (token, grad_mode, samples)."""
    global _enter_handler
    _enter_handler = handler


def _enter(token: torch.Tensor, grad_mode: bool, samples: int) -> None:
    if _enter_handler is not None:
        _enter_handler(int(token), grad_mode, int(samples))


_library.impl("enter", _enter, "CPU")

for _name in ("observe", "batch", "enter"):
    _qualified = f"neuraldbg::{_name}"
    torch.library._register_effectful_op(_qualified, EffectType.ORDERED)
    if not torch._C._dispatch_has_kernel_for_dispatch_key(_qualified, "Meta"):
        torch.library.register_fake(_qualified, lambda *_arguments: None, lib=_library)

# The identity, whose gradient is observed on its way back: for releases of torch that take no hook on a tensor inside a
# graph. A graph may not return a tensor as it came, so that each of the two costs a copy.
_library.define("tap(Tensor x, Tensor slot) -> Tensor")
_library.define("tapped(Tensor gradient, Tensor slot) -> Tensor")


def _tap(x: torch.Tensor, _slot: torch.Tensor) -> torch.Tensor:
    return x.clone()


def _tapped(gradient: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    observe(gradient, slot)
    return gradient.clone()


for _name, _kernel in (("tap", _tap), ("tapped", _tapped)):
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"neuraldbg::{_name}", lambda x, _slot: torch.empty_like(x), lib=_library)


def _remember_slot(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
    ctx.slot = inputs[1]


def _tap_backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    return _namespace.tapped.default(gradient, context.slot), None


torch.library.register_autograd("neuraldbg::tap", _tap_backward, setup_context=_remember_slot, lib=_library)


def slot_tensor(number: int) -> torch.Tensor:
    """What the operators take for a site, wherever it is made: under inference_mode, say, or another default device."""
    with torch.inference_mode(False):
        return torch.tensor([number], dtype=torch.int64, device="cpu")


# Called as overloads, not through the packet: one dictionary look-up less per record, and no Python frame of ours that
# Dynamo could take for one to compile.
observe: Callable[..., None] = _namespace.observe.default
tap: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = _namespace.tap.default
batch: Callable[[torch.Tensor, torch.Tensor], None] = _namespace.batch.default
enter: Callable[[torch.Tensor, bool, Any], None] = _namespace.enter.default
loss: Callable[..., None] = _namespace.loss.default
parameter_init: Callable[[torch.Tensor, torch.Tensor], None] = _namespace.parameter_init.default
parameter_before: Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor], None] = (
    _namespace.parameter_before.default
)
parameter_after: Callable[[torch.Tensor, torch.Tensor], None] = _namespace.parameter_after.default
gradient_norm: Callable[[torch.Tensor], float] = _namespace.gradient_norm.default
