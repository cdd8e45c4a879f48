"""attach(): checks its arguments, starts the agent, and gives the user a Session."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neuraldbg import config as configuration
from neuraldbg import daemon as daemon_process
from neuraldbg import identity
from neuraldbg.diagnosis import Report
from neuraldbg.session import Session

if TYPE_CHECKING:
    pass

logger = logging.getLogger("neuraldbg")

_WRAPPERS = frozenset({"OptimizedModule", "DistributedDataParallel", "DataParallel"})


def attach(
    model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module],
    *,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    run: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    watch: str | re.Pattern[str] | Callable[[str], bool] | None = None,
    cadence: str | int = "auto",
    overhead_budget: float = 0.01,
    daemon: str = "auto",
    scaler: Any = None,
    scheduler: Any = None,
    groups: Any = None,
    start_step: int = 0,
) -> Session:
    """Observes the training of `model` until the session is detached.

    May be called before or after torch.compile; after the first compiled call the model is compiled once more. Raises
    TypeError or ValueError naming the argument that is wrong. Nothing raises, blocks or changes numerics afterwards.

    model: a module, or a list or dict of modules. optimizer: one or a list; steps count the calls of the first; left
    out, the first optimizer that is called with the model's parameters. watch: regular expression or callable over
    module names; only modules that match are observed. cadence: "auto" (every step while overhead_budget holds) or n
    for every n-th step. daemon: "auto" or "none" (records stay in shared memory).
    """
    models = _models(model)
    optimizers = _optimizers(optimizer)
    _check_scaler_and_scheduler(scaler, scheduler)
    interval = _interval(cadence)
    budget = _budget(overhead_budget)
    filter_ = _filter(watch)
    _try_filter(filter_, models)
    if isinstance(start_step, bool) or not isinstance(start_step, int):
        raise TypeError(f"start_step must be an integer, not {type(start_step).__name__}")
    if start_step < 0:
        raise ValueError(f"start_step must not be negative, not {start_step}")
    config = configuration.load(run, daemon)
    if not config.enabled:
        why = "the agent is switched off (NEURALDBG_ENABLED)"
        return Session(config, rank or 0, None, _absence(config, why, "unset NEURALDBG_ENABLED, then run again"))
    who = identity.resolve(config, rank, world_size)
    try:
        # Not at the top: this loads the native library, and a package without it must still import.
        from neuraldbg.attachment import Attachment, Plan

        plan = Plan(models, optimizers, filter_, interval, budget, scaler, start_step, _is_wrapped(model))
        attachment = Attachment(config, who, plan)
    except Exception as error:
        logger.warning("neuraldbg: the run is not observed: %s", error)
        logger.debug("neuraldbg: attach failed", exc_info=True)
        why = f"the run is not observed: {error}"
        return Session(config, who.rank, None, _absence(config, why, "run neuraldbgctl doctor, then the job again"))
    daemon_process.ensure_running(config)
    return Session(config, who.rank, attachment, launch=who.launch)


def _absence(config: configuration.Config, why: str, advice: str) -> Report:
    """What session.diagnose() answers where nothing is observed. No daemon could know more."""
    return Report(config.run, "INCOMPLETE_DATA", error=why, advice=advice)


def _models(model: Any) -> list[tuple[str, nn.Module]]:
    if isinstance(model, nn.Module):
        named = [("", model)]
    elif isinstance(model, Mapping):
        named = [(str(key), value) for key, value in model.items()]
    elif isinstance(model, (list, tuple)):
        named = [(str(index), value) for index, value in enumerate(model)]
    else:
        raise TypeError(f"model must be a torch.nn.Module, or a list or dict of them, not {type(model).__name__}")
    if not named:
        raise ValueError("model must not be empty")
    unwrapped = []
    for name, value in named:
        if not isinstance(value, nn.Module):
            raise TypeError(f"model must hold torch.nn.Modules only, not {type(value).__name__}")
        inner = _unwrap(value)
        if isinstance(inner, torch.jit.ScriptModule):
            raise TypeError("model must not be a ScriptModule: it cannot carry hooks; attach before scripting it")
        if any(module.__dict__.get("_neuraldbg") is not None for module in inner.modules()):
            raise ValueError("model is attached already; detach the other session first")
        unwrapped.append((name, inner))
    return unwrapped


def _is_wrapped(model: Any) -> bool:
    """Whether torch.compile's wrapper is round one of the models, where their own modules do not show it."""
    given = [model] if isinstance(model, nn.Module) else model.values() if isinstance(model, Mapping) else model
    return any(type(part).__name__ == "OptimizedModule" for one in given for part in one.modules())


def _unwrap(module: nn.Module) -> nn.Module:
    """The user's own module behind torch.compile's and DDP's wrappers."""
    while type(module).__name__ in _WRAPPERS:
        inner = getattr(module, "_orig_mod", None)
        inner = getattr(module, "module", None) if inner is None else inner
        if not isinstance(inner, nn.Module):
            break
        module = inner
    return module


def _optimizers(optimizer: Any) -> list[torch.optim.Optimizer]:
    found = [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for one in found:
        if not isinstance(one, torch.optim.Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer or a list of them, not {type(one).__name__}")
    return found


def _check_scaler_and_scheduler(scaler: Any, scheduler: Any) -> None:
    if scaler is not None and not (hasattr(scaler, "step") and hasattr(scaler, "update")):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, not {type(scaler).__name__}")
    if scheduler is not None and not hasattr(scheduler, "step"):
        raise TypeError(f"scheduler must be a learning-rate scheduler, not {type(scheduler).__name__}")


def _interval(cadence: Any) -> int | None:
    if cadence == "auto":
        return None
    if isinstance(cadence, bool) or not isinstance(cadence, int):
        raise TypeError(f'cadence must be "auto" or an integer, not {cadence!r}')
    if not 1 <= cadence < 2**32:
        raise ValueError(f"cadence must be at least 1, not {cadence}")
    return cadence


def _budget(overhead_budget: Any) -> float:
    if isinstance(overhead_budget, bool) or not isinstance(overhead_budget, (int, float)):
        raise TypeError(f"overhead_budget must be a number, not {type(overhead_budget).__name__}")
    if not 0 < overhead_budget <= 1:
        raise ValueError(
            f"overhead_budget must be a share of the step's time, above 0 and at most 1, not {overhead_budget}"
        )
    return float(overhead_budget)


def _filter(watch: Any) -> Callable[[str], bool]:
    if watch is None:
        return lambda _path: True
    if isinstance(watch, str):
        try:
            watch = re.compile(watch)
        except re.error as error:
            raise ValueError(f"watch is not a valid regular expression: {error}") from error
    if isinstance(watch, re.Pattern):
        return lambda path: watch.search(path) is not None
    if not callable(watch) or inspect.isclass(watch):
        raise TypeError(f"watch must be a regular expression or a callable, not {type(watch).__name__}")
    return lambda path: bool(watch(path))


def _try_filter(watches: Callable[[str], bool], models: list[tuple[str, nn.Module]]) -> None:
    """A callable of the user's that raises must say so now, not leave a run behind that never began."""
    for _, model in models:
        for path, module in model.named_modules():
            if next(module.children(), None) is not None:
                continue
            try:
                watches(path)
            except Exception as error:
                raise ValueError(f"watch raised {type(error).__name__} for module {path!r}: {error}") from error
