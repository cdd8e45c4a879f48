"""The module graph: edges, glue and merges, from a pass that leaves no trace in the user's model."""

from __future__ import annotations

import copy
import random
import threading
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as functional
from neuraldbg.graph import GraphError, ModuleGraph, trace_module_graph
from neuraldbg.release import OLD
from neuraldbg.sites import Role, clean_path
from torch import Tensor, nn

from tests.agent.conftest import Segment, graphs
from tests.agent.small_models import GPT, MODELS, batch, loss_of


def graph_of(model: nn.Module, *inputs: Tensor, **named: Tensor) -> ModuleGraph:
    return trace_module_graph(model, {module: path for path, module in model.named_modules()}, inputs, named)


def parents(graph: ModuleGraph, path: str, role: Role) -> set[tuple[str, Role]]:
    return graph.nodes[path, role].parents


def test_residual_adds_and_attention_have_addresses() -> None:
    graph = graph_of(GPT(), batch("gpt")[0])
    assert parents(graph, "tokens", Role.OUTPUT) == {("0", Role.BATCH)}
    assert parents(graph, "blocks.0.ln1", Role.INPUT) == {("tokens", Role.OUTPUT)}
    assert graph.nodes["blocks.0.ln1", Role.INPUT].owner == ""
    assert parents(graph, "blocks.0.out", Role.INPUT) == {("blocks.0.qkv", Role.OUTPUT)}
    assert graph.nodes["blocks.0.out", Role.INPUT].owner == "blocks.0"
    assert parents(graph, "blocks.0", Role.MERGE) == {("blocks.0.ln2", Role.INPUT), ("blocks.0.proj", Role.OUTPUT)}
    assert parents(graph, "blocks.1.ln1", Role.OUTPUT) == {("blocks.0", Role.MERGE)}
    assert ("blocks.1.ln1", Role.INPUT) not in graph.nodes, "the merge is its tensor already"
    assert graph.covered == {"blocks": ("blocks.1", Role.MERGE), "": ("head", Role.OUTPUT)}
    assert graph.sinks == {("head", Role.OUTPUT)}
    assert graph.feeding() == {*graph.nodes, ("0", Role.BATCH)}


def test_edges_stay_linear_in_depth() -> None:
    def edges(depth: int) -> int:
        model = GPT()
        model.blocks = nn.Sequential(*[type(model.blocks[0])() for _ in range(depth)])
        return sum(len(node.parents) for node in graph_of(model, batch("gpt")[0]).nodes.values())

    two, four, six = edges(2), edges(4), edges(6)
    assert six - four == four - two > 0


def test_edges_follow_the_order_of_the_pass() -> None:
    for name, make in MODELS.items():
        graph = graph_of(make(), batch(name)[0])
        order = {key: i for i, key in enumerate(graph.nodes)}
        assert all(
            parent[1] is Role.BATCH or order[parent] < order[key]
            for key in order
            for parent in graph.nodes[key].parents
        )


def test_modules_called_twice_unused_modules_and_dead_ends() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.unused, self.side, self.last = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            x = self.shared(functional.relu(self.shared(x)))
            self.side(x)
            with torch.no_grad():
                x = x + scale
            return self.last(x)

    graph = graph_of(Model(), torch.randn(2, 4), scale=torch.ones(1))
    assert ("unused", Role.OUTPUT) not in graph.nodes
    assert ("side", Role.OUTPUT) in graph.nodes and ("side", Role.OUTPUT) not in graph.feeding()
    assert parents(graph, "last", Role.INPUT) == {("shared#1", Role.OUTPUT), ("1", Role.BATCH)}
    assert not graph.nodes["last", Role.INPUT].requires_grad


class Repeated(nn.Module):
    """Runs the same module several times; functional code stands before the second run."""

    def __init__(self, times: int = 2) -> None:
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(self.first(x))
        for _ in range(self.times - 1):
            x = self.shared(functional.relu(x))
        return self.last(x)


