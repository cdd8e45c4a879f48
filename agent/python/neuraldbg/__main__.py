"""`neuraldbg run [--run NAME] [--fail-on fault] [--report] -- COMMAND …`: observes a job without touching its script.

The command runs as a child with this package's start-up file in front of its module path. That file attaches to the
model whose parameters the first optimizer gets. The child's exit code is passed on.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import subprocess
import sys

from neuraldbg import config as configuration
from neuraldbg import diagnosis

_STARTUP = pathlib.Path(__file__).parent / "startup"
_DIAGNOSIS_SECONDS = 30.0  # for the daemon to consume what the job left, at its end


def main(arguments: list[str] | None = None) -> int:
    """Runs the job; returns its exit code, or 1 where --fail-on fault turns a success into a failure."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    try:
        config = configuration.load(options.run or _name_of(options.command))
    except ValueError as error:
        print(f"neuraldbg: {error}", file=sys.stderr)
        return 2
    code = _run(options.command, config.run)
    if not (options.report or options.fail_on):
        return code
    report = diagnosis.diagnose(config.run, None, _DIAGNOSIS_SECONDS, config.address, str(config.data_directory))
    print(report, file=sys.stderr)
    return 1 if code == 0 and options.fail_on == "fault" and report.verdict == "FAULT" else code


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="neuraldbg", description="NeuralDBG's agent.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run a training job and observe it")
    run.add_argument("--run", help="name of the run (default: NEURALDBG_RUN, or the script's name)")
    run.add_argument("--fail-on", choices=["fault"], help="exit with 1 when a successful job has a FAULT")
    run.add_argument("--report", action="store_true", help="print the diagnosis at the end")
    run.add_argument("command", nargs=argparse.REMAINDER, help="-- python train.py …, or torchrun …")
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        run.error("there is no command after --")
    return options


def _name_of(command: list[str]) -> str | None:
    """The name of the first script in the command, if the environment gives none."""
    if os.environ.get("NEURALDBG_RUN"):
        return None
    script = next((word for word in command if word.endswith(".py")), command[0])
    return configuration.name_of_script(script)


def _run(command: list[str], run: str) -> int:
    environment = os.environ | {"NEURALDBG_RUN": run, "NEURALDBG_AUTORUN": "1"}
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{_STARTUP}{os.pathsep}{path}" if path else str(_STARTUP)
    try:
        child = subprocess.Popen(command, env=environment)
    except OSError as error:
        print(f"neuraldbg: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    code = child.wait()
    return code if code >= 0 else 128 - code  # as a shell reports a signal


if __name__ == "__main__":
    sys.exit(main())
