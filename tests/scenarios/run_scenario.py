"""Runs one scenario in this process, with the agent attached.

    python -m tests.scenarios.run_scenario resnet-dead-1 --run job-7 [--compile] [--no-agent]

Shared memory directory and daemon address come from the environment, as for any training job (NEURALDBG_SHM_DIR,
NEURALDBG_ADDRESS). Prints the loss at the start and at the end.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch

from tests.scenarios.corpus import build
from tests.scenarios.training import train


def main(arguments: list[str] | None = None) -> int:
    """Train the scenario once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario")
    parser.add_argument("--run", default="job", help="name under which the daemon knows this run")
    parser.add_argument("--compile", action="store_true", help="torch.compile(fullgraph=True)")
    parser.add_argument("--no-agent", action="store_true", help="train without attaching anything")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    try:
        training = build(options.scenario).training
    except ValueError as error:
        parser.error(str(error))
    forward: Any = torch.compile(training.model, fullgraph=True) if options.compile else training.model
    if options.no_agent:
        losses = train(training, forward)
    else:
        import neuraldbg

        with neuraldbg.attach(training.model, optimizer=training.optimizer, run=options.run, cadence=1) as session:
            losses = train(training, forward, session)
    print(f"{len(losses)} steps, loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
