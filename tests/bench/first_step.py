"""First step of a compiled model, compilation included: with the agent over without, with cold and with warm caches.

    python -m tests.bench.first_step [--workloads mlp,gpt] [--rounds N]

Every time is CPU time of a process of its own, since a second compilation in one process finds much of the first; bare
and observed processes alternate. It runs from before attach to the end of the first step. "Warm" is a process whose
caches another one like it has filled. Compilation in the process itself (one thread). Writes its section of
docs/evaluation.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.workloads import WORKLOADS, Stepper
from tests.evaluate.daemon_process import ROOT, Daemon
from tests.evaluate.document import table, write_section

_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
GOALS = {"cold": 1.10, "warm": 1.00}


def first_step(workload: str, observed: bool) -> float:
    """CPU seconds until the first step is over, of this process and the compilers that it starts."""
    import torch
    import torch._dynamo  # what an eager job would not import is no compilation

    torch.set_num_threads(1)
    stepper = Stepper(WORKLOADS[workload], compiled=True)
    start = cpu_seconds()
    if observed:
        import neuraldbg

        neuraldbg.attach(stepper.model, optimizer=stepper.optimizer, run="first-step", cadence=1)
    stepper()
    return cpu_seconds() - start


def cpu_seconds() -> float:
    """Of this process and of the children that it has waited for: what another job on the machine does not stretch."""
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, _WHO))


def in_a_process(daemon: Daemon, cache: Path, workload: str, observed: bool) -> float:
    """`first_step` in a process of its own that keeps what it compiles in `cache`."""
    surroundings = daemon.environment() | {
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.bench.first_step", "--one", workload, str(int(observed))]
    done = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def measure(daemon: Daemon, workload: str, rounds: int) -> dict[str, tuple[float, float]]:
    """The shortest bare time of all rounds and the shortest observed one, with cold and with warm caches."""
    seconds: dict[tuple[str, bool], list[float]] = {}
    for _ in range(rounds):
        for observed in (False, True):
            with tempfile.TemporaryDirectory() as cache:
                for state in ("cold", "warm"):
                    taken = in_a_process(daemon, Path(cache), workload, observed)
                    seconds.setdefault((state, observed), []).append(taken)
                    print(f"{workload} {state} {'observed' if observed else 'bare'}: {taken:.2f} s", flush=True)
    return {state: (min(seconds[state, False]), min(seconds[state, True])) for state in GOALS}


def main(arguments: list[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="mlp,gpt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-document", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(first_step(options.one[0], options.one[1] == "1")), flush=True)
        os._exit(0)  # Inductor's threads and the interpreter's end are not what is measured
    rows = []
    with Daemon() as daemon:
        for workload in options.workloads.split(","):
            for state, (bare, observed) in measure(daemon, workload, options.rounds).items():
                ratio = f"{observed / bare:.2f}"
                rows.append([WORKLOADS[workload].title, state, f"{bare:.2f} s", ratio, f"{GOALS[state]:.2f}"])
    text = (
        f"CPU time, least of {options.rounds} processes each, bare and observed ones in turn; Inductor, one thread. "
        "Attach and its self-test are part of the observed time.\n\n"
        + table(["workload", "caches", "without", "ratio with", "goal"], rows)
    )
    print(text)
    if not options.no_document:
        write_section("first-step", "The first compiled step", "./run bench", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