def test_each_run_of_a_module_is_a_node() -> None:
    graph = graph_of(Repeated(), torch.randn(2, 8))
    assert parents(graph, "shared", Role.OUTPUT) == {("first", Role.OUTPUT)}
    assert parents(graph, "shared#1", Role.INPUT) == {("shared", Role.OUTPUT)}
    assert parents(graph, "shared#1", Role.OUTPUT) == {("shared#1", Role.INPUT)}
    assert parents(graph, "last", Role.OUTPUT) == {("shared#1", Role.OUTPUT)}
    assert graph.nodes["shared#1", Role.OUTPUT].module == "shared"
    assert [call.key for call in graph.input_calls["shared"]] == [None, ("shared#1", Role.INPUT)]


def test_a_loop_stays_one_node() -> None:
    graph = graph_of(Repeated(times=17), torch.randn(2, 8))
    assert [key[0] for key in graph.nodes] == ["first", "shared", "shared", "last"]
    assert parents(graph, "shared", Role.OUTPUT) == {("first", Role.OUTPUT)}, "nothing that would close a circle"
    assert parents(graph, "shared", Role.INPUT) == {("shared", Role.OUTPUT)}
    assert parents(graph, "last", Role.OUTPUT) == {("shared", Role.OUTPUT)}
    assert not graph.input_calls.get("shared") and not graph.output_calls.get("shared")


def sums_of_squares(model: Repeated, x: Tensor) -> dict[str, float]:
    """What the sites of a Repeated should hold for this input."""
    tensors: dict[str, Tensor] = {}
    tensors["shared:output"] = model.shared(model.first(x))
    tensors["shared#1:input"] = functional.relu(tensors["shared:output"])
    tensors["shared#1:output"] = model.shared(tensors["shared#1:input"])
    names = list(tensors)
    loss = model.last(tensors["shared#1:output"]).square().sum()
    gradients = torch.autograd.grad(loss, [tensors[name] for name in names])
    tensors |= {f"{name}.grad": gradient for name, gradient in zip(names, gradients, strict=True)}
    return {name: float(tensor.detach().double().square().sum()) for name, tensor in tensors.items()}


@pytest.mark.parametrize("form", ["eager", "compiled"])
def test_each_run_of_a_module_reports_for_itself(form: str, attach: Any) -> None:
    torch.manual_seed(0)
    model = Repeated()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    session = attach(model, optimizer=optimizer)
    forward = torch.compile(model, backend="aot_eager", fullgraph=True) if form == "compiled" else model
    expected = []
    for step in range(3):
        x = torch.randn(4, 8)
        reference.load_state_dict(model.state_dict())
        expected.append(sums_of_squares(reference, x))
        if step == 1:  # half a pass between training steps must not shift the count
            model.shared(x)
        forward(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    segment = Segment(session.status().segment)
    assert "shared:input" not in segment.sites, "the first run's input is the output of another module"
    for step, sums in enumerate(expected):
        for site, value in sums.items():
            record = segment.of(site, step=step)[-1]
            assert record["sum_squares"] == pytest.approx(value, rel=1e-5), (step, site)


class Slow(nn.Module):
    """Says that its pass began, and gives another one time to begin meanwhile."""

    def __init__(self, begun: threading.Event, other_begun: threading.Event) -> None:
        super().__init__()
        self.leaf = nn.Linear(2, 2)
        self.events = begun, other_begun, threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        begun, other_begun, met = self.events
        begun.set()
        if other_begun.wait(0.5):
            met.set()
        return self.leaf(x)


@pytest.mark.skipif(OLD, reason="torch crashes by itself where two threads make fake tensors")
def test_passes_of_threads_do_not_meet_and_leave_compiling_switched_on() -> None:
    begun = threading.Event(), threading.Event()
    models = Slow(begun[0], begun[1]), Slow(begun[1], threading.Event())
    first = threading.Thread(target=graph_of, args=(models[0], torch.ones(1, 2)))
    first.start()
    assert begun[0].wait(60)
    graph_of(models[1], torch.ones(1, 2))
    first.join(60)
    assert not models[0].events[2].is_set()
    torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(1, 2))
    assert graphs() == (1, 0)


