"""Everything that hangs on the models of one session: slots, hooks, and the plan that the first pass completes.

Leaf sites are known at attach. Which inputs are glue and which containers merge needs the module graph, and the graph
needs example inputs: the root's hook takes them from the first eager call, or from Dynamo while it traces the root,
before it looks at any submodule. Where that fails, leaf sites stand in execution order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from neuraldbg import batch, compiled, hooks, ops, self_test
from neuraldbg.graph import GraphError, trace_module_graph
from neuraldbg.modes import ModeWatch
from neuraldbg.native import Segment
from neuraldbg.optimizer import StepWatch
from neuraldbg.ownership import Owner
from neuraldbg.planning import Planner, equalize, is_leaf
from neuraldbg.release import OLD
from neuraldbg.shards import local_part
from neuraldbg.sites import Level, Role, SiteTable, clean_path

logger = logging.getLogger("neuraldbg")


class Observer:
    """Hooks of one session. Installed and planned by the training thread; hooks may run on any."""

    def __init__(
        self,
        segment: Segment,
        sites: SiteTable,
        models: list[tuple[str, nn.Module]],
        watch: Callable[[str], bool],
        steps: StepWatch,
        owner: Owner,
    ) -> None:
        self._owner = owner
        self._segment = segment
        self._sites = sites
        self._steps = steps
        self._roots = [module for _, module in models]
        self._unplanned = list(self._roots)
        self._handles: list[Any] = []
        self._exact = True
        self._ready = False
        self._closed = False
        self._cut_asked = False
        self.parameter_count = 0
        self.paths = module_paths(models)
        self._modes = ModeWatch(segment)
        self._planner = Planner(segment, sites, watch, self._hook_input)
        self._planner.level = Level.FUSED if compiled.is_compiled(self._roots) else Level.EAGER
        # Beside a compiled graph this runs inside Dynamo's reach, and must not be compiled itself.
        self.on_root_forward = torch._dynamo.disable(self._on_root_forward)
        self.on_root_output = torch._dynamo.disable(self._on_root_output)

    # ---- installing and removing

    def install(self) -> None:
        """Announces leaf sites and registers the shared hooks."""
        for module, path in self.paths.items():
            if isinstance(module, torch.jit.ScriptModule):
                self._planner.announce_silent(module, path)
                continue
            hooks.attach_slots(module)
            if is_leaf(module):
                self._planner.observe(module, path, Role.OUTPUT)
            # Containers get the hook too: once they turn out to merge, Dynamo may already have looked at their hooks.
            self._handles.append(module.register_forward_hook(hooks.output_hook))
        for root in self._roots:
            slots = hooks.slots_of(root)
            if slots is not None:
                slots.session, slots.token = self, ops.slot_tensor(_register(self, root))
            self._handles.append(root.register_forward_pre_hook(hooks.root_hook, with_kwargs=True, prepend=True))
            self._handles.append(root.register_forward_hook(hooks.root_output_hook))
        if self._planner.level is Level.NOT_OBSERVED:
            self._planner.give_up(list(self.paths))

    def _hook_input(self, module: nn.Module) -> None:
        self._handles.append(
            module.register_forward_pre_hook(hooks.input_hook, with_kwargs=not OLD or self.level is Level.EAGER)
        )

    def close(self) -> None:
        """Removes every hook and attribute. Dynamo's hook guards discard compiled code that held them."""
        self._closed = True
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for module in self.paths:
            hooks.detach_slots(module)
        for token in [token for token, (observer, _) in _roots.items() if observer is self]:
            del _roots[token]

    # ---- forward passes of a root

    def _on_root_forward(
        self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], beside_graph: bool
    ) -> None:
        """A root's forward pass begins, in eager mode or beside its compiled graph."""
        try:
            self._owner.pass_begins()
            if beside_graph and not self._cut_asked:
                self._cut_asked = True
                if compiled.cut_into_buckets():
                    self.give_up_activations(compiled.CUT)
            if self.needs_plan(root):
                self.plan(root, args, kwargs, beside_graph)
            tensors = batch.input_tensors(args, kwargs)
            self.pass_started(root, torch.is_grad_enabled(), batch.samples_in(tensors))
            slots = hooks.slots_of(root)
            for tensor, slot in zip(tensors, slots.batch if slots is not None else (), strict=False):
                ops.batch(local_part(tensor), slot)
        except Exception:
            logger.debug("neuraldbg: at a root's forward pass", exc_info=True)

    def _on_root_output(self, output: Any) -> None:
        try:
            self._owner.pass_ended(output)
        except Exception:
            logger.debug("neuraldbg: a root's output could not be stamped", exc_info=True)

    def pass_started(self, root: nn.Module, grad_mode: bool, samples: int) -> None:
        """Tells the step watch of a forward pass of the first root."""
        if torch._C._current_graph_task_id() != -1:
            return  # inside backward: checkpointing runs the pass again, which is no micro-batch
        self._modes.pass_started()
        if root is self._roots[0]:
            self._steps.forward_started(root.training, grad_mode, samples)

    # ---- the plan

    def needs_plan(self, root: nn.Module) -> bool:
        """Whether no forward pass of this root was seen yet."""
        return not self._closed and any(root is one for one in self._unplanned)

    def plan(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], compiles: bool) -> None:
        """Takes the root's module graph from example inputs, real or fake, and announces what it shows."""
        if compiles and self._planner.level is Level.EAGER:
            self._reach(self_test.reached_while_tracing() if torch.compiler.is_compiling() else self_test.reached())
        first_batch = len(self._planner.batch_sites)
        try:
            graph = trace_module_graph(root, self.paths, args, kwargs, first_batch)
        except GraphError as error:
            self.plan_without_graph(root, str(error), batch.input_tensors(args, kwargs))
            return
        self._planner.announce_batch(root, graph.inputs)
        self._planner.announce_graph(self._modules_of(root), graph)
        self._planned(root)

    def plan_without_graph(self, root: nn.Module, reason: str, inputs: list[torch.Tensor] | None = None) -> None:
        """Leaf sites in the order of registration."""
        logger.info("neuraldbg: no module graph, sites stand in execution order (%s)", reason)
        self._exact = False
        self._planner.announce_batch(root, inputs or [])
        self._planner.announce_order(list(self._modules_of(root)))
        self._planned(root)

    def give_up_activations(self, why: str) -> None:
        """From the graph that is traced next on, nothing inside of it is observed. Said once."""
        if self._planner.level is not Level.NOT_OBSERVED:
            logger.warning("neuraldbg: activations and their gradients are not observed: %s", why)
            self._planner.give_up(list(self.paths))

    def finish_planning(self) -> None:
        """At the end of the first step: roots that were not called themselves (only their parts were)."""
        for root in list(self._unplanned):
            self.plan_without_graph(root, "the model itself was not called")

    def _planned(self, root: nn.Module) -> None:
        equalize(root, self._hook_input)
        self._modes.watch(self._planner.observed)
        self._unplanned = [one for one in self._unplanned if one is not root]
        if not self._unplanned and not self._ready:
            self._ready = True
            self._segment.ready(self._exact, self._sites.planned(), self.parameter_count)
            logger.info("neuraldbg: %d sites, level %s", self._sites.planned(), self.level.name.lower())

    def _modules_of(self, root: nn.Module) -> dict[str, nn.Module]:
        return {self.paths[module]: module for module in root.modules() if module in self.paths}

    @property
    def graph_exact(self) -> bool:
        """Whether the edges are dataflow."""
        return self._ready and self._exact

    def set_level(self, level: Level) -> None:
        """What compiled graphs reach here (self_test.py). Before install()."""
        self._planner.level = level

    def _reach(self, level: Level) -> None:
        """The model turns out to be compiled, with slots on its modules already."""
        self._planner.level = level
        if level is Level.NOT_OBSERVED:
            self._planner.give_up(list(self.paths))
        elif level is Level.FORWARD_ONLY:
            self._planner.drop_gradients(list(self.paths))

    @property
    def level(self) -> Level:
        """How activations are observed."""
        return self._planner.level


