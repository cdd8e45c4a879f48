"""What the user's program does beside training raised, or gave other numbers, while a session lived.

Found by trying: an evaluation under inference_mode before the first step; attach inside of one; a table of
`__torch_function__` overrides; pickles and TorchScript of torch's own losses.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import neuraldbg
import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from tests.agent.conftest import Segment, attach, surroundings
from tests.agent.rows import LEVELS

__all__ = ["attach", "surroundings"]  # fixtures


class Glued(nn.Module):
    """Has functional code between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.relu(self.first(x)) + 1)


def train(model: nn.Module, forward: Callable[[Tensor], Tensor]) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
        functional.mse_loss(forward(x), torch.zeros(16, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("wrapper", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_an_evaluation_in_inference_mode_before_training(wrapper: bool, inside: bool, attach: Any) -> None:
    torch.manual_seed(0)
    model = Glued()
    bare = copy.deepcopy(model)
    expected = train(bare, torch.compile(bare, backend="aot_eager"))
    forward = torch.compile(model, backend="aot_eager")
    observed = forward if wrapper else model
    with torch.inference_mode(inside):
        session = attach(observed)
    with torch.inference_mode():
        forward(torch.ones(16, 4))
    assert all(map(torch.equal, train(model, forward), expected))
    assert session.status().level == LEVELS["compiled"]
    segment = Segment(session.status().segment)
    for step in (1, 2):
        assert segment.counts(step) == dict.fromkeys(segment.planned(), 1)


class Table(Tensor):
    """Overrides torch's functions by a table, as torch's own notes on extending it do."""

    handled: ClassVar[dict[Any, Callable[..., Any]]] = {
        functional.mse_loss: lambda a, b, **_: 7 * (torch.Tensor(a) - torch.Tensor(b)).square().mean()
    }

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in cls.handled:
            return cls.handled[func](*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_overrides_are_called_as_without_a_session(attach: Any) -> None:
    model, x, y = nn.Linear(2, 1), torch.ones(4, 2), torch.zeros(4, 1).as_subclass(Table)
    with torch.no_grad():
        before = functional.mse_loss(model(x), y)
        attach(model)
        assert torch.equal(functional.mse_loss(model(x), y), before)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, nn.MSELoss, nn.NLLLoss, nn.KLDivLoss, nn.L1Loss, nn.HuberLoss])
def test_losses_are_pickled_and_scripted_while_a_session_lives(loss: type[nn.Module], attach: Any) -> None:
    attach(nn.Linear(2, 2))
    made = torch.ones(2, 3).log_softmax(1)
    targets = torch.zeros(2, dtype=torch.long) if loss in (nn.CrossEntropyLoss, nn.NLLLoss) else torch.ones(2, 3)
    assert torch.equal(torch.jit.script(loss())(made, targets), loss()(made, targets))
    for name in ("mse_loss", "cross_entropy"):
        assert pickle.loads(pickle.dumps(getattr(functional, name))) is getattr(functional, name)


def test_steps_go_on_with_an_optimizer_that_takes_the_place_of_another(attach: Any) -> None:
    model = nn.Linear(2, 2)
    for given in (True, False):
        first = torch.optim.SGD(model.parameters(), 0.1)
        session = attach(model, optimizer=first) if given else attach(model)
        for optimizer in (first, torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), 0.1)):
            for _ in range(3):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert session.status().step == 9
        session.detach()


class Around(torch.optim.Optimizer):
    """Has another optimizer step inside of its own step."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_an_optimizer_inside_of_another_counts_once(attach: Any) -> None:
    model = nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    around = Around(inner)
    session = attach(model, optimizer=inner)
    for _ in range(6):
        model(torch.ones(1, 2)).sum().backward()
        around.step()
        around.zero_grad()
    assert session.status().step == 6
    path = session.status().segment
    session.detach()
    assert len(Segment(path).marks) == 1


def test_an_optimizer_that_was_left_comes_back(attach: Any) -> None:
    model = nn.Linear(2, 2)
    first, second = torch.optim.SGD(model.parameters(), 0.1), torch.optim.Adam(model.parameters())
    session = attach(model)
    for optimizer in (first, second, first, second):
        for _ in range(5):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert session.status().step >= 18, "at most one step goes into the next at each return"


def test_a_second_optimizer_of_other_parameters_counts_no_steps(attach: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizers = [torch.optim.SGD(layer.parameters(), 0.1) for layer in model]
    session = attach(model)
    for _ in range(4):
        model(torch.ones(1, 2)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert session.status().step == 4


def test_steps_are_counted_where_parameters_were_replaced(attach: Any) -> None:
    model = nn.Linear(2, 2)
    session = attach(model)
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert session.status().step == 3


class Wrapper(torch.optim.Optimizer):
    """Stands for another optimizer, without being made as one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self.optimizer.param_groups = groups

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


def test_an_optimizer_that_takes_no_hooks_does_not_cost_the_run(attach: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 2)
    optimizer = Wrapper(torch.optim.SGD(model.parameters(), 0.1))
    session = attach(model, optimizer=optimizer)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert session.status().step == 3
    (line,) = caplog.messages
    assert "Wrapper takes no hooks" in line


def test_parameters_that_do_not_exist_yet_do_not_cost_the_run(attach: Any) -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1))
    session = neuraldbg.attach(model, run="lazy", cadence=1)
    assert session.enabled
    model(torch.ones(1, 2)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert session.status().step == 3
    session.detach()
