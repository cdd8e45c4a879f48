"""The session that attach() returns: the user's handle on one observed rank."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from neuraldbg import client, diagnosis
from neuraldbg.config import Config

if TYPE_CHECKING:  # these load the native library, which may be missing
    from neuraldbg.attachment import Attachment

logger = logging.getLogger("neuraldbg")

_LOSS_KINDS = (None, "cross_entropy", "mse", "bce", "nll", "other")
_LOSS_REDUCTIONS = ("mean", "sum", "none")


@dataclasses.dataclass(frozen=True)
class SessionStatus:
    """A moment's view of a session, from this process alone."""

    run: str
    rank: int
    enabled: bool
    step: int
    records: int
    dropped: int
    sites: int
    level: str
    graph_exact: bool
    cadence: int
    agent_seconds: float
    segment: str


class Session:
    """Observes until detach() or the end of the `with` block. No method but the constructor's caller ever raises.

    A session whose agent could not start is disabled: every method is then a no-op, and diagnose() gives `absence`.
    """

    def __init__(
        self,
        config: Config,
        rank: int,
        attachment: Attachment | None,
        absence: diagnosis.Report | None = None,
        launch: str = "",
    ) -> None:
        self.run = config.run
        self._launch = launch
        self.rank = rank
        self._config = config
        self._attachment = attachment
        self._absence = absence
        self._pid = os.getpid()
        self._last: SessionStatus | None = None
        self._last_step: int | None = None
        if attachment is not None:
            atexit.register(self.detach)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            self.mark(f"the block ended by {kind.__name__}: {_words_of(error)}")
        self.detach()

    @property
    def enabled(self) -> bool:
        """False when the agent could not start, was switched off, or is detached."""
        return self._attachment is not None

    def log_loss(
        self, loss: Any, targets: Any = None, ignore_index: int = -100, kind: str | None = None, reduction: str = "mean"
    ) -> None:
        """Announces the loss of one micro-batch, between forward and backward; targets make label faults visible."""
        if self._attachment is None:
            return
        try:
            if kind not in _LOSS_KINDS or reduction not in _LOSS_REDUCTIONS:
                self._complain(f"log_loss: kind must be one of {_LOSS_KINDS}, reduction one of {_LOSS_REDUCTIONS}")
            self._attachment.loss.log(loss, targets, int(ignore_index), kind, reduction)
        except Exception as error:
            self._complain(f"log_loss: {type(error).__name__}: {error}")

    def mark(self, text: str) -> None:
        """Announces a change (a new learning rate, another data set): evidence beside whatever is found then."""
        if self._attachment is not None:
            try:
                segment = self._attachment.segment
                segment.add_mark(segment.step(), str(text))
            except Exception as error:
                self._complain(f"mark: {type(error).__name__}: {error}")

    def step(self) -> None:
        """Ends a step where there is no optimizer; with one, steps are counted from it and this does nothing."""
        if self._attachment is None:
            return
        if self._attachment.steps.has_optimizer:
            self._complain("step: steps are counted from the optimizer; the call is ignored")
            return
        try:
            self._attachment.end_step()
        except Exception as error:
            self._complain(f"step: {type(error).__name__}: {error}")

    def status(self) -> SessionStatus:
        """What this process knows: steps, records, drops, the level of observation."""
        if self._attachment is not None:
            self._last = self._attachment.status(self.run, self.rank)
        if self._last is None:
            self._last = SessionStatus(self.run, self.rank, False, 0, 0, 0, 0, "off", False, 0, 0.0, "")
        return self._last

    def detach(self) -> None:
        """Removes every hook and attribute and closes the segment. A step that has begun is closed as unannounced."""
        attachment, self._attachment = self._attachment, None
        if attachment is None:
            return
        atexit.unregister(self.detach)
        if os.getpid() != self._pid:
            return  # a forked child: the segment and its heartbeat belong to the parent
        try:
            attachment.close_step()
            self._last = dataclasses.replace(attachment.status(self.run, self.rank), enabled=False)
            self._last_step = attachment.last_step
        except Exception:
            logger.debug("neuraldbg: at detach", exc_info=True)
        attachment.close()

    def diagnose(self, timeout: float = 10) -> diagnosis.Report:
        """The daemon's diagnosis once it has consumed the last step; waits at most `timeout` seconds."""
        if self._absence is not None:
            return self._absence
        begin = time.monotonic()
        step = self._attachment.last_step if self._attachment is not None else self._last_step
        if step is None:
            return diagnosis.Report(
                self.run,
                "INCOMPLETE_DATA",
                error="no step was observed",
                advice="ask after the first optimizer.step(), or session.step() where there is no optimizer;"
                " pass attach() the model that is trained",
            )
        remaining = max(0.0, timeout - (time.monotonic() - begin))
        return diagnosis.diagnose(self._name, step, remaining, self._config.address, str(self._config.data_directory))

    def ask(self, verb: str, *arguments: str, timeout: float = 10) -> dict[str, Any]:
        """What `neuraldbgctl VERB --run THIS ARGUMENTS` answers, as JSON. Raises client.NoAnswerError alone."""
        question = [verb, "--run", self._name, *arguments]
        return client.ask(question, timeout, self._config.address, str(self._config.data_directory))

    @property
    def _name(self) -> str:
        """Of this launch: the plain name means the newest run of it, which another job may have started since."""
        return f"{self.run}@{self._launch}" if self._launch else self.run

    def _complain(self, text: str) -> None:
        logger.warning("neuraldbg: %s", text)


def _words_of(error: BaseException | None) -> str:
    """The first line of an exception's message; a message of the user's own may raise itself."""
    try:
        return str(error).partition("\n")[0]
    except Exception:
        return "its message cannot be read"