_roots: dict[int, tuple[Observer, nn.Module]] = {}  # by token, for the operator that compiled roots leave behind


def _register(observer: Observer, root: nn.Module) -> int:
    token = max(_roots, default=0) + 1
    _roots[token] = (observer, root)
    return token


def _compiled_root_started(token: int, grad_mode: bool, samples: int) -> None:
    """A root that was inlined into a graph runs. Called from inside the graph: must not raise."""
    entry = _roots.get(token)
    if entry is not None:
        try:
            entry[0].pass_started(entry[1], grad_mode, samples)
        except Exception:
            logger.debug("neuraldbg: at a compiled root's forward pass", exc_info=True)


ops.set_enter_handler(_compiled_root_started)


def module_paths(models: list[tuple[str, nn.Module]]) -> dict[nn.Module, str]:
    """All modules with their paths, each once; the wrappers of torch.compile are none of the user's modules.

    A ScriptModule is one, whatever it is made of: neither Python nor a hook gets inside.
    """
    paths: dict[nn.Module, str] = {}
    for prefix, root in models:
        scripts: list[str] = []
        for path, module in root.named_modules():
            if any(path.startswith(f"{script}.") for script in scripts):
                continue
            if isinstance(module, torch.jit.ScriptModule):
                scripts.append(path)
            if type(module).__name__ != "OptimizedModule":
                paths.setdefault(module, ".".join(part for part in (prefix, clean_path(path)) if part))
    return paths


def parameter_names(models: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Parameter, str]]:
    """(name, parameter, module path) of every parameter, each once."""
    named = []
    for prefix, root in models:
        for raw, value in root.named_parameters():
            name = ".".join(part for part in (prefix, clean_path(raw)) if part)
            named.append((name, value, name.rpartition(".")[0]))
    return named
