"""Steps of the driver's checkpoint: each is a process with the daemon's rights, and tenants can cause them.

So only a few go on at a time, one for each tenant; whoever comes too late asks again. To start a process takes
milliseconds, and steps are decided upon with the arbiter's lock held: `start` starts them, without it. One thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aliquot.services.mover.checkpoint import Answer, What
from aliquot.services.mover.checkpointer import Step

_MOST = 4
_MOST_LOOKS = 2  # of these, so that there is always a place for who has to return


class Stepper(Protocol):
    """services/mover/checkpointer.py."""

    def begin(self, what: What, pids: Sequence[int], deadline: float) -> Step: ...


class Counted:
    """A step that is about to begin, or goes on, until it has answered."""

    def __init__(self, steps: Steps, tenant: str, what: What, pids: Sequence[int], deadline: float) -> None:
        self.tenant, self.what, self.pids, self.deadline = tenant, what, tuple(pids), deadline
        self.step: Step | None = None  # not started yet
        self._steps = steps

    def poll(self, now: float) -> Answer | None:
        """What became of it; None: it goes on."""
        answer = None if self.step is None else self.step.poll(now)
        if answer is not None:
            self._steps.ended(self)
        return answer


class Steps:
    """See the head of the file."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._on: list[Counted] = []
        self._orphans: list[Counted] = []

    def has_place(self, tenant: str, what: What) -> bool:
        """Whether `begin` would begin it."""
        looks = sum(step.what is What.LOOK for step in self._on)
        if len(self._on) >= _MOST or (what is What.LOOK and looks >= _MOST_LOOKS):
            return False
        return all(step.tenant != tenant for step in self._on)

    def begin(self, tenant: str, what: What, pids: Sequence[int], deadline: float) -> Counted | None:
        """The next `start` starts it. None: not now."""
        if not self.has_place(tenant, what):
            return None
        step = Counted(self, tenant, what, pids, deadline)
        self._on.append(step)
        return step

    def start(self) -> None:
        """Start what was begun. The lock is not held."""
        for step in self._on:
            if step.step is None:
                step.step = self._stepper.begin(step.what, step.pids, step.deadline)

    def ended(self, step: Counted) -> None:
        """The step has answered."""
        self._on.remove(step)

    def abandon(self, step: Counted | None) -> None:
        """The caller no longer waits for the answer; the step's deadline still holds."""
        if step is None:
            return
        if step.step is None:
            self.ended(step)
        else:
            self._orphans.append(step)

    def reap(self, now: float) -> None:
        """End the abandoned steps that have answered, or whose time is over."""
        self._orphans = [step for step in self._orphans if step.poll(now) is None]
