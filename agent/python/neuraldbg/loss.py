"""The loss: what log_loss announces, and functional losses seen between forward and backward without the call.

torch.nn.functional's losses are tapped while a session lives (functional_losses.py); loss modules go through them.
Inside a compiled region a tap is transparent: it adds no graph and records nothing there. The first explicit log_loss
ends this for the session. A loss counts for the sessions whose models computed it, or what it was computed from
(ownership.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import logging
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as functional

from neuraldbg import functional_losses, ops, ownership
from neuraldbg.shards import local_part
from neuraldbg.sites import Phase, Role, Site, SiteTable

logger = logging.getLogger("neuraldbg")


class LossKind(enum.IntEnum):
    """LossKind of shared/record.h."""

    UNKNOWN = 0
    CROSS_ENTROPY = 1
    MEAN_SQUARED = 2
    BINARY_CROSS_ENTROPY = 3
    NEGATIVE_LOG_LIKELIHOOD = 4
    OTHER = 5


KINDS = {
    "cross_entropy": LossKind.CROSS_ENTROPY,
    "mse": LossKind.MEAN_SQUARED,
    "bce": LossKind.BINARY_CROSS_ENTROPY,
    "nll": LossKind.NEGATIVE_LOG_LIKELIHOOD,
    "other": LossKind.OTHER,
}
REDUCTIONS = {"mean": 1, "sum": 2, "none": 3}

_FUNCTIONS = {
    "cross_entropy": LossKind.CROSS_ENTROPY,
    "nll_loss": LossKind.NEGATIVE_LOG_LIKELIHOOD,
    "mse_loss": LossKind.MEAN_SQUARED,
    "binary_cross_entropy": LossKind.BINARY_CROSS_ENTROPY,
    "binary_cross_entropy_with_logits": LossKind.BINARY_CROSS_ENTROPY,
    "l1_loss": LossKind.OTHER,
    "smooth_l1_loss": LossKind.OTHER,
    "huber_loss": LossKind.OTHER,
    "kl_div": LossKind.OTHER,
}
_IGNORE_INDEX = -100  # torch's default
_TRACED = frozenset({"FakeTensor", "FunctionalTensor"})


@dataclasses.dataclass
class SeenLoss:
    """A functional loss that ran. It keeps its inputs only until backward begins or log_loss took them."""

    original: Callable[[], torch.Tensor | None]  # the user's tensor while it lives, to recognise it
    value: torch.Tensor
    logits: torch.Tensor | None
    targets: torch.Tensor | None
    ignore_index: int
    kind: LossKind
    reduction: int
    recorded: bool = False

    def release(self) -> None:
        """Lets the inputs go: the agent must not prolong the life of the logits."""
        self.recorded = True
        self.logits = self.targets = None


class LossWatch:
    """LOSS records of one session. Called from the training thread.

    A functional loss is recorded when its backward pass begins, so only losses that train anything are. From the first
    log_loss on, only what the user announces is recorded.
    """

    def __init__(
        self,
        sites: SiteTable,
        owner: ownership.Owner,
        on_nonfinite: Callable[[], None],
        in_step: Callable[[], bool],
    ) -> None:
        self.owner = owner
        self._site = sites.add(Site("loss", Role.LOSS, Phase.LOSS))
        self._slot = sites.slot(self._site)
        self._on_nonfinite = on_nonfinite
        self._in_step = in_step
        self._announced = False
        self._newest: SeenLoss | None = None

    def log(self, loss: Any, targets: Any, ignore_index: int, kind: str | None, reduction: str) -> None:
        """The loss as the user gives it."""
        seen, self._newest = self._newest, None
        was_announced, self._announced = self._announced, True
        if seen is not None and seen.recorded:
            if not was_announced and seen.original() is loss:
                return  # the first log_loss came after backward, which has recorded the same loss
            seen = None
        value = loss if isinstance(loss, torch.Tensor) else torch.tensor(float(loss), dtype=torch.float64)
        number = KINDS.get(kind, LossKind.OTHER) if kind is not None else (seen.kind if seen else LossKind.UNKNOWN)
        logits = seen.logits if seen is not None else None
        if targets is None and seen is not None:
            targets = seen.targets
        self._push(value, logits, targets, ignore_index, number, REDUCTIONS.get(reduction, 0))
        if seen is not None:
            seen.release()

    def saw(self, value: torch.Tensor, seen: SeenLoss) -> None:
        """A functional loss ran outside compiled code."""
        if self._in_step():
            self._newest = seen
            value.register_hook(lambda _gradient: self._backward_begins(seen))

    def _backward_begins(self, seen: SeenLoss) -> None:
        if torch.compiler.is_compiling():
            return  # compiled autograd traces hooks, and would drop what this one does
        try:
            if not (self._announced or seen.recorded):
                self._push(seen.value, seen.logits, seen.targets, seen.ignore_index, seen.kind, seen.reduction)
        except Exception:
            logger.debug("neuraldbg: a functional loss could not be observed", exc_info=True)
        seen.release()

    def _push(
        self, value: torch.Tensor, logits: Any, targets: Any, ignore_index: int, kind: LossKind, reduction: int
    ) -> None:
        value = local_part(value)
        logits = local_part(logits) if isinstance(logits, torch.Tensor) else None
        targets = local_part(targets) if isinstance(targets, torch.Tensor) else None
        ops.loss(value, logits, targets, ignore_index, int(kind), reduction, self._slot)
        # Asking a tensor on a device would wait for it; there the records themselves raise the suspicion.
        if value.device.type == "cpu" and value.numel() == 1 and not math.isfinite(value.item()):
            self._on_nonfinite()


_watches: weakref.WeakSet[LossWatch] = weakref.WeakSet()
_tapped: list[functional_losses.TappedFunction] = []
_running = threading.local()


def start_watching(watch: LossWatch) -> None:
    """Taps the functional losses when the first session begins."""
    if not _tapped:
        for name, kind in _FUNCTIONS.items():
            tapped = functional_losses.tap(getattr(functional, name), functools.partial(_loss_called, kind=kind))
            if tapped is not None:
                _tapped.append(tapped)
    _watches.add(watch)


def stop_watching(watch: LossWatch) -> None:
    """Gives torch's functions their own code back when the last session ends."""
    _watches.discard(watch)
    if not _watches:
        for tapped in _tapped:
            tapped.restore()
        _tapped.clear()


