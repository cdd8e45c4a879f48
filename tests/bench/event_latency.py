"""From the end of the training step in which a fault begins to the event's arrival on a gRPC stream: p50 and p99.

    python -m tests.bench.event_latency [--onsets N]

A real training process, a real daemon, a stock grpcio client. The trainer notes the monotonic clock right before it
closes the step (CLOCK_MONOTONIC is one clock for all processes of a host); the client notes it when a message arrives.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.evaluate.daemon_process import ROOT, Daemon
from tests.evaluate.document import table, write_section
from tests.evaluate.reflection_client import ReflectionClient

FIRST_ONSET = 40
SPACING = 12  # steps; a place that has been healthy for that long may begin to fail again
STEP_SECONDS = 0.01
GOAL_MS = 50.0


def train(steps: int, times_file: Path) -> None:
    """The training process: every SPACING steps one batch holds a NaN and the step is made without its gradients."""
    import neuraldbg
    import torch

    from tests.scenarios.models import perceptron, seeded
    from tests.scenarios.training import cross_entropy, points

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = points(seeded(0))
    closed_ns = []
    with neuraldbg.attach(model, optimizer=optimizer, run="latency", cadence=1) as session:
        for step in range(steps):
            x, y = next(batches)
            bad = is_onset(step)
            if bad:
                x[0, 0] = float("nan")
            loss = cross_entropy(model(x), y)
            session.log_loss(loss, targets=y)
            optimizer.zero_grad()
            loss.backward()
            if bad:
                for parameter in model.parameters():
                    parameter.grad.zero_()
            closed_ns.append(time.monotonic_ns())
            optimizer.step()
            time.sleep(STEP_SECONDS)
    times_file.write_text(json.dumps(closed_ns))


def is_onset(step: int) -> bool:
    """Whether a fault begins at this step."""
    return step >= FIRST_ONSET and (step - FIRST_ONSET) % SPACING == 0


def follow(client: ReflectionClient, arrivals: dict[int, int]) -> None:
    """Note when the first event of every step arrives."""
    while True:
        try:
            for message in client.stream("neuraldbg.v1.EventService/WatchEvents", {"run": "latency"}):
                arrivals.setdefault(message.event.step, time.monotonic_ns())
            return
        except Exception as error:
            if "NOT_FOUND" not in str(error):
                return
            time.sleep(0.01)  # the run does not exist before the trainer has attached


def measure(onsets: int) -> list[float]:
    """Milliseconds per onset that reached the stream."""
    steps = FIRST_ONSET + onsets * SPACING
    arrivals: dict[int, int] = {}
    with Daemon() as daemon:
        client = ReflectionClient(daemon.address)
        follower = threading.Thread(target=follow, args=(client, arrivals), daemon=True)
        follower.start()
        times_file = daemon.base / "times.json"
        command = [sys.executable, "-m", "tests.bench.event_latency", "--train", str(steps), str(times_file)]
        subprocess.run(command, cwd=ROOT, env=daemon.environment(), check=True)
        daemon.settle("latency")
        time.sleep(0.5)
        client.close()
        closed_ns = json.loads(times_file.read_text())
    missing = [step for step in range(steps) if is_onset(step) and step not in arrivals]
    if missing:
        print(f"{len(missing)} of {onsets} onsets gave no event at their step: {missing[:8]} …", file=sys.stderr)
    return [(arrivals[s] - closed_ns[s]) / 1e6 for s in range(steps) if is_onset(s) and s in arrivals]


def main(arguments: list[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onsets", type=int, default=200)
    parser.add_argument("--no-document", action="store_true")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.train:
        train(int(options.train[0]), Path(options.train[1]))
        return 0
    latencies = sorted(measure(options.onsets))
    if not latencies:
        print("no event arrived", file=sys.stderr)
        return 1
    p99 = latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))]
    row = [f"{len(latencies)}/{options.onsets}", f"{statistics.median(latencies):.1f}", f"{p99:.1f}", f"{GOAL_MS:.0f}"]
    text = (
        "From the close of the step in which a batch turns bad to the event on a stream of a grpcio client; real "
        "trainer, real daemon.\n\n" + table(["onsets seen", "p50, ms", "p99, ms", "goal for p99, ms"], [row])
    )
    print(text)
    if not options.no_document:
        write_section("event-latency", "How long until a client knows", "./run bench", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
