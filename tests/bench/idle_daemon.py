"""What a daemon costs that has nothing to do: eight attached ranks that do not train.

    python -m tests.bench.idle_daemon [--seconds S]

A real daemon; one process that holds eight segments, whose heartbeats go on. The processor time is the kernel's
own account of the daemon, so other load on the machine hardly matters.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.evaluate.daemon_process import ROOT, Daemon
from tests.evaluate.document import table, write_section

RANKS = 8
GOAL_PERCENT = 0.5
GOAL_MIB = 64


def hold() -> None:
    """The training process: attaches eight models, makes three steps with each and waits until its input ends."""
    import neuraldbg
    import torch

    sessions = []
    for index in range(RANKS):
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        sessions.append(neuraldbg.attach(model, optimizer=optimizer, run=f"idle{index}"))
        for _ in range(3):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    print("ready", flush=True)
    sys.stdin.read()


def processor_seconds(pid: int) -> float:
    """User and system time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Resident memory without the shared segments, which are counted to whoever made them."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    values = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssFile"))}
    return (values["RssAnon"] + values["RssFile"]) / 1024


def main(arguments: list[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--no-document", action="store_true")
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.hold:
        hold()
        return 0
    with Daemon() as daemon:
        command = [sys.executable, "-m", "tests.bench.idle_daemon", "--hold"]
        with subprocess.Popen(
            command, cwd=ROOT, env=daemon.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout and holder.stdin and daemon.process
            if holder.stdout.readline().strip() != "ready":
                raise SystemExit("the training process did not get ready")
            time.sleep(5)  # the last steps are stored
            before = processor_seconds(daemon.process.pid)
            time.sleep(options.seconds)
            percent = 100 * (processor_seconds(daemon.process.pid) - before) / options.seconds
            mib = resident_mib(daemon.process.pid)
            holder.stdin.close()
    rows = [
        [f"processor, {RANKS} idle ranks", f"{percent:.2f} % of a core", f"<= {GOAL_PERCENT} %"],
        ["resident memory", f"{mib:.0f} MiB", f"<= {GOAL_MIB} MiB"],
    ]
    text = table(["what", "measured", "goal"], rows)
    print(text)
    if not options.no_document:
        write_section("idle-daemon", "A daemon with nothing to do", "./run bench", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
