"""Attaches to a job that knows nothing of it: to the model whose parameters the first optimizer gets.

Imported before anything else in the job, so it must be light: torch is not imported here, only waited for.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import logging
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_AWAITED = "torch.optim.optimizer"
logger = logging.getLogger("neuraldbg")


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the awaited module be found as ever, and looks at it once it has been loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _AWAITED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            original = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                original(module)
                _watch_optimizers(module.Optimizer)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def watch_for_torch() -> None:
    """Waits for torch.optim to be imported, if it ever is."""
    sys.meta_path.insert(0, _Finder())


def _watch_optimizers(optimizer_class: Any) -> None:
    """Attaches when the first optimizer that holds a model's parameters is complete."""
    original = optimizer_class.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            if _attach_to_model_of(self):
                optimizer_class.__init__ = original
        except Exception as error:
            optimizer_class.__init__ = original
            logger.warning("neuraldbg: the job is not observed: %s", error)

    optimizer_class.__init__ = __init__


def _attach_to_model_of(optimizer: Any) -> bool:
    model = _model_of({id(p) for group in optimizer.param_groups for p in group["params"]})
    if model is None:
        return False
    import neuraldbg

    # Without the optimizer: its class is still being constructed, and the agent finds it at its first step.
    neuraldbg.attach(model)
    return True


def _model_of(parameters: set[int]) -> Any:
    """The outermost module that holds most of these parameters."""
    from torch import nn

    holders = {}
    for candidate in gc.get_objects():
        if issubclass(type(candidate), nn.Module):
            held = sum(id(parameter) in parameters for parameter in candidate.parameters())
            if held:
                holders[candidate] = held
    inner = {child for holder in holders for child in holder.modules() if child is not holder}
    outermost = [(held, module) for module, held in holders.items() if module not in inner]
    return max(outermost, key=lambda pair: pair[0])[1] if outermost else None
