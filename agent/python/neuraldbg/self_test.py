"""Whether hooks work in compiled graphs of this torch, found out on a tiny module before the user's model carries any.

Under torch.compile a mistake is silence: an operator that a new release drops, or a gradient hook that it does not
trace, costs no error, only the records. So a module of one weight is compiled with the same hooks, and its records are
counted in a segment that no daemon sees. Once a process, and only where a model is compiled: it warms up what the
model's own compilation needs.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import tempfile

import torch
from torch import nn

from neuraldbg import hooks, release
from neuraldbg.native import Segment, SessionOptions
from neuraldbg.sites import Level, Role, SiteTable

logger = logging.getLogger("neuraldbg")

_FAILED = "neuraldbg: hooks do not work in compiled graphs of torch %s (%s); %s"
_TAPPED = "neuraldbg: torch %s: gradients inside of compiled graphs are observed by copies of their tensors"
_STILL = {
    Level.FORWARD_ONLY: "outputs alone are observed",
    Level.NOT_OBSERVED: "activations are not observed",
}
_known: Level | None = None


class _Probe(nn.Module):
    """A leaf behind functional code, as in the user's models."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf = nn.Linear(1, 1, device="cpu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leaf(x * 2) + x


def at_attach() -> None:
    """Asks at once where the release is none that was tried: what is not traced there would end the user's job."""
    if not release.TRIED[0] <= release.RELEASE <= release.TRIED[1]:
        reached()


def reached() -> Level:
    """The level that compiled graphs reach here. Says in one line what is missing above it. Never raises."""
    global _known
    if _known is None:
        _known, why = _try()
        if _known is Level.TAP:
            logger.info(_TAPPED, torch.__version__)
        elif _known is not Level.FUSED:
            logger.warning(_FAILED, torch.__version__, why, _STILL[_known])
    return _known


def reached_while_tracing() -> Level:
    """The same where a graph is being traced, and no other one can be tried out."""
    return Level.FUSED if _known is None else _known


def _try() -> tuple[Level, str]:
    """Goes down the ladder to the first level that delivers; why the one above the found one does not."""
    missing = ""
    for level in (Level.FUSED, Level.TAP, Level.FORWARD_ONLY)[release.OLD :]:
        hooks.set_taps(level is Level.TAP)
        why = _missing(level)
        if not why:
            return level, missing
        missing = missing or why
    return Level.NOT_OBSERVED, why


def _missing(level: Level) -> str:
    """What a compiled module does not deliver at this level; empty if nothing."""
    try:
        with tempfile.TemporaryDirectory(prefix="neuraldbg-") as directory:
            forward, gradient = _count(directory, level)
    except Exception as error:
        logger.debug("neuraldbg: the self-test failed", exc_info=True)
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if forward != 1:
        return f"a forward pass gave {forward} records instead of 1"
    if gradient != 1 and level is not Level.FORWARD_ONLY:
        return f"a backward pass gave {gradient} records instead of 1"
    return ""


def _count(directory: str, level: Level) -> tuple[int, int]:
    """Records of one compiled forward pass and of its backward pass."""
    from torch._dynamo.utils import counters

    segment = Segment(
        SessionOptions(shm_directory=directory.encode(), run_name=b"self-test", launch=b"", lane_capacity=64, sites=16)
    )
    before = copy.deepcopy(counters)  # graphs of this test are none of the user's
    random = torch.get_rng_state()
    stack = contextlib.ExitStack()
    try:
        # The user's surroundings must not decide: this may run in the middle of an evaluation.
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        probe = _Probe()
        sites = SiteTable(segment)
        slots = hooks.attach_slots(probe.leaf)
        slots.output, slots.gradient = (sites.slot(site) for site in sites.add_activation("leaf", "", Role.OUTPUT))
        if level is Level.FORWARD_ONLY:
            slots.gradient = None
        probe.leaf.register_forward_hook(hooks.output_hook)
        hooks.attach_slots(probe)
        result = torch.compile(probe, backend="aot_eager", fullgraph=True)(torch.ones(1, 1, device="cpu"))
        forward = segment.status().attempts
        result.sum().backward()
        return forward, segment.status().attempts - forward
    finally:
        stack.close()
        torch.set_rng_state(random)
        counters.clear()
        counters.update(before)
        segment.close()
