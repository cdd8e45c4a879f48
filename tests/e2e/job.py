"""A small training job for the end-to-end tests: deterministic, slow on request, and talkative about where it is.

Prints `step N` after each step, and at the end `done` with a fingerprint of the parameters and the agent's status.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time

import neuraldbg
import torch
from torch import nn

from tests.scenarios.levers import LeverReLU, pull
from tests.scenarios.models import seeded
from tests.scenarios.training import cross_entropy, points


def network() -> nn.Sequential:
    """Three hidden layers; `3` is the activation that a fault can be planted in."""
    layers: list[nn.Module] = [nn.Linear(16, 32), LeverReLU(), nn.Linear(32, 32), LeverReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 32), LeverReLU(), nn.Linear(32, 8))


def fingerprint(model: nn.Module) -> str:
    """Equal for bitwise equal parameters."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="job")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--sleep", type=float, default=0.0, help="seconds between steps")
    parser.add_argument("--nan-at", type=int, default=-1, help="module 3 divides by zero from this step on")
    parser.add_argument("--hang-at", type=int, default=-1, help="stop making progress at this step, alive")
    parser.add_argument("--daemon", default="auto")
    parser.add_argument("--diagnose", action="store_true", help="ask for the diagnosis after detaching")
    return parser.parse_args()


def main() -> int:
    """Train."""
    options = parse()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    batches = points(seeded(0))
    with neuraldbg.attach(model, optimizer=optimizer, run=options.run, cadence=1, daemon=options.daemon) as session:
        for step in range(options.steps):
            if step == options.nan_at:
                pull(model[3], "temperature", 0.0)
            x, y = next(batches)
            loss = cross_entropy(model(x), y)
            session.log_loss(loss, targets=y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step}", flush=True)
            while step == options.hang_at:
                time.sleep(0.1)
            time.sleep(options.sleep)
    print("done", json.dumps({"fingerprint": fingerprint(model), "pid": os.getpid()}), flush=True)
    if options.diagnose:
        print(session.diagnose(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
