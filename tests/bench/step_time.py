"""Step time with the agent over step time without, beside the unrelated PyPI package that has our import name.

    python -m tests.bench.step_time [--workloads mlp,resnet,gpt] [--modes eager,compiled] [--no-original] [--rounds N]

Every cell is one process (tests/bench/step_time_worker.py) in which bare and observed models step in turn, under a
running daemon. Writes its section of docs/evaluation.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from tests.bench.workloads import WORKLOADS
from tests.evaluate.daemon_process import ROOT, Daemon
from tests.evaluate.document import table, write_section

ORIGINAL = "neuraldbg==1.3.2"
VENV = ROOT / "build" / "bench" / "original"
BUDGET = 0.01  # attach(overhead_budget=…), the default
# Goals of the project's design, every activation and output gradient every step.
GOALS = {
    ("mlp", "eager"): 1.03,
    ("resnet", "eager"): 1.05,
    ("gpt", "eager"): 1.015,
    ("mlp", "compiled"): 1.01,
    ("resnet", "compiled"): 1.015,
    ("gpt", "compiled"): 1.01,
}


def original_python() -> Path:
    """A virtual environment that sees this one's torch and, before everything else, the original package."""
    python = VENV / "bin" / "python"
    if not (VENV / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--no-deps", ORIGINAL, "psutil"]
        subprocess.run(install, check=True)
        (site_packages,) = VENV.glob("lib/python*/site-packages")
        (site_packages / "torch_of_the_project.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        (VENV / ".ready").touch()
    return python


def measure(
    python: Path, environment: dict[str, str], tool: str, workload: str, mode: str, rounds: int
) -> dict[str, Any]:
    """One worker's answer."""
    worker = Path(__file__).with_name("step_time_worker.py")
    command = [str(python), str(worker), "--tool", tool, "--workload", workload]
    command += ["--compiled"] * (mode == "compiled") + (["--rounds", str(rounds)] if rounds else [])
    scratch = ROOT / "build" / "bench" / "scratch"  # the original leaves files in its working directory
    scratch.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{tool:9s} {workload:7s} {mode:9s} {answer}", flush=True)
    return answer


def both(figures: dict[str, float]) -> str:
    """Quartile first, minimum in brackets."""
    return f"{figures['quartile']:.3f} ({figures['minimum']:.3f})"


def main(arguments: list[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--rounds", type=int, default=0, help="steps per variant; default by workload")
    parser.add_argument("--no-original", action="store_true")
    parser.add_argument("--no-document", action="store_true")
    options = parser.parse_args(arguments)
    rows = []
    for workload in options.workloads.split(","):
        for mode in options.modes.split(","):
            with Daemon() as daemon:
                ours = measure(Path(sys.executable), daemon.environment(), "ours", workload, mode, options.rounds)
            row = [f"{WORKLOADS[workload].title}, {mode}", f"{ours['bare_ms']:.1f}", both(ours["ratios"]["every step"])]
            row += [f"{GOALS[workload, mode]}", f"{ours['ratios']['auto']['mean']:.3f}", f"{1 + BUDGET:.2f}"]
            if not options.no_original:
                plain = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
                theirs = measure(original_python(), plain, "original", workload, mode, max(12, options.rounds // 4))
                row.append(both(theirs["ratios"]["original"]))
            rows.append(row)
    head = ["training step, 1 thread", "bare, ms", "agent, every step", "goal", "agent, default", "its budget"]
    head.append("original 1.3.2")
    text = (
        "CPU time of the training thread with the tool over without, models stepping in turn in one process; first "
        "quartile, minimum in brackets. Every activation and output gradient every step, parameters by rotation; by "
        "default as many steps as the budget allows, which is the mean of all steps after those of the start. "
        "Compiled: `fullgraph=True`, except for the original, which cannot.\n\n" + table(head[: len(rows[0])], rows)
    )
    print(text)
    if not options.no_document:
        write_section("step-time", "What the agent costs a training step", "./run bench", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
