"""Who this process is: launch, rank, incarnation. Argument, then torchrun's variables, then SLURM's, then single."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import os
import pathlib
import re
import time
from collections.abc import Mapping

from neuraldbg import config as configuration

_POD_UID = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")

_PROCESS = re.compile(r"pid-(\d+)-([1-9]\d*)")  # a launch that is named after a process, with its start time
_FORGOTTEN_SECONDS = 7 * 86400.0
_SWEPT_MAX = 1000  # counters looked at by one attach

_attached = itertools.count()


@dataclasses.dataclass(frozen=True)
class Identity:
    """Run = (uid, name, launch); a rank starts again as the next incarnation of the same launch."""

    launch: str
    rank: int
    world_size: int
    incarnation: int


def resolve(
    config: configuration.Config,
    rank: int | None,
    world_size: int | None,
    environment: Mapping[str, str] = os.environ,
) -> Identity:
    """Raises TypeError or ValueError naming the argument that is wrong."""
    rank = _number("rank", rank, environment, ("RANK", "SLURM_PROCID"), 0)
    world_size = _number("world_size", world_size, environment, ("WORLD_SIZE", "SLURM_NTASKS"), rank + 1)
    if rank >= world_size:
        raise ValueError(f"rank ({rank}) must be less than world_size ({world_size})")
    launch = config.launch or _launch(environment, alone=world_size == 1)
    return Identity(launch, rank, world_size, _incarnation(config, launch, rank, environment))


def _number(
    name: str, value: int | None, environment: Mapping[str, str], variables: tuple[str, ...], default: int
) -> int:
    if value is None:
        text = next((environment[variable] for variable in variables if environment.get(variable, "").isdigit()), None)
        return int(text) if text is not None else default
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    if not 0 <= value < 2**32:
        raise ValueError(f"{name} must not be negative, not {value}")
    return value


def _launch(environment: Mapping[str, str], alone: bool) -> str:
    elastic = environment.get("TORCHELASTIC_RUN_ID")
    if elastic and elastic != "none":
        return f"torchelastic-{elastic}"
    if environment.get("SLURM_JOB_ID"):
        return f"slurm-{environment['SLURM_JOB_ID']}.{environment.get('SLURM_STEP_ID', '0')}"
    pod = environment.get("POD_UID") or _pod_uid()
    if pod:
        return f"pod-{pod}"
    if alone:
        # The parent of a job without other ranks is a shell or a notebook, whose next job is another one.
        return f"pid-{os.getpid()}-{_start_time(os.getpid())}-{next(_attached)}"
    parent = os.getppid()
    return f"pid-{parent}-{_start_time(parent)}"


def _pod_uid() -> str | None:
    with contextlib.suppress(OSError):
        for path in ("/proc/self/cgroup", "/proc/self/mountinfo"):
            match = _POD_UID.search(pathlib.Path(path).read_text())
            if match:
                return match.group(1).replace("_", "-")
    return None


def _start_time(pid: int) -> str:
    """Clock ticks since boot: with the pid it names one process for good, a pid alone is used again."""
    with contextlib.suppress(OSError, IndexError):
        # The command in parentheses may contain spaces; field 22 counts from behind it.
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return "0"


def _incarnation(config: configuration.Config, launch: str, rank: int, environment: Mapping[str, str]) -> int:
    restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "")
    if restarts.isdigit():
        return int(restarts)
    # A counter file, not a count of segments: the daemon removes segments that it has finished with.
    key = hashlib.sha256(f"{config.run}\0{launch}\0{rank}".encode()).hexdigest()[:32]
    directory = config.runtime_directory / "incarnations"
    try:
        configuration.ensure_private_directory(config.runtime_directory)
        directory.mkdir(mode=0o700, exist_ok=True)
        _sweep(directory)
        return _count_start(directory / key, launch)
    except OSError:
        return 0


def _count_start(path: pathlib.Path, launch: str) -> int:
    """How often this was called for the path before. The file holds the number of calls and, behind it, the launch."""
    while True:
        with open(path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink == 0:
                continue  # swept between the opening and the lock: what is written here is lost
            file.seek(0)
            text = file.read().partition(" ")[0]
            count = int(text) if text.isdigit() else 0
            file.truncate(0)
            file.write(f"{count + 1} {launch}")
            return count


def _sweep(directory: pathlib.Path) -> None:
    """Removes the counters of launches that are over: nothing else ever would."""
    for path in itertools.islice(directory.iterdir(), _SWEPT_MAX):
        with contextlib.suppress(OSError), open(path, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whoever counts in it keeps it
            status = os.fstat(file.fileno())  # not linked: swept by another, and the path may be a new file's
            if status.st_nlink and _is_over(file.read().partition(" ")[2], status.st_mtime):
                path.unlink()


def _is_over(launch: str, modified: float) -> bool:
    process = _PROCESS.match(launch)
    if process:
        return _start_time(int(process[1])) != process[2]
    # A launcher that starts its ranks again does so within minutes. After that only the number is lost, and the daemon
    # gives a start whose number is taken the next free one.
    return time.time() - modified > _FORGOTTEN_SECONDS
