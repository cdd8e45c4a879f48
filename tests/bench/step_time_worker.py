"""Measures one workload in one mode, in this process: a bare model and observed ones step in turn.

    python step_time_worker.py --tool ours|original --workload mlp|resnet|gpt [--compiled] [--rounds N]

Prints one JSON object: for every variant the ratio of its step time to the bare model's, as minimum and first quartile
over all rounds. Time is the CPU time of the training thread (1 thread), which other processes on the machine cannot
stretch. `original` is the unrelated PyPI package neuraldbg 1.3.2; it runs in a virtual environment of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from workloads import WORKLOADS, Stepper

WARM_UP = 6
# With cadence="auto" every one of the first 64 steps is observed, and the first decision counts the last 16 of them.
WARM_UP_AUTO = 96


def quartile(values: list[float]) -> float:
    """The first quartile."""
    return sorted(values)[len(values) // 4]


def timed(step: Callable[[], None]) -> float:
    """CPU seconds of this thread."""
    start = time.thread_time()
    step()
    return time.thread_time() - start


@contextmanager
def observe_with_original(stepper: Stepper) -> Iterator[None]:
    """As its README says."""
    from neuraldbg import NeuralDbg

    with NeuralDbg(stepper.model) as debugger:
        counter = iter(range(1 << 30))

        def observe(loss: torch.Tensor) -> None:
            debugger.step = next(counter)
            debugger.record_loss(loss.item())

        stepper.observe = observe
        yield


@contextmanager
def observe_with_ours(stepper: Stepper, cadence: Any) -> Iterator[None]:
    """Attach our agent."""
    import neuraldbg

    with neuraldbg.attach(
        stepper.model, optimizer=stepper.optimizer, run=f"bench-{cadence}", cadence=cadence
    ) as session:
        stepper.observe = lambda loss: session.log_loss(loss, targets=stepper.y)
        yield
        status = session.status()
        print(f"{cadence}: {status}", file=sys.stderr)


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", choices=("ours", "original"), required=True)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    workload = WORKLOADS[options.workload]
    rounds = options.rounds or workload.rounds
    with ExitStack() as stack:
        # fullgraph=True fails with the original, so its bare twin is compiled without it too.
        steppers = {"bare": Stepper(workload, options.compiled, options.tool == "ours")}
        variants = {"every step": 1, "auto": "auto"} if options.tool == "ours" else {"original": None}
        for name, cadence in variants.items():
            steppers[name] = Stepper(workload, options.compiled, options.tool == "ours")
            if options.tool == "ours":
                stack.enter_context(observe_with_ours(steppers[name], cadence))
            else:
                stack.enter_context(observe_with_original(steppers[name]))
        for name, step in steppers.items():
            for _ in range(WARM_UP_AUTO if name == "auto" else WARM_UP):
                step()
        seconds: dict[str, list[float]] = {name: [] for name in steppers}
        for _ in range(rounds):
            for name, step in steppers.items():
                seconds[name].append(timed(step))
    bare = seconds.pop("bare")
    ratios = {
        name: {
            "minimum": min(times) / min(bare),
            "quartile": quartile(times) / quartile(bare),
            "mean": sum(times) / sum(bare),  # where not every step is observed, quartiles see one kind of them
        }
        for name, times in seconds.items()
    }
    print(json.dumps({"bare_ms": 1e3 * quartile(bare), "rounds": rounds, "ratios": ratios}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
