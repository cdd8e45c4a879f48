"""Settings from the environment, with one rule of precedence: argument, then NEURALDBG_*, then the default."""

from __future__ import annotations

import dataclasses
import grp
import os
import pathlib
import re
import sys
from collections.abc import Mapping

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_DAEMON_MODES = ("auto", "none")
# neuraldbgd as a system service runs as this user and group (docs/security-model.md).
SERVICE_GROUP = "neuraldbg"
_OFF = frozenset({"0", "false", "no", "off"})


@dataclasses.dataclass(frozen=True)
class Config:
    """What attach and the daemon's start need to know of their surroundings."""

    enabled: bool
    run: str
    launch: str | None
    daemon: str
    address: str  # as neuraldbgctl takes it: unix:PATH or HOST:PORT
    shm_directory: pathlib.Path
    data_directory: pathlib.Path
    runtime_directory: pathlib.Path
    segment_group: int | None  # gid whose members may read the segment; None: only this user


def load(run: str | None = None, daemon: str | None = None, environment: Mapping[str, str] = os.environ) -> Config:
    """Resolves all settings. Raises ValueError naming the argument or variable that is wrong."""
    runtime = runtime_directory(environment)
    # NEURALDBG_DAEMON overrides the argument: whoever runs a script must be able to keep it from spawning processes.
    mode = environment.get("NEURALDBG_DAEMON") or daemon or "auto"
    if mode not in _DAEMON_MODES:
        raise ValueError(f"daemon must be one of {', '.join(map(repr, _DAEMON_MODES))}, not {mode!r}")
    return Config(
        enabled=environment.get("NEURALDBG_ENABLED", "1").lower() not in _OFF,
        run=run_name(run, environment),
        launch=environment.get("NEURALDBG_LAUNCH") or None,
        daemon=mode,
        address=environment.get("NEURALDBG_ADDRESS") or f"unix:{runtime / 'neuraldbgd.sock'}",
        shm_directory=pathlib.Path(environment.get("NEURALDBG_SHM_DIR") or "/dev/shm"),
        data_directory=pathlib.Path(
            environment.get("NEURALDBG_DATA_DIR") or pathlib.Path.home() / ".local/state/neuraldbg"
        ),
        runtime_directory=runtime,
        segment_group=segment_group(environment),
    )


def segment_group(environment: Mapping[str, str] = os.environ) -> int | None:
    """The gid that may read segments: NEURALDBG_SEGMENT_GROUP (name or gid), or the service's group for its members.

    An empty value means no group at all. Raises ValueError where it names no group of this process.
    """
    name = environment.get("NEURALDBG_SEGMENT_GROUP")
    if name == "":
        return None
    gid = _group_id(name or SERVICE_GROUP)
    if gid is not None and (gid == os.getegid() or gid in os.getgroups()):
        return gid
    if name:
        raise ValueError(f"NEURALDBG_SEGMENT_GROUP must name a group that this process is a member of, not {name!r}")
    return None


def _group_id(name: str) -> int | None:
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def run_name(run: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The run's name: the argument, NEURALDBG_RUN, or the script's. Raises TypeError or ValueError for a bad one."""
    if run is not None and not isinstance(run, str):
        raise TypeError(f"run must be a string, not {type(run).__name__}")
    name = run if run is not None else environment.get("NEURALDBG_RUN")
    if name is None:
        return name_of_script(sys.argv[0] or "python")
    if not _RUN_NAME.match(name):
        raise ValueError(
            f"run must match [A-Za-z0-9][A-Za-z0-9._-]{{0,99}} (letters, digits, dot, underscore, hyphen), not {name!r}"
        )
    return name


def name_of_script(path: str) -> str:
    """A valid run name from a script's path."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", pathlib.Path(path).stem).lstrip("._-")
    return stem[:100] or "python"


def runtime_directory(environment: Mapping[str, str] = os.environ) -> pathlib.Path:
    """Where the daemon's socket, its lock and our counters live; made 0700 by whoever needs it first."""
    base = environment.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base):
        return pathlib.Path(base) / "neuraldbg"
    uid = os.getuid()
    system = pathlib.Path(f"/run/user/{uid}")
    if system.is_dir() and os.access(system, os.W_OK):
        return system / "neuraldbg"
    return pathlib.Path(f"/tmp/neuraldbg-{uid}") / "neuraldbg"


def ensure_private_directory(directory: pathlib.Path) -> None:
    """Makes the directory 0700. Raises OSError when it is someone else's: /tmp is everybody's."""
    for path in (directory.parent, directory):
        if path == directory or path.name.startswith("neuraldbg-"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = path.lstat()
            if status.st_uid != os.getuid() or path.is_symlink():
                raise OSError(f"{path} belongs to another user")
            if status.st_mode & 0o077:
                path.chmod(0o700)
