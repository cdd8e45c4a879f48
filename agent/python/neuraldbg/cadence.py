"""How often activations and gradients are observed: every step while the time budget holds, else every n-th.

The operators measure their own time (agent_ns). One compiled graph serves all: they read an armed flag at run time.
"""

from __future__ import annotations

from neuraldbg.native import Segment

_WINDOW_STEPS = 16  # steps between decisions; default, tunable
_WARM_UP_STEPS = 64  # the first steps are always observed: baselines and faults of the start come from them
_MAX_INTERVAL = 64  # a fault may stay unseen for that many steps at most


class Cadence:
    """Decides after each step whether the next is observed. Owned by the StepWatch."""

    def __init__(self, interval: int | None, budget: float) -> None:
        self._automatic = interval is None
        self._budget = budget
        self.interval = interval or 1
        self._step = 0
        self._armed = True
        self._armed_ns = 0  # agent's time in the armed steps of the window
        self._armed_duration_ns = 0
        self._armed_steps = 0
        self._last_agent_ns = 0

    def start(self, segment: Segment) -> None:
        """Before the first step."""
        self._step = segment.step()
        self._arm(segment)

    def _arm(self, segment: Segment) -> None:
        self._armed = self._step % self.interval == 0
        segment.arm(int(self._armed))

    def step_ended(self, segment: Segment, duration_ns: int, suspicious: bool) -> None:
        """Takes the time of the step that ended. A suspicious step (non-finite values) is followed at every step."""
        self._step += 1
        if self._automatic:
            agent_ns = segment.status().agent_ns
            spent, self._last_agent_ns = agent_ns - self._last_agent_ns, agent_ns
            if self._armed:
                self._armed_ns += spent
                self._armed_duration_ns += duration_ns
                self._armed_steps += 1
            if suspicious:
                self.interval = 1
            elif self._step == _WARM_UP_STEPS - _WINDOW_STEPS:
                self._forget()  # what came before holds compilation and first-touch costs
            elif self._step >= _WARM_UP_STEPS and self._step % _WINDOW_STEPS == 0:
                self._decide()
        if self.interval > 1 or not self._armed:
            self._arm(segment)

    def _decide(self) -> None:
        if self._armed_duration_ns > 0 and self._armed_steps > 0:
            bare_ns = max(1, self._armed_duration_ns - self._armed_ns)
            share = self._armed_ns / bare_ns
            self.interval = min(_MAX_INTERVAL, max(1, -int(-share // self._budget)))
        self._forget()

    def _forget(self) -> None:
        self._armed_ns = self._armed_duration_ns = self._armed_steps = 0
