"""The container lifecycle of a Pod, as the kubelet implements it. A state machine without IO; callers pass the time in.

Init containers run one after the other until each succeeds; sidecars among them keep running. Then the main containers
start. A container that ends is restarted according to restartPolicy with exponential back-off; in a Job, up to its
backoffLimit. The Pod is over when no main container will be restarted; its sidecars end with it. Every Pod's supervisor
imports this module: keep it light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aliquot.model.containers.launch import ReportedContainer
from aliquot.wording.amounts import duration

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0  # seconds of back-off before a restart: doubled each time
STEADY = 600.0  # seconds of running after which the back-off starts over


@dataclass(eq=False, slots=True)
class Container:
    """One container. `due`: when to start it; None: not scheduled."""

    name: str
    init: bool
    sidecar: bool
    state: str = "waiting"
    exit_code: int | None = None
    restarts: int = 0
    started: float | None = None
    ended: float | None = None
    pid: int | None = None
    reason: str | None = None
    due: float | None = None
    pause: float = FIRST_PAUSE

    def report(self) -> ReportedContainer:
        """The container as the daemon learns of it."""
        return {
            "name": self.name,
            "state": self.state,
            "exit_code": self.exit_code,
            "restarts": self.restarts,
            "started": self.started,
            "ended": self.ended,
            "pid": self.pid,
            "reason": self.reason,
        }


class Lifecycle:
    """See the module docstring. `now` is seconds since 1970."""

    def __init__(
        self, containers: Sequence[Container], policy: str, now: float, most_restarts: int | None = None
    ) -> None:
        self.containers = list(containers)
        self._policy, self._most_restarts = policy, most_restarts
        self._failed = False  # an init container failed, or a container failed too often
        self._next(now)

    # --- queries ----------------------------------------------------------------------------------------------

    def due(self, now: float) -> list[Container]:
        """The containers to start now."""
        return [container for container in self.containers if container.due is not None and container.due <= now]

    def next_due(self) -> float | None:
        """When the next container is due."""
        return min((container.due for container in self.containers if container.due is not None), default=None)

    def running(self) -> list[Container]:
        """The containers that have a process."""
        return [container for container in self.containers if container.state == "running"]

    @property
    def over(self) -> bool:
        """Whether at most sidecars are left."""
        return self._failed or all(container.state == "ended" and container.due is None for container in self._mains())

    @property
    def phase(self) -> str:
        """The Pod phase."""
        if self.over and not self.running():
            good = not self._failed and all(container.exit_code == 0 for container in self._mains())
            return "Succeeded" if good else "Failed"
        return "Running" if any(container.started is not None for container in self._mains()) else "Pending"

    @property
    def reason(self) -> str | None:
        """Why the Pod failed or what it waits for."""
        for container in self.containers:
            if container.reason is not None:
                return f"container {container.name}: {container.reason}"
        if self.phase == "Failed":
            broken = next((container for container in self.containers if container.exit_code), None)
            return None if broken is None else f"container {broken.name} {_ended(broken.exit_code)}"
        return None

    def _mains(self) -> list[Container]:
        return [container for container in self.containers if not container.init]

    # --- events ------------------------------------------------------------------------------------------------

    def started(self, container: Container, pid: int, now: float) -> None:
        """The container runs."""
        container.state, container.pid, container.started = "running", pid, now
        container.ended = container.exit_code = container.due = container.reason = None
        self._next(now)

    def ended(self, container: Container, code: int, now: float, why: str | None = None) -> None:
        """The container has ended. `why`: it could not be started."""
        lasted = now - (container.started or now)
        container.state, container.pid, container.exit_code, container.ended = "ended", None, code, now
        container.due, container.reason = None, why
        again = container.sidecar or self._policy == "Always" or (self._policy == "OnFailure" and code != 0)
        if container.init and not container.sidecar:
            again = code != 0 and self._policy != "Never"
            self._failed = code != 0 and not again
        tries = sum(container.restarts for container in self.containers)
        limited = self._most_restarts is not None and tries >= self._most_restarts
        if again and code != 0 and limited and not (container.sidecar and self.over):
            again, self._failed = False, True
            container.reason = f"{why or _ended(code)}; the Job reached its backoffLimit ({self._most_restarts})"
        if again and not (container.sidecar and self.over):
            container.pause = FIRST_PAUSE if lasted >= STEADY else container.pause
            container.due, container.state = now + container.pause, "waiting"
            container.reason = why or f"{_ended(code)}; restarts in {duration(round(container.pause))}"
            container.pause = min(container.pause * 2, LONGEST_PAUSE)
            container.restarts += 1
        self._next(now)

    def stop(self) -> None:
        """Start no more containers."""
        for container in self.containers:
            container.due = None

    def _next(self, now: float) -> None:
        """Schedule the containers whose turn has come."""
        if self.over:
            self.stop()
            return
        for container in self.containers:
            fresh = container.state == "waiting" and container.started is None and container.restarts == 0
            if not container.init or container.sidecar:
                if fresh and container.due is None:
                    container.due = now
                if container.init and container.started is None:
                    return  # the next container waits for it
            else:
                if fresh and container.due is None:
                    container.due = now
                if not (container.state == "ended" and container.exit_code == 0):
                    return


def _ended(code: int | None) -> str:
    return f"was killed by signal {code - 128}" if code is not None and code > 128 else f"exited with code {code}"