def state(model: nn.Module) -> list[Any]:
    return [
        [
            (name, value.clone(), value.data_ptr(), value._version)
            for name, value in model.state_dict(keep_vars=True).items()
        ],
        random.getstate(),
        numpy.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
    ]


class Stateful(nn.Module):
    """Counts calls in Python, draws random numbers everywhere, and lets hooks see its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.calls = 0
        self.history: list[Tensor] = []
        self.seen_by_hook = seen = []
        self.norm.register_forward_hook(lambda *_: seen.append(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.history.append(x)
        if random.random() < 2 and numpy.random.rand() < 2:
            x = functional.dropout(x, 0.5) + torch.rand(4)
        return self.spectral(self.norm(x))


def test_the_pass_changes_nothing() -> None:
    model = Stateful()
    x = torch.randn(3, 4)
    before = state(model)
    graph = graph_of(model, x)
    assert ("norm", Role.OUTPUT) in graph.nodes
    after = state(model)
    for (name, value, pointer, version), (_, old, old_pointer, old_version) in zip(after[0], before[0], strict=True):
        assert torch.equal(value, old) and (pointer, version) == (old_pointer, old_version), name
    assert after[1:] == before[1:], "a random state moved"
    assert (model.calls, model.history, model.seen_by_hook) == (0, [], [])


@pytest.mark.parametrize("name", MODELS)
def test_an_attached_model_trains_the_same_bits(name: str, attach: Any) -> None:
    def train(watch: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(MODELS[name](), nn.Dropout(0.2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        session = attach(model, optimizer=optimizer) if watch else None
        for step in range(2):
            x, y = batch(name, step)
            loss_of(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        if session is not None:
            session.detach()
        return [*model.state_dict().values()]

    bare, again, watched = train(False), train(False), train(True)
    assert all(torch.equal(a, b) for a, b in zip(bare, again, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))


class ByValue(nn.Module):
    """Branches on a value: cannot run on tensors without values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(x if x.sum() > 0 else -x)


def test_without_a_graph_sites_stand_in_execution_order(attach: Any) -> None:
    with pytest.raises(GraphError):
        graph_of(ByValue(), torch.randn(2, 8))
    model = ByValue()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = attach(model, optimizer=optimizer)
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    assert not session.status().graph_exact
    segment = Segment(session.status().segment)
    assert segment.run["graph_exact"] is False
    assert segment.edges == {("batch[0]", "first:output"), ("first:output", "second:output")}
    assert segment.sinks == {"second:output"}
    assert segment.counts(0)["second:output.grad"] == 1


def test_a_copy_that_reaches_the_users_tensors_is_given_up() -> None:
    norm = nn.BatchNorm1d(4)

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.call = lambda x: norm(x)  # a closure: no copy can see into it

        def forward(self, x: Tensor) -> Tensor:
            return self.call(x)

    with pytest.raises(GraphError):
        graph_of(Hidden(), torch.randn(2, 4))
    assert norm.num_batches_tracked == 0


def test_manifest_tells_frozen_parts_and_channels(attach: Any) -> None:
    model = MODELS["resnet"]()
    for value in model[0].parameters():
        value.requires_grad_(False)
    model[1].requires_grad_(False)
    session = attach(model)
    model(batch("resnet")[0])
    segment = Segment(session.status().segment)
    assert segment.sites["0:output.grad"]["level"] == 4, "no gradient will come, so none may be missed"
    assert segment.sites["3.conv1:output.grad"]["level"] != 4
    assert segment.sites["3.conv1:output"]["shape"] == [4, 16, 8, 8]
    assert segment.of("3.conv1:output")[0]["units"] == 16, "channels"
    assert segment.of("6:output")[0]["units"] == 5, "features"
    assert not segment.sites["0.weight"]["requires_grad"]


def test_paths_are_the_users() -> None:
    assert clean_path("_orig_mod.module.blocks._orig_mod.0") == "blocks.0"
    assert clean_path("module.head") == "head"
    assert clean_path("encoder.module.head") == "encoder.module.head", "a user's own module of that name"
