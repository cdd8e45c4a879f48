"""A real neuraldbgd of one's own: private directories and socket; started, killed, restarted and asked.

Used by the demo, the evaluation, the benchmarks and the end-to-end tests, so that all of them run what users run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 20.0
SETTLE_TIMEOUT_S = 60.0


class DaemonError(RuntimeError):
    """The daemon did not do what the harness needs; the message carries its log."""


def binary(name: str) -> Path:
    """The newest installed or built program of that name; NEURALDBG_BINARIES names a directory to look in first."""
    override = os.environ.get("NEURALDBG_BINARIES")
    if override and (Path(override) / name).is_file():
        return Path(override) / name
    beside = Path(sys.executable).parent / name
    if beside.is_file():
        return beside
    found = [p for p in (ROOT / "build").glob(f"*/**/{name}") if p.is_file() and os.access(p, os.X_OK)]
    if not found:
        raise DaemonError(f"{name} is neither installed nor built: run ./run build")
    return max(found, key=lambda p: p.stat().st_mtime)


class Daemon:
    """One daemon and its directories. As a context manager it starts on entry and is gone, files included, on exit."""

    def __init__(self, *arguments: str, base: Path | None = None) -> None:
        self.owned = base is None
        self.base = base or Path(tempfile.mkdtemp(prefix="ndbg-", dir="/tmp"))
        self.shm = Path(tempfile.mkdtemp(prefix="ndbg-", dir="/dev/shm"))
        self.data = self.base / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self.log = self.base / "daemon.log"
        self.address = f"unix:{self.base}/d.sock"
        self.arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None
        self.killed = False  # by us

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def environment(self) -> dict[str, str]:
        """What a training job or a client needs to meet this daemon."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("NEURALDBG_") or k == "NEURALDBG_BINARIES"}
        return inherited | {
            "NEURALDBG_SHM_DIR": str(self.shm),
            "NEURALDBG_ADDRESS": self.address,
            "NEURALDBG_DATA_DIR": str(self.data),
            "XDG_RUNTIME_DIR": str(self.base),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
            "PATH": os.pathsep.join((str(binary("neuraldbgd").parent), os.environ.get("PATH", os.defpath))),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *, wait: bool = True) -> None:
        """Start it; with `wait`, return once it answers."""
        self.require_no_crash()
        command = [str(binary("neuraldbgd")), "--shm-dir", str(self.shm), "--data-dir", str(self.data)]
        command += ["--grpc", self.address, *self.arguments]
        if "--http" not in self.arguments:
            command += ["--http", "127.0.0.1:0"]  # a port of its own: others may run beside it
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.killed = False
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Return once `neuraldbgctl status` succeeds."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process is not None and self.process.poll() is not None:
                raise DaemonError(f"neuraldbgd ended with {self.process.returncode}:\n{self.log_text()[-3000:]}")
            if self.ctl("status").returncode == 0:
                return
            time.sleep(0.05)
        raise DaemonError(f"neuraldbgd does not answer at {self.address}:\n{self.log_text()[-3000:]}")

    def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer would."""
        if self.process is not None and self.process.poll() is None:
            self.killed = True
            self.process.kill()
            self.process.wait()

    def require_no_crash(self) -> None:
        """Raise if it ended otherwise than by our SIGKILL or in order, or a sanitizer reported something.

        Clients answer from the store where no daemon does, so a test may pass although its daemon has crashed.
        """
        code = None if self.process is None else self.process.poll()
        crashed = code not in (None, 0) and not self.killed
        log = self.log_text()
        if crashed or "Sanitizer" in log or "runtime error:" in log:
            raise DaemonError(f"neuraldbgd ended with {code}:\n{log[-6000:]}")

    def stop(self, timeout: float = 20.0) -> int:
        """SIGTERM; its exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DaemonError(f"neuraldbgd ignored SIGTERM for {timeout} s:\n{self.log_text()[-3000:]}") from None

    def close(self) -> None:
        """End it and remove its files."""
        self.kill()
        shutil.rmtree(self.shm, ignore_errors=True)
        if self.owned:
            shutil.rmtree(self.base, ignore_errors=True)

    def log_text(self) -> str:
        """What it logged so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def ctl(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run neuraldbgctl against this daemon."""
        command = [str(binary("neuraldbgctl")), *arguments]
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=timeout)

    def ask(self, *arguments: str) -> Any:
        """Run neuraldbgctl with -o json and parse what it prints; any exit code that comes with JSON is fine."""
        done = self.ctl(*arguments, "-o", "json")
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError:
            raise DaemonError(
                f"neuraldbgctl {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}"
            ) from None

    def settle(self, run: str, ranks: int = 1) -> list[dict[str, Any]]:
        """Wait until every rank of `run` has ended and all it produced has been received or counted as dropped."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        seen: list[dict[str, Any]] = []
        while time.monotonic() < deadline:
            try:
                seen = self.ask("ranks", run).get("ranks", [])
            except DaemonError:
                seen = []
            if len(seen) >= ranks and all(_consumed(rank) for rank in seen):
                return seen
            time.sleep(0.1)
        raise DaemonError(f"run {run} did not settle; ranks: {seen}\n{self.log_text()[-3000:]}")

    def diagnose(self, run: str) -> dict[str, Any]:
        """The diagnosis of a run that has ended."""
        self.settle(run)
        answer: dict[str, Any] = self.ask("diagnose", run)
        return answer


def _consumed(rank: dict[str, Any]) -> bool:
    received, dropped = int(rank["recordsReceived"]), int(rank["recordsDropped"])
    return rank["state"] != "RUNNING" and received + dropped >= int(rank["recordsProduced"])
