"""Rows of the table: the forms of torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.agent.rows import STEPS, Job, row
from tests.agent.rows_control_flow import inputs
from tests.agent.small_models import MODELS, WIDTH, Block, ResidualBlock, batch, loss_of, mlp

SECTION = "Compile"
COMPILED: dict[str, Any] = {"forms": ("compiled",)}

# How users write it; "blocks" is regional compilation. The method of a Sequential cannot be compiled, hooks or not.
FORMS = {
    "gpt": ("eager", "wrapper", "method", "function", "blocks"),
    "mlp": ("eager", "wrapper", "function"),
    "resnet": ("eager", "wrapper", "function", "blocks"),
}
TITLES = {
    "eager": "not compiled",
    "wrapper": "`torch.compile(model)`",
    "method": "`model.compile()`",
    "function": "`torch.compile(lambda m, x: m(x))`",
    "blocks": "blocks compiled one by one",
}
# Sites of what is changed in place inside of graphs, by whether the blocks alone are compiled.
IN_PLACE = {
    ("resnet", False): r"^2:output\.grad|relu\d:output\.grad",
    ("resnet", True): r"relu\d:output\.grad",
}
SITES = {"gpt": 82, "mlp": 20, "resnet": 44}


def compiled(model: nn.Module, form: str, backend: str) -> Callable[[Tensor], Tensor]:
    """The model, compiled in one of the forms, as a function of its input."""
    if form == "wrapper":
        return torch.compile(model, backend=backend, fullgraph=True)
    if form == "method":
        model.compile(backend=backend, fullgraph=True)
    elif form == "function":
        function = torch.compile(lambda model, x: model(x), backend=backend, fullgraph=True)
        return lambda x: function(model, x)
    elif form == "blocks":
        for module in model.modules():
            if isinstance(module, (Block, ResidualBlock)):
                module.compile(backend=backend, fullgraph=True)
    return model


def train_form(job: Job, name: str, form: str, backend: str = "aot_eager") -> None:
    """A few steps of one of the small models in one of the forms."""
    model = MODELS[name]()
    forward = compiled(model, form, backend)

    def loss(step: int) -> Tensor:
        x, y = batch(name, step)
        return loss_of(forward(x), y)

    job.train(model, loss, torch.optim.AdamW(model.parameters(), 1e-3))


def form_row(name: str, form: str, backend: str) -> None:
    def every_site(job: Job) -> None:
        assert len(job.segments[0].planned()) == SITES[name]

    inductor = ", inductor" if backend == "inductor" else ""
    forms = ("eager",) if form == "eager" else ("compiled",)

    @row(
        SECTION,
        f"{TITLES[form]}{inductor}: {name}",
        forms=forms,
        check=every_site,
        blind_by_tap=IN_PLACE.get((name, form == "blocks"), ""),
        same_bits_by_tap=not (name == "resnet" and inductor),
    )
    def whole_model(job: Job) -> None:
        train_form(job, name, form, backend)


for _name, _forms in FORMS.items():
    for _form in _forms:
        form_row(_name, _form, "aot_eager")
    form_row(_name, "wrapper", "inductor")


class Tower(nn.Module):
    """Blocks of one class behind a layer of another."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleList([Step() for _ in range(depth)])
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) * 2  # glue in front of the first block only
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Step(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc(torch.relu(self.norm(x)))


def compile_blocks(model: Tower) -> None:
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)


def one_code(job: Job) -> None:
    assert job.graphs[0] == 1, "one graph serves all blocks"


@row(SECTION, "12 identical blocks compiled one by one", check=one_code, **COMPILED, note="one graph serves all")
def twelve_blocks(job: Job) -> None:
    model = Tower(12)
    compile_blocks(model)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        job.train(model, lambda step: model(inputs(step)).square().mean())


def only_one_block(job: Job) -> None:
    (segment,) = job.segments
    watched = {site["module"] for site in segment.sites.values() if site["role"] <= 5 and site["level"] != 4}
    assert watched == {"blocks.2", "blocks.2.norm", "blocks.2.fc"}
    assert job.graphs[0] == 1


@row(SECTION, "only some blocks watched", check=only_one_block, **COMPILED, note="the others share their code")
def some_blocks(job: Job) -> None:
    model = Tower(4)
    compile_blocks(model)
    job.train(model, lambda step: model(inputs(step)).square().mean(), watch=r"^blocks\.2")


@row(SECTION, "only a submodule compiled, replaced by its wrapper", **COMPILED)
def wrapped_submodule(job: Job) -> None:
    model = Tower(2)
    model.blocks[1] = torch.compile(model.blocks[1], backend="aot_eager", fullgraph=True)
    job.train(model, lambda step: model(inputs(step)).square().mean())


@row(SECTION, "only a submodule compiled, in place", **COMPILED)
def compiled_submodule(job: Job) -> None:
    model = Tower(2)
    model.blocks[0].compile(backend="aot_eager", fullgraph=True)
    job.train(model, lambda step: model(inputs(step)).square().mean())


@row(SECTION, "a function of model and loss", **COMPILED, note="the loss inside is seen by `log_loss` alone")
def function_with_loss(job: Job) -> None:
    model = mlp()
    function = job.compile(lambda x, y: loss_of(model(x), y))
    job.train(model, lambda step: function(*batch("mlp", step)))


