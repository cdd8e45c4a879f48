"""From a module graph to sites: which module gets which slots, and what the manifest says of it.

Leaf outputs are planned at attach; inputs that functional code computed and containers that merge come from the graph
of the first pass. Everything that is announced here happens before the first record of that pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from neuraldbg import batch, hooks, ops
from neuraldbg.graph import Call, Key, ModuleGraph
from neuraldbg.native import NO_GRADIENT, NO_SITE, Segment
from neuraldbg.sites import ROLE_SUFFIX, Level, Phase, Role, Site, SiteTable, gradient_level


class Planner:
    """Writes sites, edges and sinks into the manifest and slots onto modules. Used by the training thread only."""

    def __init__(
        self, segment: Segment, sites: SiteTable, watch: Callable[[str], bool], hook_input: Callable[[nn.Module], None]
    ) -> None:
        self._segment = segment
        self._sites = sites
        self._watch = watch
        self._hook_input = hook_input
        self._order = 0
        self.level = Level.EAGER
        self.batch_sites: list[Site] = []
        self.observed: list[tuple[nn.Module, Site]] = []  # forward sites, and whose mode their records carry

    def observe(
        self, module: nn.Module, path: str, role: Role, owner: str = "", place: str = "", mode: nn.Module | None = None
    ) -> None:
        """Announces a forward site with its gradient's and hangs their slots on the module.

        Where the module runs several times in a pass, the first site's slots stand for all of its calls (_tell_apart).
        `mode`: whose code computes the tensor, where that is not the module that the hook is on.
        """
        slots = hooks.slots_of(module)
        if slots is None or not self._watch(path):
            return
        forward, gradient = self._sites.add_activation(path, type(module).__name__, role, owner, self.level, place)
        self.observed.append((mode or module, forward))
        if self.level is Level.NOT_OBSERVED:
            return
        gradient_slot = self._sites.slot(gradient) if gradient.level is not Level.NOT_OBSERVED else None
        if role is Role.INPUT and slots.input is None:
            slots.input, slots.input_gradient = self._sites.slot(forward), gradient_slot
            self._hook_input(module)
        elif role is not Role.INPUT and slots.output is None:
            slots.output, slots.gradient = self._sites.slot(forward), gradient_slot

    def announce_silent(self, module: nn.Module, path: str) -> None:
        """Announces the output of a module that takes no hooks, so that the daemon names what is missing."""
        if self._watch(path):
            forward, _ = self._sites.add_activation(path, type(module).__name__, Role.OUTPUT, "", self.level)
            self.observed.append((module, forward))

    def give_up(self, modules: list[nn.Module]) -> None:
        """No activation is observed any more; the sites stay, and say so."""
        self.level = Level.NOT_OBSERVED
        for module in modules:
            slots = hooks.slots_of(module)
            if slots is not None:
                slots.output = slots.gradient = slots.input = slots.input_gradient = slots.token = None
        self._change_level()

    def drop_gradients(self, modules: list[nn.Module]) -> None:
        """Outputs alone are observed from now on."""
        self.level = Level.FORWARD_ONLY
        for module in modules:
            slots = hooks.slots_of(module)
            if slots is not None:
                slots.gradient = slots.input_gradient = None
        self._change_level()

    def _change_level(self) -> None:
        for _, forward in self.observed:
            gradient = self._sites.gradient_of(forward)
            forward.level, gradient.level = self.level, gradient_level(self.level)
            self._sites.update(forward)
            self._sites.update(gradient)

    def announce_batch(self, root: nn.Module, inputs: list[torch.Tensor]) -> None:
        """Sites "batch[i]", numbered on over the root modules."""
        added = batch.add_sites(self._sites, inputs, first=len(self.batch_sites))
        self.batch_sites.extend(added)
        slots = hooks.slots_of(root)
        if slots is not None:
            slots.batch = tuple(self._sites.slot(site) for site in added)

    def announce_graph(self, modules: dict[str, nn.Module], graph: ModuleGraph) -> None:
        """Adds the sites that only the graph shows, and tells the manifest all that the pass told."""
        feeding = graph.feeding()
        for key, node in graph.nodes.items():
            place, role = key
            if role is not Role.OUTPUT or place != node.module:
                self.observe(modules[node.module], node.module, role, node.owner, place, modules.get(node.owner))
            self._describe(key, graph, key in feeding)
        for calls in (*graph.input_calls.values(), *graph.output_calls.values()):
            self._tell_apart(calls, feeding)
        for path, module in modules.items():
            if is_leaf(module) and (path, Role.OUTPUT) not in graph.nodes:
                self._leave_out(path, graph)
            elif path in graph.covered and self._watch(path):
                self._cover(path, type(module).__name__, graph.covered[path])
        for key, node in graph.nodes.items():
            for parent in sorted(node.parents):
                self._edge(self.site_of(parent), self.site_of(key))
        for key in sorted(graph.sinks):
            site = self.site_of(key)
            if site is not None:
                self._segment.add_sink(site.id)

    def announce_order(self, paths: list[str]) -> None:
        """The fallback: leaf sites, chained in the order given, behind the first batch site."""
        previous = self.batch_sites[-1] if self.batch_sites else None
        for path in paths:
            site = self._sites.by_name.get(f"{path}:output")
            if site is not None:
                self._edge(previous, site)
                previous = site
        if previous is not None:
            self._segment.add_sink(previous.id)

    def site_of(self, key: Key) -> Site | None:
        """The site of a graph node, or of a model input."""
        path, role = key
        name = f"batch[{path}]" if role is Role.BATCH else f"{path}:{ROLE_SUFFIX[role]}"
        return self._sites.by_name.get(name)

    def _edge(self, producer: Site | None, consumer: Site | None) -> None:
        if producer is not None and consumer is not None:
            self._segment.add_edge(producer.id, consumer.id)

    def _describe(self, key: Key, graph: ModuleGraph, feeds_output: bool) -> None:
        """Fills in what the pass showed: order, shape, and whether a gradient will come."""
        forward = self.site_of(key)
        if forward is None:
            return
        node = graph.nodes[key]
        gradient = self._sites.gradient_of(forward)
        for site in (forward, gradient):
            site.describe_tensor(node.shape, node.dtype, node.requires_grad)
            site.topological_index = self._order
            site.owner = node.owner
        forward.level, gradient.level = self.level, gradient_level(self.level)
        if not (node.requires_grad and feeds_output):
            gradient.level = Level.NOT_OBSERVED
        self._order += 1
        self._sites.update(forward)
        self._sites.update(gradient)

    def _tell_apart(self, calls: list[Call], feeding: set[Key]) -> None:
        """Has each call of a module report as a site of its own."""
        sites = [self.site_of(call.key) if call.key is not None else None for call in calls]
        first = next((site for site in sites if site is not None), None)
        if len(calls) < 2 or first is None:
            return
        forward = [site.id if site is not None else NO_SITE for site in sites]
        gradients = []
        for call, site in zip(calls, sites, strict=True):
            if not call.requires_grad or feeding.isdisjoint(call.origins):
                gradients.append(NO_GRADIENT)
            else:
                gradients.append(self._sites.gradient_of(site).id if site is not None else NO_SITE)
        self._segment.set_calls(first.id, NO_SITE, forward)
        self._segment.set_calls(self._sites.gradient_of(first).id, first.id, gradients)

    def _cover(self, path: str, kind: str, covering: Key) -> None:
        """A container that passes on what a child computed: no tap, the child's site stands for it."""
        cover = self.site_of(covering)
        site = Site(f"{path}:output", Role.OUTPUT, Phase.FORWARD, path, kind, level=Level.NOT_OBSERVED)
        if cover is not None:
            site.covered_by, site.topological_index = cover.id, cover.topological_index
        self._sites.add(site)

    def _leave_out(self, path: str, graph: ModuleGraph) -> None:
        """A leaf that did not run, or gave nothing to observe. Its container's site covers it where there is one."""
        site = self._sites.by_name.get(f"{path}:output")
        if site is None:
            return
        cover = None
        container = path
        while container and cover is None:
            container = container.rpartition(".")[0]
            cover = self.site_of((container, Role.MERGE)) or self.site_of(
                graph.covered.get(container, ("", Role.MERGE))
            )
        for one in (site, self._sites.gradient_of(site)):
            one.level = Level.NOT_OBSERVED
            one.covered_by = cover.id if cover is not None else NO_SITE
            self._sites.update(one)


