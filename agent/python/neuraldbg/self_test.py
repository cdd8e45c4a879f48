"""Whether taps work in compiled graphs of this torch, found out on a tiny module before the user's model carries any.

Under torch.compile a mistake is silence: an operator that a new release drops, or a gradient hook that it does not
trace, costs no error, only the records. So a module of one weight is compiled with the same hooks, and its records are
counted in a segment that no daemon sees. Once a process, and only where a model is compiled: it warms up what the
model's own compilation needs.
"""

from __future__ import annotations

import copy
import logging
import tempfile

import torch
from torch import nn

from neuraldbg import hooks
from neuraldbg.native import Segment, SessionOptions
from neuraldbg.sites import Level, Role, SiteTable

logger = logging.getLogger("neuraldbg")

_FAILED = "neuraldbg: taps do not work in compiled graphs of torch %s (%s); %s"
_known: tuple[Level, str] | None = None


class _Probe(nn.Module):
    """A leaf behind functional code, as in the user's models."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leaf(x * 2) + x


def reached() -> tuple[Level, str]:
    """The level that compiled graphs reach here, and what is missing above it. Says so in one line. Never raises."""
    global _known
    if _known is None:
        _known = _try()
        level, why = _known
        if level is not Level.FUSED:
            still = "outputs alone are observed" if level is Level.FORWARD_ONLY else "activations are not observed"
            logger.warning(_FAILED, torch.__version__, why, still)
    return _known


def _try() -> tuple[Level, str]:
    try:
        with tempfile.TemporaryDirectory(prefix="neuraldbg-") as directory:
            forward, gradient = _count(directory)
    except Exception as error:
        logger.debug("neuraldbg: the self-test failed", exc_info=True)
        return Level.NOT_OBSERVED, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if forward != 1:
        return Level.NOT_OBSERVED, f"a forward pass gave {forward} records instead of 1"
    if gradient != 1:
        return Level.FORWARD_ONLY, f"a backward pass gave {gradient} records instead of 1"
    return Level.FUSED, ""


def _count(directory: str) -> tuple[int, int]:
    """Records of one compiled forward pass and of its backward pass."""
    from torch._dynamo.utils import counters

    segment = Segment(
        SessionOptions(shm_directory=directory.encode(), run_name=b"self-test", launch=b"", lane_capacity=64, sites=16)
    )
    before = copy.deepcopy(counters)  # graphs of this test are none of the user's
    random = torch.get_rng_state()
    try:
        probe = _Probe()
        sites = SiteTable(segment)
        slots = hooks.attach_slots(probe.leaf)
        slots.output, slots.gradient = (sites.slot(site) for site in sites.add_activation("leaf", "", Role.OUTPUT))
        probe.leaf.register_forward_hook(hooks.output_hook)
        hooks.attach_slots(probe)
        with torch.enable_grad():
            result = torch.compile(probe, backend="aot_eager", fullgraph=True)(torch.ones(1, 1))
            forward = segment.status().attempts
            result.sum().backward()
        return forward, segment.status().attempts - forward
    finally:
        torch.set_rng_state(random)
        counters.clear()
        counters.update(before)
        segment.close()
