"""attach() checks its arguments, and after it nothing raises: copies, pickles, missing parts, odd models."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import neuraldbg
import pytest
import torch
import torch.nn.functional as functional
from neuraldbg import native
from torch import Tensor, nn

from tests.agent.conftest import Segment
from tests.agent.small_models import MODELS, batch


class Plain(nn.Module):
    """A user's module, picklable by reference."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.first(x)) + 1


@pytest.mark.parametrize(
    ("arguments", "error", "word"),
    [
        ({"model": None}, TypeError, "model"),
        ({"model": []}, ValueError, "model"),
        ({"model": [nn.ReLU(), 3]}, TypeError, "model"),
        ({"model": torch.jit.script(nn.ReLU())}, TypeError, "ScriptModule"),
        ({"optimizer": "adam"}, TypeError, "optimizer"),
        ({"run": "a b"}, ValueError, "run"),
        ({"run": ""}, ValueError, "run"),
        ({"run": "x" * 101}, ValueError, "run"),
        ({"run": 3}, TypeError, "run"),
        ({"rank": -1}, ValueError, "rank"),
        ({"rank": "0"}, TypeError, "rank"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank"),
        ({"world_size": 1.0}, TypeError, "world_size"),
        ({"watch": "("}, ValueError, "watch"),
        ({"watch": 3}, TypeError, "watch"),
        ({"watch": lambda path: 1 / 0}, ValueError, "watch"),
        ({"cadence": 0}, ValueError, "cadence"),
        ({"cadence": "often"}, TypeError, "cadence"),
        ({"overhead_budget": 0}, ValueError, "overhead_budget"),
        ({"overhead_budget": "1%"}, TypeError, "overhead_budget"),
        ({"scaler": 3}, TypeError, "scaler"),
        ({"scheduler": 3}, TypeError, "scheduler"),
        ({"start_step": -1}, ValueError, "start_step"),
        ({"start_step": 0.5}, TypeError, "start_step"),
    ],
)
def test_wrong_arguments_raise_and_name_the_argument(
    arguments: dict[str, Any], error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        neuraldbg.attach(**{"model": nn.Linear(1, 1)} | arguments)


def test_wrong_daemon_mode_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEURALDBG_DAEMON")
    with pytest.raises(ValueError, match="daemon"):
        neuraldbg.attach(nn.Linear(1, 1), daemon="sometimes")


def test_attaching_twice_is_an_error_until_detached(attach: Any) -> None:
    model = nn.Linear(2, 2)
    session = attach(model)
    with pytest.raises(ValueError, match="attached already"):
        neuraldbg.attach(nn.Sequential(model))
    session.detach()
    attach(model)


def test_switched_off_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURALDBG_ENABLED", "0")
    model = nn.Linear(2, 2)
    with neuraldbg.attach(model) as session:
        assert not session.enabled and not model._forward_hooks
        session.log_loss(torch.tensor(1.0))
        session.mark("nothing happens")
        session.step()
        assert session.status().records == 0
        assert session.diagnose().verdict == "INCOMPLETE_DATA"


@pytest.mark.parametrize("missing", ["library", "directory"])
def test_training_goes_on_where_the_agent_cannot_start(missing: str, tmp_path: Path) -> None:
    """In a process of its own: the library is loaded once per process."""
    script = f"""
import logging, os, torch
logging.basicConfig(level=logging.WARNING)
import neuraldbg, neuraldbg.native
if {missing!r} == "library":
    import pathlib
    neuraldbg.native.LIBRARY_PATH = pathlib.Path("/nonexistent/lib.so")
else:
    os.environ["NEURALDBG_SHM_DIR"] = "/nonexistent"
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with neuraldbg.attach(model, optimizer=optimizer, run="x") as session:
    model(torch.ones(1, 2)).sum().backward()
    session.log_loss(1.0)
    optimizer.step()
    print(session.enabled, len(model._forward_hooks))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "0"]
    assert done.stderr.count("WARNING") == done.stderr.count("the run is not observed") == 1


def test_copies_and_pickles_are_whole_and_silent(attach: Any) -> None:
    model = Plain()
    reference = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = attach(model, optimizer=optimizer)
    x, _ = batch("mlp")
    expected = model(x)
    records = session.status().records
    assert model.state_dict().keys() == reference.keys()
    assert [name for name, _ in model.named_buffers()] == []

    deep = copy.deepcopy(model)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for other in (deep, pickle.loads(pickle.dumps(model)), torch.load(stored, weights_only=False)):
        assert torch.equal(other(x), expected)
        other(x).sum().backward()
    assert session.status().records == records, "a copy reported as the original"

    other = neuraldbg.attach(deep, run="other", cadence=1)
    deep(x)
    assert other.status().records > 0
    other.detach()


def test_observed_outputs_of_any_structure(attach: Any) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 4, batch_first=True)
            self.nothing = nn.Module()
            self.nothing.forward = lambda: None  # type: ignore[method-assign]

        def forward(self, x: Tensor, extra: dict[str, Tensor]) -> dict[str, Any]:
            self.nothing()
            out, state = self.lstm(x.unsqueeze(1))
            return {"label": extra["ids"].argmax(), "out": out, "state": state}

    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = attach(model, optimizer=optimizer)
    model(torch.randn(3, 8), {"ids": torch.arange(3)})["out"].sum().backward()
    optimizer.step()
    segment = Segment(session.status().segment)
    counts = segment.counts(0)
    assert counts["lstm:output"] == counts["lstm:output.grad"] == 1
    assert {"batch[0]", "batch[1]"} <= set(counts)
    assert "nothing:output" not in segment.planned()


class Untouchable(torch.Tensor):
    """A tensor subclass that refuses to be looked at."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "detach":
            raise RuntimeError("hands off")
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_tensor_that_cannot_be_observed_costs_one_line(attach: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.as_subclass(Untouchable)

    model = nn.Sequential(nn.Linear(2, 2), Odd())
    session = attach(model)
    for _ in range(2):
        model(torch.ones(1, 2)).as_subclass(Tensor).sum().backward()
        session.step()
    assert sum("Odd is not observed: hands off" in line for line in caplog.messages) == 1
    assert len(Segment(session.status().segment).of("0:output.grad")) == 2


def test_watch_limits_what_is_observed(attach: Any) -> None:
    model = MODELS["gpt"]()
    session = attach(model, watch=r"blocks\.1")
    model(batch("gpt")[0])
    session.detach()
    segment = Segment(session.status().segment)
    observed = {site["module"] for site in segment.sites.values() if site["role"] <= 5 and site["level"] != 4}
    assert observed and all(module.startswith("blocks.1") for module in observed)


def test_several_models(attach: Any) -> None:
    models = {"generator": nn.Linear(8, 8), "critic": nn.Sequential(nn.Linear(8, 1))}
    session = attach(models)
    models["critic"](models["generator"](torch.randn(2, 8))).sum().backward()
    session.step()
    segment = Segment(session.status().segment)
    assert {"generator:output", "critic.0:output"} <= set(segment.counts(0))
    assert {"generator.weight", "critic.0.bias"} <= set(segment.inits)
    assert ("batch[1]", "critic.0:output") in segment.edges and segment.run["graph_exact"]


def test_a_model_of_many_modules_gets_a_segment_to_match(attach: Any, tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2200)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    session = attach(model, optimizer=optimizer, cadence=1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    status = session.status()
    assert status.sites > 8192, "more than the default has counters for"
    assert status.dropped == 0
    small = attach(nn.Linear(4, 4), cadence=1)
    sizes = [Path(one.status().segment).stat().st_size for one in (session, small)]
    assert sizes[0] > 4 * sizes[1], sizes


def test_the_unrelated_package_of_the_same_name_is_refused(tmp_path: Path) -> None:
    metadata = tmp_path / "neuraldbg-1.3.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: neuraldbg\nVersion: 1.3.2\n")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import neuraldbg"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "unrelated package 'neuraldbg'" in done.stderr.splitlines()[-1]


def test_structures_match_the_header() -> None:
    """Field by field, names and order: a structure that drifts from capi.h would be read as garbage."""
    header = (Path(__file__).parents[2] / "agent/src/capi.h").read_text()
    for c_name, structure in {
        "ndbg_session_options": native.SessionOptions,
        "ndbg_site": native.SiteRecord,
        "ndbg_optimizer": native.OptimizerRecord,
        "ndbg_step": native.StepRecord,
        "ndbg_status": native.Status,
    }.items():
        body = header[: header.index(f"}} {c_name};")].rpartition("typedef struct {")[2]
        declarations = [line.split("//")[0].strip(" ;\n") for line in body.splitlines() if ";" in line]
        names = [
            name.strip(" *").split()[-1].lstrip("*")
            for declaration in declarations
            for name in declaration.replace(";", ",").split(",")
            if name.strip()
        ]
        assert names == [field[0] for field in structure._fields_], c_name


class UnreadableError(Exception):
    """Has no message to print."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("shapes differ\nsecond line"), "ValueError: shapes differ"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (UnreadableError(), "UnreadableError: its message cannot be read"),
    ],
)
def test_an_exception_that_leaves_the_block_is_announced_and_goes_on(error: BaseException, words: str) -> None:
    with pytest.raises(type(error)), neuraldbg.attach(nn.Linear(2, 2), run="test") as session:
        path = session.status().segment
        raise error
    assert [mark["text"] for mark in Segment(path).marks] == [f"the block ended by {words}"]
