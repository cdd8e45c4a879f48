"""Training jobs that end, fork or thread in every way that real ones do. The first argument says which.

Each trains the same small model for STEPS steps and prints `done` where it gets that far.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable

import neuraldbg
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 30
LAST_STEP = 17  # in whose middle, between forward and backward, the process ends


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    return model, torch.optim.SGD(model.parameters(), 0.05)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor] | DataLoader, end: Callable[[], None]
) -> None:
    for step, (x,) in enumerate(batches):
        loss = model(x).square().mean()
        if step == LAST_STEP:
            end()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def samples() -> TensorDataset:
    return TensorDataset(torch.randn(STEPS * 4, 8, generator=torch.Generator().manual_seed(1)))


def nothing() -> None:
    pass


def ends(end: Callable[[], None]) -> None:
    """Attached without `with` and never detached."""
    model, optimizer = model_and_optimizer()
    neuraldbg.attach(model, optimizer=optimizer, run="odd", cadence=1)
    train(model, optimizer, DataLoader(samples(), 4), end)


def workers(context: str) -> None:
    """Batches from two worker processes that come and go with every epoch."""
    model, optimizer = model_and_optimizer()
    with neuraldbg.attach(model, optimizer=optimizer, run="odd", cadence=1):
        for _ in range(2):
            train(model, optimizer, DataLoader(samples(), 4, num_workers=2, multiprocessing_context=context), nothing)


def forks() -> None:
    """A forked child goes on using the attached model, and ends."""
    model, optimizer = model_and_optimizer()

    def child() -> None:
        if (pid := os.fork()) == 0:
            model(torch.ones(4, 8)).sum().backward()
            sys.exit(0)  # with the interpreter's end, where the parent's session would be closed
        assert os.waitpid(pid, 0)[1] == 0

    with neuraldbg.attach(model, optimizer=optimizer, run="odd", cadence=1):
        train(model, optimizer, DataLoader(samples(), 4), child)


def two_models() -> None:
    """Two attached models train in turns."""
    (a, of_a), (b, of_b) = model_and_optimizer(), model_and_optimizer()
    with (
        neuraldbg.attach(a, optimizer=of_a, run="odd", cadence=1),
        neuraldbg.attach(b, optimizer=of_b, run="second", cadence=1),
    ):
        for batch in DataLoader(samples(), 4):
            train(a, of_a, [batch], nothing)
            train(b, of_b, [batch], nothing)


def threads() -> None:
    """200 threads run the model once each, eight at a time, more than there are lanes."""
    model, optimizer = model_and_optimizer()
    with neuraldbg.attach(model, optimizer=optimizer, run="odd", cadence=1):
        for _ in range(25):
            group = [threading.Thread(target=model, args=(torch.ones(4, 8),)) for _ in range(8)]
            for thread in group:
                thread.start()
            for thread in group:
                thread.join()
        train(model, optimizer, DataLoader(samples(), 4), nothing)


def eats_memory() -> None:
    """Takes memory until the kernel kills it."""
    hoard = []
    while True:
        hoard.append(bytearray(64 << 20))


JOBS: dict[str, Callable[[], None]] = {
    "falls_off_the_end": lambda: ends(nothing),
    "os_exit": lambda: ends(lambda: os._exit(3)),
    "sys_exit": lambda: ends(lambda: sys.exit(5)),
    "segfault": lambda: ends(lambda: ctypes.string_at(0) and None),
    "abort": lambda: ends(os.abort),
    "exec": lambda: ends(lambda: os.execv(sys.executable, [sys.executable, "-c", "print('another program')"])),
    "out_of_memory": lambda: ends(eats_memory),
    "workers_fork": lambda: workers("fork"),
    "workers_spawn": lambda: workers("spawn"),
    "forks": forks,
    "two_models": two_models,
    "threads": threads,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    JOBS[sys.argv[1]]()
    print("done", flush=True)