def _loss_called(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], kind: LossKind) -> Any:
    if torch.compiler.is_compiling():
        return original(*args, **kwargs)
    with _outermost() as outermost:
        value = original(*args, **kwargs)
    # Tensors of a tracer are no loss of anybody's.
    if outermost and isinstance(value, torch.Tensor) and value.requires_grad and type(value).__name__ not in _TRACED:
        _report(value, args, kwargs, kind)
    return value


@contextlib.contextmanager
def _outermost() -> Iterator[bool]:
    """True unless another functional loss is running: some are written in terms of others."""
    was_nested = getattr(_running, "nested", False)
    _running.nested = True
    try:
        yield not was_nested
    finally:
        _running.nested = was_nested


def _report(value: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], kind: LossKind) -> None:
    try:
        watches = list(_watches)
        owners = ownership.owners_of(value, {watch.owner.number for watch in watches if watch.owner.stamps})
        for watch in watches:
            # Where roots run inside graphs their outputs carry no stamp: every loss that is nobody else's counts.
            if watch.owner.number not in owners if watch.owner.stamps else bool(owners):
                continue
            seen = SeenLoss(
                weakref.ref(value),
                value.detach(),
                _detached(args[0] if args else kwargs.get("input")),
                _detached(args[1] if len(args) > 1 else kwargs.get("target")),
                int(kwargs.get("ignore_index", _IGNORE_INDEX)),
                kind,
                REDUCTIONS.get(kwargs.get("reduction", "mean"), 0),
            )
            watch.saw(value, seen)
    except Exception:
        logger.debug("neuraldbg: a functional loss could not be observed", exc_info=True)


def _detached(value: Any) -> torch.Tensor | None:
    return value.detach() if isinstance(value, torch.Tensor) else None
