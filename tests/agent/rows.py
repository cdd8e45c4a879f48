"""The table of what the agent is known to work with: each row trains one small thing, bare and observed.

A row is a function of a Job. It runs once without the agent and once with it, in each of its forms, and is held to
this: losses, gradients, parameters and buffers bitwise equal; as many graphs and graph breaks; every planned site
reports the number of records that the row names (one, unless it says otherwise) in each step; the level reached is the
one that docs/compatibility.md names; nothing is logged, and nothing that the agent swallowed either.
docs/compatibility.md's table is made from these rows (compatibility_table.py).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import neuraldbg
import torch
from neuraldbg.release import OLD
from torch import Tensor, nn

from tests.agent.conftest import Segment, forget_compiled, graphs

STEPS = 3
RECOMPUTE = 1 << 2  # kFlagRecompute
# What the forms reach by default: before 2.13, gradients inside of graphs are reached by copies (self_test.py).
LEVELS = {"eager": "eager", "compiled": "tap" if OLD else "fused"}


class Job:
    """One run of a row: what it trains, with or without the agent, and what is left to compare."""

    def __init__(self, form: str, attach: Callable[..., neuraldbg.Session] | None) -> None:
        self.form = form
        self._attach = attach
        self.sessions: list[neuraldbg.Session] = []
        self.segments: list[Segment] = []
        self.kept: list[Tensor] = []
        self.levels: set[str] = set()
        self.exact = True
        self.graphs = (0, 0)
        self.logged: list[logging.LogRecord] = []

    @property
    def observed(self) -> bool:
        """Whether the agent takes part in this run."""
        return self._attach is not None

    def attach(self, model: Any, **arguments: Any) -> neuraldbg.Session | None:
        """attach(), in the run that has the agent."""
        if self._attach is None:
            return None
        session = self._attach(model, **arguments)
        self.sessions.append(session)
        return session

    def compile(self, target: Any, **options: Any) -> Any:
        """torch.compile in the compiled form; the thing itself in the eager one."""
        if self.form == "eager":
            return target
        return torch.compile(target, **{"backend": "aot_eager", "fullgraph": True} | options)

    def keep(self, *tensors: Tensor | None) -> None:
        """Values that must be the same with and without the agent."""
        for tensor in tensors:
            if tensor is not None:
                tensor = tensor.detach()
                self.kept.append(tensor.to_dense().clone() if tensor.is_sparse else tensor.clone())

    def keep_state(self, model: nn.Module) -> None:
        """Gradients (where there are any), parameters and buffers of a model."""
        for parameter in model.parameters():
            self.keep(parameter.grad, parameter)
        self.keep(*model.buffers())

    def train(
        self,
        model: nn.Module,
        loss_of: Callable[[int], Tensor],
        optimizer: torch.optim.Optimizer | None = None,
        steps: int = STEPS,
        **arguments: Any,
    ) -> neuraldbg.Session | None:
        """The usual loop: attach, then `loss_of(step)`, backward and an optimizer's step, `steps` times."""
        optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        session = self.attach(model, optimizer=optimizer, **arguments)
        for step in range(steps):
            loss = loss_of(step)
            self.log(loss)
            loss.backward()
            self.keep(loss)
            self.keep_state(model)
            optimizer.step()
            optimizer.zero_grad()
        self.keep_state(model)
        return session

    def log(self, loss: Tensor) -> None:
        """log_loss on every session."""
        for session in self.sessions:
            session.log_loss(loss)

    def finish(self) -> None:
        """Closes the sessions and reads what they left."""
        self.graphs = graphs()
        for session in self.sessions:
            status = session.status()
            self.levels.add(status.level)
            self.exact &= status.graph_exact
            session.detach()
            self.segments.append(Segment(status.segment))


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of docs/compatibility.md, and the test that holds it."""

    section: str
    title: str
    train: Callable[[Job], None]
    forms: tuple[str, ...] = ("eager", "compiled")
    levels: dict[str, str] = dataclasses.field(default_factory=dict)  # where not those of LEVELS
    # Records per step of the sites that match a pattern, where not one. The first match counts.
    times: dict[str, int] = dataclasses.field(default_factory=dict)
    varies: str = ""  # pattern of sites that only some of the steps have; the row's check counts them
    # Planned sites that do not report: what the daemon calls a BLIND_SPOT.
    blind: frozenset[str] = frozenset()
    # Pattern of more such sites where gradients are reached by taps, in compiled graphs of old releases of torch; and
    # whether the copies that taps cost leave Inductor's rounding as it is.
    blind_by_tap: str = ""
    same_bits_by_tap: bool = True
    # More to assert on what the observed run left behind.
    check: Callable[[Job], None] | None = None
    exact: bool = True  # whether the module graph is dataflow
    extra_graphs: int = 0  # that the agent costs here
    fewer_breaks: int = 0
    says: str = ""  # the one line that the agent logs
    note: str = ""

    @property
    def name(self) -> str:
        """As in the test's identifier."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def level(self, form: str) -> str:
        """How activations are observed in this form."""
        return self.levels.get(form, LEVELS[form])

    def _by_tap(self, form: str) -> bool:
        return self.level(form) == "tap"

    def comparable(self, form: str) -> bool:
        """Whether every number is the same as without the agent."""
        return self.same_bits_by_tap or not self._by_tap(form)

    def records(self, site: str, form: str) -> int:
        """How often this site reports in one step."""
        if site in self.blind or (self._by_tap(form) and re.search(self.blind_by_tap or "(?!)", site)):
            return 0
        return next((times for pattern, times in self.times.items() if re.search(pattern, site)), 1)


