"""The scenarios by name, and the truth about each.

`build("resnet-dead-1")` gives a run whose fault is chosen by name and whose module and onset are drawn from the seed;
`truth_of` gives the scorer what counts as right. Names never leave the scorer: a run is called something neutral.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.scenarios.levers import pull
from tests.scenarios.models import Gpt, Mixer, ResNet, perceptron, seeded
from tests.scenarios.training import Batch, Training, pictures, points, sequences, warm_up

FAMILIES = ("resnet", "mixer")
FAULTS = ("nonfinite", "vanishing", "exploding", "dead", "lr", "data")
HEALTHY = ("relu_mlp", "gpt_warmup", "resnet_dropout", "accumulation", "eval_passes", "zero_init")
SEEDS = (1, 2, 3)

STEPS_AFTER_ONSET = 45
VOCABULARY = 40


@dataclass(frozen=True)
class Truth:
    """What the first hypothesis must say. No kinds: the run is healthy."""

    kinds: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    step: int = -1
    tolerance: int = 1  # steps after `step` that count as the same onset


@dataclass(frozen=True)
class Scenario:
    """A run and the truth about it."""

    name: str
    training: Training
    truth: Truth


def fault_names() -> list[str]:
    """Every faulty scenario."""
    return [f"{family}-{fault}-{seed}" for family in FAMILIES for fault in FAULTS for seed in SEEDS]


def healthy_names() -> list[str]:
    """Every healthy scenario."""
    return [f"healthy-{name}-{seed}" for name in HEALTHY for seed in SEEDS]


def build(name: str) -> Scenario:
    """The scenario called `name`; raises ValueError for an unknown one."""
    family, _, rest = name.partition("-")
    case, _, seed_text = rest.rpartition("-")
    if not seed_text.isdigit() or family not in (*FAMILIES, "healthy"):
        raise ValueError(f"no scenario {name!r}")
    seed = int(seed_text)
    torch.manual_seed(seed)
    if family == "healthy":
        if case not in _HEALTHY:
            raise ValueError(f"no healthy run {case!r}; there are {', '.join(HEALTHY)}")
        return Scenario(name, _HEALTHY[case](seed), Truth())
    if case not in FAULTS:
        raise ValueError(f"no fault {case!r}; there are {', '.join(FAULTS)}")
    training = _resnet(seed) if family == "resnet" else _mixer(seed)
    return Scenario(name, training, _plant(training, family, case, seed))


# --- families ---------------------------------------------------------------------------------------------------------


def _resnet(seed: int) -> Training:
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    return Training(model, optimizer, pictures(seeded(seed)))


def _mixer(seed: int) -> Training:
    model = Mixer()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    return Training(model, optimizer, pictures(seeded(seed)), schedule=warm_up(20, 300), clip=1.0)


def _places(family: str) -> list[str]:
    """Activations inside a residual branch, first and last block left out: a cause there has both neighbours."""
    if family == "resnet":
        return ["blocks.1.act1", "blocks.2.act1"]
    return [f"blocks.{block}.{part}.act" for block in (1, 2) for part in ("tokens", "channels")]


# --- faults -----------------------------------------------------------------------------------------------------------

# Lever, value and kind of the faults that sit in a module.
_LEVER_FAULTS = {
    "nonfinite": ("temperature", 0.0, "NONFINITE_FORWARD"),
    "vanishing": ("backward_factor", 1e-4, "VANISHING_GRADIENT"),
    "exploding": ("backward_factor", 200.0, "EXPLODING_GRADIENT"),
    "dead": ("offset", 200.0, "DEAD_UNITS"),
}
_DATA_KINDS = ("DATA_SHIFT", "DATA_NONFINITE", "LABEL_ANOMALY")


def _plant(training: Training, family: str, fault: str, seed: int) -> Truth:
    choice = random.Random(f"{family}-{fault}-{seed}")
    onset = choice.randrange(80, 110)
    training.steps = onset + STEPS_AFTER_ONSET
    if fault in _LEVER_FAULTS:
        lever, value, kind = _LEVER_FAULTS[fault]
        path = choice.choice(_places(family))
        module = training.model.get_submodule(path)
        training.before_step = lambda step: pull(module, lever, value) if step == onset else None
        return Truth((kind,), (path,), onset)
    if fault == "lr":
        _raise_learning_rate(training, onset, 50.0)
        return Truth(("LEARNING_RATE_SPIKE",), ("",), onset)
    kind = _DATA_KINDS[(seed + FAMILIES.index(family)) % len(_DATA_KINDS)]
    _corrupt_data(training, kind, onset, seeded(onset))
    return Truth((kind,), ("",), onset)


def _raise_learning_rate(training: Training, onset: int, factor: float) -> None:
    """From `onset` on, every learning rate is `factor` times what the schedule says."""
    schedule = training.schedule or (lambda step: 1.0)
    training.schedule = lambda step: schedule(step) * (factor if step >= onset else 1.0)


def _corrupt_data(training: Training, kind: str, onset: int, generator: torch.Generator) -> None:
    def corrupt(step: int, x: torch.Tensor, y: torch.Tensor) -> Batch:
        if step < onset:
            return x, y
        if kind == "DATA_SHIFT":
            return x * 12, y  # a loader that forgets to normalise
        if kind == "DATA_NONFINITE":
            x = x.clone()
            x.view(-1)[int(torch.randint(0, x.numel(), (1,), generator=generator))] = float("nan")
            return x, y
        return x, y[torch.randperm(len(y), generator=generator)]  # labels no longer belong to their samples

    training.corrupt = corrupt


# --- healthy runs -----------------------------------------------------------------------------------------------------


def _relu_mlp(seed: int) -> Training:
    model = perceptron()
    return Training(model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), points(seeded(seed)))


def _gpt(seed: int, zero_init: bool = False) -> Training:
    model = Gpt(VOCABULARY, zero_init=zero_init)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    batches = sequences(seeded(seed), VOCABULARY)
    return Training(model, optimizer, batches, schedule=warm_up(40, 300), clip=1.0)


def _resnet_dropout(seed: int) -> Training:
    model = ResNet(dropout=0.2)
    return Training(model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), pictures(seeded(seed)))


def _accumulation(seed: int) -> Training:
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    return Training(model, optimizer, points(seeded(seed), 16), accumulate=4, steps=120)


def _eval_passes(seed: int) -> Training:
    model = ResNet(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    return Training(model, optimizer, pictures(seeded(seed)), evaluate_every=10)


def _zero_init(seed: int) -> Training:
    if seed % 2:
        return _gpt(seed, zero_init=True)
    model = ResNet(zero_init=True)
    return Training(model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), pictures(seeded(seed)))


_HEALTHY: dict[str, Callable[[int], Training]] = {
    "relu_mlp": _relu_mlp,
    "gpt_warmup": _gpt,
    "resnet_dropout": _resnet_dropout,
    "accumulation": _accumulation,
    "eval_passes": _eval_passes,
    "zero_init": _zero_init,
}
