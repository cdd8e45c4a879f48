"""What the agent has to settle with torch.compile: hook guards, code that exists already, planning at trace time.

Rule 4: Dynamo by default does not check hooks when it looks for cached code, so the code of an unhooked instance (or
of the model before attach) would run in silence. Guards on hooks are switched on for the process and stay on: code that
was compiled with them is discarded by Dynamo itself when hooks come or go. Code from before has to be reset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch._dynamo import config as dynamo_config

from neuraldbg import compile_cache, hooks

logger = logging.getLogger("neuraldbg")

_LATE = (
    "neuraldbg.attach: %s was already compiled; it is compiled once more at its next call, so that its hooks run "
    "(attach before the first call to avoid this)"
)

CUT = (
    "torch.compile cuts the graph along the buckets of DistributedDataParallel (compile the model before wrapping it, "
    "or set torch._dynamo.config.optimize_ddp = False)"
)


def prepare(modules: Iterable[nn.Module]) -> bool:
    """Switches hook guards on before hooks are installed. Returns whether compiled code of these modules existed.

    Requires: called before the first hook is registered.
    """
    unguarded = bool(dynamo_config.skip_nnmodule_hook_guards)
    dynamo_config.skip_nnmodule_hook_guards = False
    hooks.run_beside_graphs()
    late = _has_compiled_code(modules)
    any_code = late or (unguarded and _anything_compiled())
    if any_code and unguarded:
        # Entries without hook guards cannot be told from one another, so all of them go.
        torch._dynamo.reset()
    if any_code and (late or unguarded):
        logger.warning(_LATE, "the model" if late else "code of this process")
    return late


def is_compiled(roots: Iterable[nn.Module]) -> bool:
    """Whether a model, or a part of it, goes through torch.compile as far as the modules themselves show."""
    return any(
        type(module).__name__ == "OptimizedModule"
        or module.__dict__.get("_compiled_call_impl") is not None
        or hasattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable")
        for root in roots
        for module in root.modules()
    )


def recompiles() -> int:
    """Graphs that this process has compiled so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _cache_entries(code: Any) -> bool:
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    return bool(_debug_get_cache_entry_list(code))


def _has_compiled_code(modules: Iterable[nn.Module]) -> bool:
    codes = {getattr(getattr(type(module), "forward", None), "__code__", None) for module in modules}
    return any(code is not None and _cache_entries(code) for code in codes)


def _anything_compiled() -> bool:
    from torch._dynamo.convert_frame import input_codes

    return any((code := reference()) is not None and _cache_entries(code) for reference in list(input_codes.seen))


def plan_at_trace_time(context: Any) -> None:
    """Takes a root's example inputs from Dynamo's symbolic arguments and has its session plan. Never raises.

    Runs inside Dynamo's tracing of the root hook, before any submodule's hook is looked at. Adds nothing to the graph.
    """
    compile_cache.say_if_bypassed()
    try:
        module = _python_object(context.get_local("module"))
        slots = hooks.slots_of(module)
        if slots is None or slots.session is None:
            return
        if cut_into_buckets():
            slots.session.give_up_activations(CUT)
        if not slots.session.needs_plan(module):
            return
        try:
            args = _fake(context.get_local("args"))
            kwargs = _fake(context.get_local("kwargs"))
        except Exception as error:
            slots.session.plan_without_graph(module, f"{type(error).__name__}: {error}")
            return
        slots.session.plan(module, args, kwargs, compiles=True)
    except Exception:
        logger.debug("neuraldbg: planning at trace time failed", exc_info=True)


def cut_into_buckets() -> bool:
    """Whether Dynamo cuts the graph that it is tracing along DistributedDataParallel's buckets.

    Torch 2.13 cannot compile the parts of such a graph where they hold effects or gradient hooks: the job would end. A
    model that fits into the first bucket is not cut.
    """
    from torch._dynamo.utils import get_optimize_ddp_mode
    from torch.nn.parallel import DistributedDataParallel

    wrapper = DistributedDataParallel._get_active_ddp_module()
    if wrapper is None or get_optimize_ddp_mode() != "ddp_optimizer":
        return False
    weights = sum(p.numel() * p.element_size() for p in wrapper.module.parameters() if p.requires_grad)
    return weights > min(torch.distributed._DEFAULT_FIRST_BUCKET_BYTES, wrapper.bucket_bytes_cap)


def _python_object(variable: Any) -> nn.Module:
    tracker = variable._i_will_not_complain_if_bc_breaks_VariableTracker()
    return tracker.value if hasattr(tracker, "value") else tracker.module


def _fake(variable: Any) -> Any:
    """Dynamo's symbolic value as an ordinary structure of fake tensors and constants."""
    return _fake_of(variable._i_will_not_complain_if_bc_breaks_VariableTracker())


def _fake_of(tracker: Any) -> Any:
    tracker = tracker.realize()
    if tracker.is_python_constant():
        return tracker.as_python_constant()
    name = type(tracker).__name__
    if hasattr(tracker, "as_proxy") and "Tensor" in name:
        return tracker.as_proxy().node.meta["example_value"]
    if name in ("TupleVariable", "ListVariable"):
        items = [_fake_of(item) for item in tracker.items]
        return tuple(items) if name == "TupleVariable" else items
    if hasattr(tracker, "items") and isinstance(tracker.items, dict):
        return {_key(key): _fake_of(item) for key, item in tracker.items.items()}
    raise TypeError(f"a model input of kind {name} cannot be read at trace time")


def _key(key: Any) -> Any:
    return (key.vt if hasattr(key, "vt") else key).as_python_constant()