ROWS: list[Row] = []


def row(section: str, title: str, **properties: Any) -> Callable[[Callable[[Job], None]], Callable[[Job], None]]:
    """Makes the decorated function a row of the table."""

    def add(train: Callable[[Job], None]) -> Callable[[Job], None]:
        ROWS.append(Row(section, title, train, **properties))
        return train

    return add


def play(one: Row, form: str, attach: Callable[..., neuraldbg.Session] | None) -> Job:
    """Runs a row once."""
    forget_compiled()
    torch.manual_seed(0)
    job = Job(form, attach)
    with _listening() as job.logged:
        one.train(job)
        job.finish()
    return job


def same_bits(first: Iterable[Tensor], second: Iterable[Tensor]) -> bool:
    """Whether the tensors are equal in type, shape and every bit; NaN equals itself."""
    return all(_bits(a) == _bits(b) for a, b in zip(first, second, strict=True))


def _bits(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    flat = tensor.detach().contiguous().reshape(-1)
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def check(one: Row, form: str, attach: Callable[..., neuraldbg.Session]) -> Job:
    """Holds a row to what the table promises, in one form."""
    bare, watched = play(one, form, None), play(one, form, attach)
    if one.comparable(form) and not same_bits(bare.kept, watched.kept):
        assert same_bits(bare.kept, play(one, form, None).kept), "the row itself is not deterministic"
        raise AssertionError(f"the agent changed numbers: {_differences(bare.kept, watched.kept)}")
    assert bare.kept, "a row must compare something"
    assert watched.graphs == (bare.graphs[0] + one.extra_graphs, bare.graphs[1] - one.fewer_breaks)
    assert watched.levels == {one.level(form)}
    assert watched.exact == one.exact
    assert [line.getMessage() for line in watched.logged if line.exc_info] == [], "the agent swallowed an exception"
    spoken = [line.getMessage() for line in watched.logged if line.levelno >= logging.WARNING]
    assert len(spoken) == bool(one.says) and all(one.says in line for line in spoken), spoken
    for segment in watched.segments:
        count_records(one, segment, form)
    if one.check is not None:
        one.check(watched)
    return watched


def count_records(one: Row, segment: Segment, form: str) -> None:
    """Every planned site reports as often as the row says, in every step; nothing else does."""
    steps = [record["step"] for record in segment.of("step")]
    assert steps and steps == list(range(steps[0], steps[0] + len(steps)))
    assert segment.run["planned_sites"] == len(segment.planned())
    varies = re.compile(one.varies or "(?!)")
    expected = collections.Counter(
        {site: one.records(site, form) for site in segment.planned() if not varies.search(site)}
    )
    for step in steps:
        found = collections.Counter(
            segment.names[record["site"]]
            for record in segment.records
            if record["step"] == step
            and not record["flags"] & RECOMPUTE
            and not varies.search(segment.names[record["site"]])
        )
        assert +found == +expected, f"step {step}: {_off(found, expected)}"


def _off(found: collections.Counter[str], expected: collections.Counter[str]) -> dict[str, tuple[int, int]]:
    return {site: (found[site], expected[site]) for site in found | expected if found[site] != expected[site]}


def _differences(first: list[Tensor], second: list[Tensor]) -> list[int]:
    return [index for index, (a, b) in enumerate(zip(first, second, strict=False)) if _bits(a) != _bits(b)]


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextlib.contextmanager
def _listening() -> Iterator[list[logging.LogRecord]]:
    """Everything that the agent logs meanwhile, what it only tells at debug level included."""
    logger, listener = logging.getLogger("neuraldbg"), _Listener()
    level = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)
    try:
        yield listener.records
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)
