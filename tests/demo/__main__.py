"""The demo. One daemon, one program trained twice: as it is, and with a mistake planted in mid-training.

    ./run demo [--fault nonfinite|vanishing|exploding|dead|lr|data|none] [--seed N]

Shows the daemon's answer to each run as `neuraldbgctl diagnose` prints it, and afterwards, to compare, what had been
planted. Exit code 0 when both answers were right.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from tests.demo.char_gpt import FAULTS
from tests.evaluate.daemon_process import ROOT, Daemon, DaemonError
from tests.evaluate.score import score
from tests.scenarios.corpus import Truth


def say(text: str) -> None:
    """A heading of the demo."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def train(daemon: Daemon, run: str, *arguments: str) -> None:
    """Run the training program to its end; its progress goes to this terminal."""
    command = [sys.executable, "-m", "tests.demo.char_gpt", "--run", run, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=daemon.environment())
    if done.returncode != 0:
        raise SystemExit(f"the training program ended with {done.returncode}")


def answer(daemon: Daemon, run: str, truth: Truth) -> bool:
    """Print what the daemon says about `run`; whether that is right."""
    diagnosis = daemon.diagnose(run)
    say(f"What the daemon says about {run} (neuraldbgctl diagnose {run}):")
    print(daemon.ctl("diagnose", run).stdout.rstrip(), flush=True)
    judged = score(truth, diagnosis)
    return judged.first and (bool(truth.kinds) or judged.verdict == "HEALTHY")


def main(arguments: list[str] | None = None) -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, default="vanishing")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(arguments)
    start = time.monotonic()
    seed = ["--seed", str(options.seed)]
    with Daemon() as daemon:
        say(f"neuraldbgd is up at {daemon.address}")
        say("1. Training a character GPT, torch.compile(fullgraph=True), nothing planted (run gpt-1)")
        train(daemon, "gpt-1", *seed)
        healthy = answer(daemon, "gpt-1", Truth())
        say("2. The same program with a mistake planted in mid-training (run gpt-2); the daemon is not told")
        truth_file = daemon.base / "planted.json"
        train(daemon, "gpt-2", *seed, "--fault", options.fault, "--truth", str(truth_file))
        planted = json.loads(truth_file.read_text())
        truth = Truth() if options.fault == "none" else Truth((planted["kind"],), (planted["module"],), planted["step"])
        right = answer(daemon, "gpt-2", truth)
        daemon.stop()
    say("What had been planted in gpt-2:")
    if options.fault == "none":
        print("nothing")
    else:
        print(f"{planted['kind']} in {planted['module'] or 'the training loop'}, from step {planted['step']} on")
    say(f"{'Both answers are right' if healthy and right else 'NOT both answers are right'} ({_took(start)})")
    return 0 if healthy and right else 1


def _took(start: float) -> str:
    return f"{time.monotonic() - start:.0f} s, compilation included"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DaemonError, KeyboardInterrupt) as error:
        print(error or "interrupted", file=sys.stderr)
        sys.exit(2)
