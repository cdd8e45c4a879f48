"""Graphs with the agent's operators stay in the compiler's caches.

An operator without a result survives the compiler only as an effect, and torch 2.13 keeps no graph that holds effects:
every process would compile everything again (pytorch#194005). Inductor has a setting for such functions, whose value
becomes part of the cache's key; here it is the releases on both sides. What a graph gets at run time, slots among it,
are its inputs, so that an entry serves any process. tests/agent/test_compile_cache.py holds it to that.
"""

from __future__ import annotations

import logging

import torch

logger = logging.getLogger("neuraldbg")

_EFFECTS = "torch.ops.higher_order.with_effects"
_BYPASSED = (
    "neuraldbg: torch %s keeps no compiled graphs with the agent's operators (%s), so that each process compiles them "
    "again"
)
_reason: str | None = None  # why not, until it was said


def keep_hits(version: str) -> None:
    """Lets graphs with effects into the caches of this process from now on. `version` is the agent's. Never raises."""
    global _reason
    try:
        from torch._higher_order_ops.effects import with_effects
        from torch._inductor import config

        if not with_effects.cacheable():
            # A new dictionary: the one in place may be the default, which is shared.
            marked = dict(config.unsafe_marked_cacheable_functions)
            marked[_EFFECTS] = f"torch {torch.__version__}, neuraldbg {version}"
            config.unsafe_marked_cacheable_functions = marked
        switched_off = config.force_disable_caches or not config.fx_graph_cache
        _reason = None if with_effects.cacheable() or switched_off else "the setting for it has no effect"
    except Exception as error:
        _reason = f"{type(error).__name__}: {error}"


def say_if_bypassed() -> None:
    """One line where graphs will not be kept: at the first graph, because jobs that compile none need not know."""
    global _reason
    if _reason is not None:
        logger.warning(_BYPASSED, torch.__version__, _reason)
        _reason = None
