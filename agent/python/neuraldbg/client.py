"""neuraldbgctl as a subprocess: how this process asks the daemon.

gRPC and protobuf must not be loaded into a training process (libtorch exports protobuf symbols, and the two clash).
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from neuraldbg import daemon

# Of a diagnosis: HEALTHY, FAULT, UNSURE or INCOMPLETE_DATA. Any other verb prints its answer with 0 alone.
_EXIT_CODES_WITH_ANSWER = (0, 1, 5)
_GRACE_SECONDS = 5.0  # for the client itself to start and print, beyond the time that it may wait for the daemon
_NO_DAEMON = "no daemon answers"  # as neuraldbgctl says it
DOCTOR = "run neuraldbgctl doctor: it checks shared memory, daemon and store one by one"
OTHER_RELEASE = "install neuraldbgd again: its parts are of different releases"
# What to do about an exit code of neuraldbgctl that brings no answer.
_ADVICE = {
    2: "correct the setting that is named",
    3: 'start neuraldbgd (or attach with daemon="auto"), then run neuraldbgctl diagnose',
    4: DOCTOR,
}


class NoAnswerError(Exception):
    """Why there is no answer, and what to do."""

    def __init__(self, why: str, advice: str) -> None:
        super().__init__(why)
        self.advice = advice


def ask(arguments: list[str], timeout: float, address: str, data_directory: str) -> dict[str, Any]:
    """What `neuraldbgctl ARGUMENTS -o json` prints; `timeout` in seconds. Raises NoAnswerError alone."""
    client = daemon.binary("neuraldbgctl")
    if client is None:
        advice = "install neuraldbgd again, in this environment: neuraldbgctl comes with it"
        raise NoAnswerError("neuraldbgctl is not installed", advice)
    environment = os.environ | {"NEURALDBG_ADDRESS": address, "NEURALDBG_DATA_DIR": data_directory}
    try:
        done = subprocess.run(
            [client, *arguments, "-o", "json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout + _GRACE_SECONDS,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswerError(f"neuraldbgctl did not answer: {error}", DOCTOR) from error
    if done.returncode not in _EXIT_CODES_WITH_ANSWER:
        text = done.stderr.decode("utf-8", "replace").strip() or f"neuraldbgctl ended with {done.returncode}"
        advice = _ADVICE[3] if _NO_DAEMON in text else _ADVICE.get(done.returncode, DOCTOR)
        raise NoAnswerError(" ".join(text.splitlines()), advice)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise NoAnswerError(f"neuraldbgctl printed no JSON: {error}", OTHER_RELEASE) from error
    return answer
