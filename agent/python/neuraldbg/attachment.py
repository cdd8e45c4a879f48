"""What one live session consists of, put together and taken apart in one place."""

from __future__ import annotations

import dataclasses
import logging
import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from neuraldbg import compile_cache, compiled, loss, scaler, self_test
from neuraldbg.cadence import Cadence
from neuraldbg.config import Config
from neuraldbg.identity import Identity
from neuraldbg.native import Segment, SessionOptions
from neuraldbg.observer import Observer, module_paths, parameter_names
from neuraldbg.optimizer import StepWatch
from neuraldbg.ownership import Owner
from neuraldbg.session import SessionStatus
from neuraldbg.sites import Level, SiteTable

logger = logging.getLogger("neuraldbg")

_HOOKLESS = "neuraldbg: %s takes no hooks; the first optimizer that steps the model's parameters counts the steps"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The checked arguments of attach()."""

    models: list[tuple[str, nn.Module]]
    optimizers: list[torch.optim.Optimizer]
    watch: Callable[[str], bool]
    cadence: int | None  # None: as the budget allows
    budget: float
    scaler: Any
    start_step: int
    wrapped: bool  # by torch.compile, outside of what `models` holds


class Attachment:
    """Owns segment, hooks and wrappers. Created and closed by the training thread.

    The constructor raises SegmentError or OSError when the segment cannot be made; the models are then untouched.
    """

    def __init__(self, config: Config, identity: Identity, plan: Plan) -> None:
        modules = list(module_paths(plan.models))
        self.segment = _create_segment(config, identity, plan, modules)
        try:
            self._observe(plan, modules)
        except BaseException:
            self.segment.close()  # or the daemon would take this for a job that died
            raise

    def _observe(self, plan: Plan, modules: list[nn.Module]) -> None:
        self._first_step = plan.start_step
        self._graphs_before = compiled.recompiles()
        self._drops_said = False
        self._replacements = 0
        sites = SiteTable(self.segment)
        self._sites = sites
        self._cadence = Cadence(plan.cadence, plan.budget)
        self.steps = StepWatch(self.segment, sites, self._cadence, self._on_step_end)
        owner = Owner()
        self.observer = Observer(self.segment, sites, plan.models, plan.watch, self.steps, owner)
        self.loss = loss.LossWatch(sites, owner, self.steps.suspect_loss, lambda: self.steps.microbatches > 0)
        late = compiled.prepare(modules)
        compile_cache.keep_hits(self.segment.version)
        self_test.at_attach()
        if self.observer.level is Level.FUSED or plan.wrapped:
            self.observer.set_level(self_test.reached())
        self.observer.install()
        self.steps.add_parameters(parameter_names(plan.models))
        self.observer.parameter_count = len(self.steps.parameters)
        self.steps.set_scaler(plan.scaler)
        for optimizer in plan.optimizers:
            try:
                self.steps.add_optimizer(optimizer)
            except AttributeError:
                logger.warning(_HOOKLESS, type(optimizer).__name__)
        self._models = plan.models
        self._adoption = register_optimizer_step_pre_hook(torch._dynamo.disable(self._adopt))
        loss.start_watching(self.loss)
        scaler.start_watching(self.steps)
        if late:
            self.segment.add_mark(
                plan.start_step, "attached after the first compiled call; the model is compiled once more"
            )

    def _adopt(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Without an optimizer argument, the first one that is called with parameters of the model counts the steps.

        Later another one may take its place, as where each epoch makes its own.
        """
        try:
            if self.steps.watches(optimizer):
                return
            if self.steps.has_optimizer:
                if self.steps.is_succeeded_by(optimizer):
                    self.steps.succeed(optimizer)
                return
            known = {id(parameter) for _, model in self._models for parameter in model.parameters()}
            if any(id(parameter) in known for group in optimizer.param_groups for parameter in group["params"]):
                self.steps.adopt(optimizer)
        except Exception:
            logger.debug("neuraldbg: an optimizer could not be watched", exc_info=True)

    def _on_step_end(self) -> None:
        self.observer.finish_planning()
        self.steps.count_recompiles(compiled.recompiles() - self._graphs_before)
        status = self.segment.status()
        if status.replacements != self._replacements:
            self._replacements = status.replacements
            logger.warning(
                "neuraldbg: the file in shared memory was removed by somebody (RemoveIPC, a cleaning script?);"
                " %d records in it that no daemon had read count as dropped, %s takes its place",
                status.lost,
                self.segment.path,
            )
        if not self._drops_said and status.dropped > status.lost:
            self._drops_said = True
            logger.warning(
                "neuraldbg: new records are dropped and counted, training goes on: the ring is full because no daemon"
                " drains it (start neuraldbgd), or more threads report than it has lanes"
            )

    def end_step(self) -> None:
        """Ends a step where there is no optimizer."""
        self.steps.end(applied=True)

    def close_step(self) -> None:
        """Closes a step that has begun, so that what it holds can be read: the last records before a crash, say."""
        if self.segment.status().records_this_step > 0:
            self.steps.end(applied=False, unannounced=True)

    @property
    def last_step(self) -> int | None:
        """Number of the last step that was closed."""
        return self._first_step + self.steps.ended - 1 if self.steps.ended else None

    def status(self, run: str, rank: int) -> SessionStatus:
        """Counters of the segment beside what the plan says."""
        status = self.segment.status()
        return SessionStatus(
            run=run,
            rank=rank,
            enabled=bool(status.enabled),
            step=int(status.step),
            records=int(status.attempts),
            dropped=int(status.dropped),
            sites=self._sites.planned(),
            level=self.observer.level.name.lower(),
            graph_exact=self.observer.graph_exact,
            cadence=self._cadence.interval,
            agent_seconds=status.agent_ns / 1e9,
            segment=self.segment.path,
        )

    def close(self) -> None:
        """Takes everything off the models and out of torch again. Each part on its own: none may keep another."""
        if self._adoption is not None:
            self._adoption.remove()
            self._adoption = None
        loss.stop_watching(self.loss)
        scaler.stop_watching(self.steps)
        self.steps.close()
        self.observer.close()
        self.segment.close()


# At most: output, its gradient, and functional code on both sides of a module, seen on either way.
_SITES_PER_MODULE = 6
# What reports in a usual step: outputs and gradients, and every second module with functional code in front of it.
_RECORDS_PER_MODULE = 3
_OTHER_SITES = 64  # batch, loss, optimizer groups, system


def _create_segment(config: Config, identity: Identity, plan: Plan, modules: list[nn.Module]) -> Segment:
    parameters = sum(1 for _, model in plan.models for _ in model.parameters())
    return Segment(
        SessionOptions(
            shm_directory=str(config.shm_directory).encode(),
            run_name=config.run.encode(),
            launch=identity.launch.encode(),
            host=platform.node().encode(),
            framework=f"torch {torch.__version__}".encode(),
            rank=identity.rank,
            world_size=identity.world_size,
            incarnation=identity.incarnation,
            start_step=plan.start_step,
            records_per_step=_RECORDS_PER_MODULE * len(modules) + parameters + _OTHER_SITES,
            sites=_SITES_PER_MODULE * len(modules) + parameters + _OTHER_SITES,
            compiled=compiled.is_compiled([root for _, root in plan.models]),
            for_group=config.segment_group is not None,
            group=config.segment_group or 0,
        )
    )