def is_leaf(module: nn.Module) -> bool:
    """Whether the module has no children."""
    return next(module.children(), None) is None


def equalize(root: nn.Module, hook_input: Callable[[nn.Module], None]) -> None:
    """Gives blocks that are compiled one by one the same taps, with slots that the operators ignore.

    Blocks of one class share compiled code. A block whose input is glue where its siblings' is not (the first one,
    behind the embedding) would otherwise be compiled once more.
    """
    blocks: dict[type, list[nn.Module]] = {}
    for module in root.modules():
        if type(module).__name__ == "OptimizedModule":
            blocks.setdefault(type(module._orig_mod), []).append(module._orig_mod)
        elif module.__dict__.get("_compiled_call_impl") is not None:
            blocks.setdefault(type(module), []).append(module)
    for siblings in blocks.values():
        members: dict[str, list[nn.Module]] = {}
        for block in siblings:
            for path, module in block.named_modules():
                members.setdefault(path, []).append(module)
        for modules in members.values():
            _equalize_slots([(module, hooks.slots_of(module)) for module in modules], hook_input)


def _equalize_slots(
    members: list[tuple[nn.Module, hooks.Slots | None]], hook_input: Callable[[nn.Module], None]
) -> None:
    present = [(module, slots) for module, slots in members if slots is not None]
    for forward, gradient in (("input", "input_gradient"), ("output", "gradient")):
        if any(getattr(slots, forward) is not None for _, slots in present):
            gradients = any(getattr(slots, gradient) is not None for _, slots in present)
            for module, slots in present:
                if getattr(slots, forward) is None:
                    setattr(slots, forward, ops.slot_tensor(-1))
                    setattr(slots, gradient, ops.slot_tensor(-1) if gradients else None)
                    if forward == "input":
                        hook_input(module)
