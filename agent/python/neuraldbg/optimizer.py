"""Steps, optimizer groups and parameters: everything that happens around optimizer.step().

Step n is the work that leads to the n-th call of the first optimizer's step(), steps that the AMP scaler skips
included. Parameters cost a pass over all weights, so they rotate: parameter i is observed in the steps of group
i % groups.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from neuraldbg import ops, shards
from neuraldbg.cadence import Cadence
from neuraldbg.native import NO_SITE, OptimizerRecord, Segment, StepRecord
from neuraldbg.sites import Phase, Role, Site, SiteTable, dtype_number

logger = logging.getLogger("neuraldbg")

# One rotation group per quarter million weights keeps a step's share of the pass below what a small batch hides; each
# tensor still comes at least every 16 steps (design: measured 6 % of an MLP step when all are read every step).
_WEIGHTS_PER_GROUP = 262_144
_MAX_GROUPS = 16
_DIRTY_WATCHERS = 4  # parameters asked whether gradients were cleared; more only matter if these get no gradient


@dataclasses.dataclass
class WatchedParameter:
    """A parameter, its site, and the optimizer and group that hold it (None and NO_SITE if none does)."""

    name: str
    value: nn.Parameter
    site: Site
    slot: torch.Tensor
    optimizer: torch.optim.Optimizer | None
    observed: bool = False  # parameter_before ran in this step


class StepWatch:
    """Counts steps, rotates parameters, pushes PARAMETER, OPTIMIZER and STEP records.

    Owned by the Observer; all calls come from the training thread. Nothing here waits for a device.
    """

    def __init__(self, segment: Segment, sites: SiteTable, cadence: Cadence, on_step_end: Callable[[], None]) -> None:
        self._segment = segment
        self._on_step_end = on_step_end  # what must be in the ring or manifest before the STEP record
        self._sites = sites
        self._cadence = cadence
        self._step_site = sites.add(Site("step", Role.STEP, Phase.SYSTEM))
        self._optimizers: list[torch.optim.Optimizer] = []
        self._group_sites: dict[tuple[int, int], Site] = {}
        self._handles: list[Any] = []
        self._optimizer_handles: dict[int, list[Any]] = {}
        self._strangers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # with no parameters of the first
        self._left: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._scaler: Any = None
        self.parameters: list[WatchedParameter] = []
        self.groups = 1
        self.microbatches = 0
        self.samples = 0
        self.calls = 0  # of the first optimizer's step(), skipped ones not counted
        self._ended = 0
        self._skipped = 0
        self._all_parameters = False
        self._loss_nonfinite = False
        self._dirty = False
        self._dirty_checked: set[int] = set()
        self._last_end_ns = time.perf_counter_ns()
        self._recompiles = 0
        cadence.start(segment)

    # ---- setting up

    def add_parameters(self, named: list[tuple[str, nn.Parameter, str]]) -> None:
        """Announces (name, parameter, module path) once each; parameters that share storage form a tie group."""
        storages: dict[int, list[Site]] = {}
        for name, value, path in named:
            if isinstance(value, torch.nn.parameter.UninitializedTensorMixin):
                continue  # it has no shape before the first pass
            part = shards.local_part(value)
            site = Site(name, Role.PARAMETER, Phase.PARAMETER, module=path, shape=tuple(part.shape))
            site.module_kind = shards.label(value)
            site.dtype = dtype_number(value.dtype)
            site.requires_grad = value.requires_grad
            output = self._sites.by_name.get(f"{path}:output")
            site.twin = output.id if output is not None else NO_SITE
            self._sites.add(site)
            watched = WatchedParameter(name, value, site, self._sites.slot(site), None)
            self.parameters.append(watched)
            if part.numel() > 0:
                storages.setdefault(_storage(part), []).append(site)
            with torch.no_grad():
                ops.parameter_init(part, watched.slot)
        for group, tied in enumerate((sites for sites in storages.values() if len(sites) > 1), start=1):
            for site in tied:
                site.tie_group = group
                self._sites.update(site)
        total = sum(watched.value.numel() for watched in self.parameters)
        self.groups = min(_MAX_GROUPS, max(1, math.ceil(total / _WEIGHTS_PER_GROUP)))
        self._watch_clearing()

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Watches an optimizer's calls; the first one added counts the steps. Raises where it takes no hooks."""
        self._hook(optimizer)
        index = len(self._optimizers)
        self._optimizers.append(optimizer)
        by_id = {id(watched.value): watched for watched in self.parameters}
        for number, group in enumerate(optimizer.param_groups):
            position = len(self._group_sites)
            site = self._sites.add(
                Site(
                    f"optimizer[{position}]",
                    Role.OPTIMIZER,
                    Phase.OPTIMIZER,
                    module_kind=type(optimizer).__name__,
                    optimizer_group=position,
                )
            )
            self._group_sites[index, number] = site
            for parameter in group["params"]:
                watched = by_id.get(id(parameter))
                if watched is not None:
                    watched.optimizer = optimizer
                    watched.site.optimizer_group = position
                    self._sites.update(watched.site)

    def _hook(self, optimizer: torch.optim.Optimizer) -> None:
        # Where the optimizer's step is compiled, these run between its graphs, with the values of that very step.
        self._optimizer_handles[id(optimizer)] = [
            optimizer.register_step_pre_hook(torch._dynamo.disable(self._before_step)),
            optimizer.register_step_post_hook(torch._dynamo.disable(self._after_step)),
        ]

    def is_succeeded_by(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer that counts the steps was left for this one, which is not watched.

        It holds some of its parameters, and a forward pass ran since the last step: where both step after each pass,
        the first goes on counting. One that was left itself comes back once it was called twice within a step, which is
        not so where it runs inside of its successor (a wrapper).
        """
        if optimizer in self._strangers or not self._optimizers:
            return False
        counted = {id(value) for group in self._optimizers[0].param_groups for value in group["params"]}
        if not any(id(value) in counted for group in optimizer.param_groups for value in group["params"]):
            self._strangers.add(optimizer)
            return False
        before, self._left[optimizer] = self._left.get(optimizer, self._ended), self._ended
        return self.microbatches > 0 and before == self._ended

    def succeed(self, optimizer: torch.optim.Optimizer) -> None:
        """Lets an optimizer whose step() is just being called take the place of the one that counted the steps."""
        left = self._optimizers[0]
        self._left[left] = -1  # whenever it was called last
        self._hook(optimizer)
        for handle in self._optimizer_handles.pop(id(left)):
            handle.remove()
        self._optimizers[0] = optimizer
        for watched in self.parameters:
            if watched.optimizer is left:
                watched.optimizer = optimizer
        self._segment.add_mark(self._segment.step(), f"another optimizer ({type(optimizer).__name__}) goes on")
        self._before_step(optimizer, (), {})

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Adds an optimizer whose step() is just being called, past its pre-hooks."""
        self.add_optimizer(optimizer)
        self._before_step(optimizer, (), {})

    def watches(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this optimizer was added."""
        return any(optimizer is one for one in self._optimizers)

    @property
    def has_optimizer(self) -> bool:
        """Whether steps are counted from an optimizer."""
        return bool(self._optimizers)

    def set_scaler(self, scaler: Any) -> None:
        """The AMP scaler whose scale the records carry."""
        self._scaler = scaler

    def close(self) -> None:
        """Takes all hooks off optimizers and parameters."""
        for handle in [*self._handles, *(one for pair in self._optimizer_handles.values() for one in pair)]:
            handle.remove()
        self._handles.clear()
        self._optimizer_handles.clear()

    # ---- forward and backward

    def forward_started(self, training: bool, grad_mode: bool, samples: int) -> None:
        """One forward pass of the first root module begins."""
        if training and grad_mode:
            self._segment.context(training, grad_mode, self.microbatches)
            self.microbatches += 1
            self.samples += samples
        else:
            self._segment.context(training, grad_mode, self.microbatches)

    def suspect_loss(self) -> None:
        """The loss is not finite: all parameters are observed in this step."""
        self._loss_nonfinite = True

    def _watch_clearing(self) -> None:
        """Asks a few small parameters, before their first gradient of a step arrives, whether the last one is gone.

        Not at the forward pass: clearing gradients between forward and backward is a common and correct order.
        """
        trained = [one.value for one in self.parameters if one.value.requires_grad and one.value.device.type == "cpu"]
        for value in sorted(trained, key=lambda value: value.numel())[:_DIRTY_WATCHERS]:
            self._handles.append(value.register_hook(functools.partial(self._check_cleared, value)))

    def _check_cleared(self, value: nn.Parameter, _gradient: torch.Tensor) -> None:
        if torch.compiler.is_compiling():
            return  # compiled autograd traces hooks: what follows would compile the pass anew in every step
        if self._ended > 0 and id(value) not in self._dirty_checked:
            self._dirty_checked.add(id(value))
            if value.grad is not None and not self._dirty:
                self._dirty = bool(torch.count_nonzero(shards.local_part(value.grad)))

    # ---- optimizer.step()

    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        try:
            self._take_before(optimizer)
        except Exception:
            logger.debug("neuraldbg: before optimizer.step", exc_info=True)

    def _after_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        try:
            self._take_after(optimizer)
        except Exception:
            logger.debug("neuraldbg: after optimizer.step", exc_info=True)

    def _take_before(self, optimizer: torch.optim.Optimizer) -> None:
        suspicious = self._loss_nonfinite or self._segment.status().nonfinite_this_step > 0
        self._all_parameters = self._all_parameters or suspicious
        first = optimizer is self._optimizers[0]
        with torch.no_grad():
            for index, watched in enumerate(self.parameters):
                if watched.optimizer is not optimizer and not (first and watched.optimizer is None):
                    continue
                if self._all_parameters or index % self.groups == self._rotation_group:
                    gradient = watched.value.grad
                    gradient = shards.local_part(gradient) if gradient is not None else None
                    ops.parameter_before(shards.local_part(watched.value), gradient, watched.slot)
                    watched.observed = True

    def _take_after(self, optimizer: torch.optim.Optimizer) -> None:
        observed: dict[int, int] = {}
        first = optimizer is self._optimizers[0]
        with torch.no_grad():
            for watched in self.parameters:
                if watched.observed and (watched.optimizer is optimizer or (first and watched.optimizer is None)):
                    ops.parameter_after(shards.local_part(watched.value), watched.slot)
                    watched.observed = False
                    group = watched.site.optimizer_group
                    observed[group] = observed.get(group, 0) + 1
        found_inf = _found_inf(optimizer)
        self._push_groups(optimizer, observed, applied=not found_inf, found_inf=found_inf)
        if first:
            self.calls += 1
            self._skipped += found_inf
            self.end(applied=not found_inf, found_inf=found_inf)

    @property
    def _rotation_group(self) -> int:
        return self._ended % self.groups

    def scaler_stepped(self, scaler: Any, optimizer: torch.optim.Optimizer, calls_before: int) -> None:
        """The AMP scaler returned from its step(); when the optimizer did not run, it found non-finite gradients."""
        if self._scaler is None and self.watches(optimizer):
            self._scaler = scaler
        if self._optimizers and optimizer is self._optimizers[0] and self.calls == calls_before:
            self._skipped += 1
            self._push_groups(optimizer, {}, applied=False, found_inf=True)
            self.end(applied=False, found_inf=True)

    def _push_groups(
        self, optimizer: torch.optim.Optimizer, observed: dict[int, int], applied: bool, found_inf: bool
    ) -> None:
        index = next(i for i, one in enumerate(self._optimizers) if one is optimizer)
        for number, group in enumerate(optimizer.param_groups):
            site = self._group_sites.get((index, number))
            if site is None:
                continue  # a group that was added after attach has no site in the manifest
            betas = group.get("betas") or (group.get("momentum", math.nan), math.nan)
            self._segment.optimizer(
                OptimizerRecord(
                    site=site.id,
                    group=site.optimizer_group,
                    parameter_count=len(group["params"]),
                    observed_count=observed.get(site.optimizer_group, 0),
                    skipped_total=self._skipped,
                    applied=applied,
                    found_inf=found_inf,
                    learning_rate=_plain(group.get("lr")),
                    loss_scale=self._loss_scale(),
                    weight_decay=_plain(group.get("weight_decay")),
                    beta1=_plain(betas[0]),
                    beta2=_plain(betas[1]),
                    epsilon=_plain(group.get("eps")),
                    gradient_sum_squares=math.nan,
                    update_sum_squares=math.nan,
                )
            )

    def _loss_scale(self) -> float:
        if self._scaler is None:
            return 1.0
        scale = getattr(self._scaler, "_scale", None)
        # On a device the scale would cost a synchronisation; the initial value is then the only one at hand.
        return _plain(scale) if scale is not None else _plain(getattr(self._scaler, "_init_scale", None))

    # ---- the end of a step

    def end(self, applied: bool, found_inf: bool = False, unannounced: bool = False) -> None:
        """Closes the step that is running and begins the next."""
        self._on_step_end()
        now = time.perf_counter_ns()
        duration = now - self._last_end_ns
        self._last_end_ns = now
        self._segment.end_step(
            StepRecord(
                site=self._step_site.id,
                applied=applied,
                found_inf=found_inf,
                grad_dirty=self._dirty,
                unannounced=unannounced,
                all_parameters=self._all_parameters or self.groups == 1,
                samples=self.samples,
                duration_ns=duration,
                microbatches=self.microbatches,
                cadence=self._cadence.interval,
                rotation_group=self._rotation_group,
                rotation_groups=self.groups,
                shed_level=0,
                skipped_total=self._skipped,
                recompiles=self._recompiles,
            )
        )
        suspicious = self._all_parameters
        self.microbatches = 0
        self.samples = 0
        self._all_parameters = self._loss_nonfinite = self._dirty = False
        self._dirty_checked.clear()
        self._ended += 1
        self._cadence.step_ended(self._segment, duration, suspicious)

    @property
    def ended(self) -> int:
        """Steps closed since attach."""
        return self._ended

    def count_recompiles(self, total: int) -> None:
        """Graphs compiled since attach."""
        self._recompiles = total


def _storage(value: torch.Tensor) -> int:
    try:
        return value.untyped_storage().data_ptr() or id(value)
    except (RuntimeError, NotImplementedError):  # a subclass without storage of its own
        return id(value)


def _found_inf(optimizer: torch.optim.Optimizer) -> bool:
    """Fused optimizers are called even when the scaler found non-finite gradients, and skip by themselves."""
    found = getattr(optimizer, "found_inf", None)
    if isinstance(found, torch.Tensor) and found.device.type == "cpu":
        return bool(found.item())
    return False


def _plain(value: Any) -> float:
    """A number, or NaN (which the library takes as missing) where there is none or it lies on a device."""
    if isinstance(value, torch.Tensor):
        return float(value) if value.device.type == "cpu" and value.numel() == 1 else math.nan
    return float(value) if isinstance(value, (int, float)) else math.nan
