"""Steps that the AMP scaler skips: optimizer.step() is then not called, so the scaler itself has to be watched."""

from __future__ import annotations

import functools
import logging
import weakref
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from neuraldbg.optimizer import StepWatch

logger = logging.getLogger("neuraldbg")

_watches: weakref.WeakSet[StepWatch] = weakref.WeakSet()
_original = GradScaler.step


def start_watching(watch: StepWatch) -> None:
    """Wraps GradScaler.step, for every scaler of the process, while any session lives."""
    _watches.add(watch)
    if GradScaler.step is _original:
        GradScaler.step = _step  # type: ignore[method-assign]


def stop_watching(watch: StepWatch) -> None:
    """Puts the original back when the last session ends."""
    _watches.discard(watch)
    if not _watches and GradScaler.step is _step:
        GradScaler.step = _original  # type: ignore[method-assign]


@functools.wraps(_original)
def _step(self: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
    watches = [(watch, watch.calls) for watch in _watches]
    result = _original(self, optimizer, *args, **kwargs)
    for watch, calls in watches:
        try:
            watch.scaler_stepped(self, optimizer, calls)
        except Exception:
            logger.debug("neuraldbg: after the scaler's step", exc_info=True)
    return result
