"""daemon="auto": use the daemon that answers, or start one that ends by itself when nobody needs it.

The daemon outlives the training process: it has its own session, its output goes to a log in the data directory, and it
inherits no descriptor. Nothing here waits for it; records lie in shared memory until it comes.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

from neuraldbg import config as configuration

logger = logging.getLogger("neuraldbg")

_CONNECT_SECONDS = 0.2  # on this host an answer comes at once; a remote address gets one round trip
_BOOT_SECONDS = 20  # a daemon that was started no longer ago than this may not listen yet
_IDLE_SECONDS = 60
_started: list[subprocess.Popen[bytes]] = []  # kept, so that one that ends is not left as a zombie


def ensure_running(config: configuration.Config) -> None:
    """Makes sure that some process will read the segments. Never raises; says so once if it cannot."""
    try:
        if config.daemon == "auto" and not answers(config.address):
            _start_once(config)
    except OSError as error:
        logger.warning("neuraldbg: no daemon could be started (%s); records stay in shared memory", error)


def answers(address: str) -> bool:
    """Whether somebody accepts connections at the address (unix:PATH or HOST:PORT)."""
    try:
        family, target = _socket_address(address)
        with socket.socket(family) as connection:
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect(target)
            return True
    except (OSError, ValueError, OverflowError):
        return False


def _socket_address(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    if address.startswith("unix:"):
        return socket.AF_UNIX, address.removeprefix("unix:").removeprefix("//")
    host, _, port = address.rpartition(":")
    return socket.AF_INET6 if ":" in host else socket.AF_INET, (host.strip("[]"), int(port))


def binary(name: str) -> str | None:
    """Path of one of our programs: beside this Python (the wheel's scripts), then on PATH."""
    beside = pathlib.Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)


def _start_once(config: configuration.Config) -> None:
    """One lock per uid decides which of the host's ranks starts the daemon."""
    configuration.ensure_private_directory(config.runtime_directory)
    with open(config.runtime_directory / "spawn.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held by others only for the few milliseconds of a spawn
        lock.seek(0)
        if answers(config.address) or _is_booting(lock.read()):
            return
        process = _spawn(config)
        if process is None:
            return
        lock.truncate(0)
        lock.write(json.dumps({"pid": process.pid, "time": time.time()}))
        lock.flush()
        _started.append(process)


def _is_booting(text: str) -> bool:
    try:
        entry = json.loads(text)
        os.kill(int(entry["pid"]), 0)
        return 0 <= time.time() - float(entry["time"]) < _BOOT_SECONDS
    except (ValueError, KeyError, TypeError, OSError):
        return False


def _spawn(config: configuration.Config) -> subprocess.Popen[bytes] | None:
    program = binary("neuraldbgd")
    if program is None:
        logger.warning("neuraldbg: neuraldbgd is not installed; records stay in shared memory")
        return None
    # Always the local socket: an address on another host is somebody else's daemon to start.
    listen = config.address
    if not listen.startswith("unix:"):
        listen = f"unix:{config.runtime_directory / 'neuraldbgd.sock'}"
    config.data_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(
        config.data_directory / "neuraldbgd.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
    )
    try:
        return subprocess.Popen(
            [
                program,
                "--exit-when-idle",
                str(_IDLE_SECONDS),
                "--grpc",
                listen,
                "--shm-dir",
                str(config.shm_directory),
                "--data-dir",
                str(config.data_directory),
            ],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            start_new_session=True,
            close_fds=True,
        )
    finally:
        os.close(descriptor)