class Branches(nn.Module):
    """One of two layers runs, whichever a tensor's value says."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right, self.last = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = torch.cond(x.sum() > 0, lambda y: self.left(y), lambda y: self.right(y), (x,))
        return self.last(x)


@row(
    SECTION,
    "torch.cond",
    blind=frozenset({f"{side}:output{suffix}" for side in ("left", "right") for suffix in ("", ".grad")}),
    exact=False,
    note="bodies of cond, while_loop, map and scan take no hooks",
)
def branches(job: Job) -> None:
    model = Branches()
    forward = job.compile(model)
    job.train(model, lambda step: forward(inputs(step)).square().mean())


def sizes(job: Job, mark: bool) -> None:
    model = mlp()
    forward = job.compile(model)

    def loss(step: int) -> Tensor:
        x = inputs(step, 4 + 2 * step, 8)
        if mark:
            torch._dynamo.mark_dynamic(x, 0)
        return forward(x).square().mean()

    job.train(model, loss, steps=4)


def samples(job: Job) -> None:
    assert [record["samples"] for record in job.segments[0].of("step")] == [4, 6, 8, 10]


@row(SECTION, "dynamic shapes: `mark_dynamic`", check=samples, **COMPILED)
def marked(job: Job) -> None:
    sizes(job, mark=True)


@row(SECTION, "dynamic shapes: batches of many sizes", check=samples, **COMPILED)
def varying(job: Job) -> None:
    sizes(job, mark=False)


@row(SECTION, "dynamic shapes inside a function", check=samples, **COMPILED)
def varying_function(job: Job) -> None:
    model = mlp()
    function = job.compile(lambda x: model(x).square().mean(), dynamic=True)
    job.train(model, lambda step: function(inputs(step, 4 + 2 * step, 8)), steps=4)


@row(SECTION, "attach before `torch.compile`", **COMPILED)
def attach_first(job: Job) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = job.attach(model, optimizer=optimizer)
    forward = job.compile(model)
    for step in range(STEPS):
        loss = forward(inputs(step)).square().mean()
        if session is not None:
            session.log_loss(loss)
        loss.backward()
        job.keep(loss)
        job.keep_state(model)
        optimizer.step()
        optimizer.zero_grad()


@row(
    SECTION,
    "attach after the first compiled call",
    **COMPILED,
    extra_graphs=1,
    says="already compiled",
    note="compiled once more, with one line",
)
def attach_late(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)
    forward(inputs(99)).sum().backward()
    model.zero_grad()
    job.train(model, lambda step: forward(inputs(step)).square().mean())


@row(
    SECTION,
    "an unhooked twin compiled first",
    **COMPILED,
    extra_graphs=1,
    says="already compiled",
    note="they share no code any more; one line",
)
def twin_first(job: Job) -> None:
    twin, model = Tower(2), Tower(2)
    job.keep(job.compile(twin)(inputs(7)))
    forward = job.compile(model)
    job.train(model, lambda step: forward(inputs(step)).square().mean())


@row(SECTION, "an unhooked twin compiled after attach", **COMPILED, extra_graphs=1)
def twin_later(job: Job) -> None:
    twin, model = Tower(2), Tower(2)
    of_twin, forward = job.compile(twin), job.compile(model)

    def loss(step: int) -> Tensor:
        job.keep(of_twin(inputs(7)))
        return forward(inputs(step)).square().mean()

    job.train(model, loss)


def two_runs(job: Job) -> None:
    first, second = job.segments
    assert [len(segment.of("step")) for segment in job.segments] == [STEPS, STEPS]
    assert first.planned() == second.planned()


@row(
    SECTION,
    "detach and attach again",
    **COMPILED,
    check=two_runs,
    extra_graphs=1,
    note="compiled once more",
)
def attach_again(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)
    for _ in range(2):
        session = job.train(model, lambda step: forward(inputs(step)).square().mean())
        if session is not None:
            session.detach()


def updates_are_read(job: Job) -> None:
    (segment,) = job.segments
    for step in range(1, STEPS):
        for name in ("0.weight", "2.weight"):
            (record,) = segment.of(name, step=step)
            assert record["update_sum_squares"] > 0 and record["gradient_sum_squares"] > 0


BETWEEN = "the optimizer's hooks run between its graphs, where torch breaks them anyway"


@row(SECTION, "compiled optimizer", **COMPILED, check=updates_are_read, fewer_breaks=1, note=BETWEEN)
def compiled_optimizer(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    step_function = torch.compile(lambda: optimizer.step(), backend="aot_eager")
    job.attach(model, optimizer=optimizer)
    for step in range(STEPS):
        loss = forward(inputs(step)).square().mean()
        job.log(loss)
        loss.backward()
        job.keep(loss)
        job.keep_state(model)
        step_function()
        optimizer.zero_grad()
    job.keep_state(model)


@row(
    SECTION,
    "a whole compiled step, backward and optimizer inside",
    **COMPILED,
    check=updates_are_read,
    fewer_breaks=1,
    blind=frozenset({"loss"}),
    note=f"the loss is inside; {BETWEEN}",
)
def whole_step(job: Job) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    job.attach(model, optimizer=optimizer)

    @torch.compile(backend="aot_eager")
    def step_function(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for step in range(STEPS):
        job.keep(step_function(inputs(step)))
        job.keep_state(model)
