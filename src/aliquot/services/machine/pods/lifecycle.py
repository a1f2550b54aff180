"""What the containers of a Pod do next, as the kubelet would have it. No IO; every time is passed in.

Init containers run one after the other, each until it succeeds; a sidecar among them runs on beside the rest. Then all
others are started. Who ends is started again as the Pod's restartPolicy says, later each time; in a Job only so often.
The Pod is over when none of its containers is going to be started again; its sidecars end with it. Imported by every
Pod's supervisor: nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0  # seconds before a container is started again: doubled each time
STEADY = 600.0  # one that ran that long is paused no longer than the first time


@dataclass(eq=False, slots=True)
class Container:
    """One container. `due` is when it is to be started, on the clock that is passed in; None: not, as things are."""

    name: str
    init: bool
    sidecar: bool
    given: dict[str, Any] = field(default_factory=dict)  # what the daemon told of it
    state: str = "waiting"
    exit_code: int | None = None
    restarts: int = 0
    started: float | None = None
    ended: float | None = None
    pid: int | None = None
    reason: str | None = None
    due: float | None = None
    pause: float = FIRST_PAUSE

    def told(self) -> dict[str, Any]:
        """As the daemon hears it."""
        names = ("name", "state", "exit_code", "restarts", "started", "ended", "pid", "reason")
        return {name: getattr(self, name) for name in names}


class Lifecycle:
    """See the head of the file. `now` is seconds since 1970."""

    def __init__(
        self, containers: Sequence[Container], policy: str, now: float, most_restarts: int | None = None
    ) -> None:
        self.containers = list(containers)
        self._policy, self._most_restarts = policy, most_restarts
        self._failed = False  # an init container did, or one too often, and is not tried again
        self._next(now)

    # --- what is to be done ------------------------------------------------------------------------------------

    def due(self, now: float) -> list[Container]:
        """Whoever is to be started now."""
        return [container for container in self.containers if container.due is not None and container.due <= now]

    def wake(self) -> float | None:
        """When the next one is due."""
        return min((container.due for container in self.containers if container.due is not None), default=None)

    def running(self) -> list[Container]:
        """Whoever has a process."""
        return [container for container in self.containers if container.state == "running"]

    @property
    def over(self) -> bool:
        """Whether only sidecars are left to end."""
        return self._failed or all(container.state == "ended" and container.due is None for container in self._mains())

    @property
    def phase(self) -> str:
        """As Kubernetes calls it."""
        if self.over and not self.running():
            good = not self._failed and all(container.exit_code == 0 for container in self._mains())
            return "Succeeded" if good else "Failed"
        return "Running" if any(container.started is not None for container in self._mains()) else "Pending"

    @property
    def reason(self) -> str | None:
        """Why it failed, or what it waits for."""
        for container in self.containers:
            if container.reason is not None:
                return f"container {container.name}: {container.reason}"
        if self.phase == "Failed":
            bad = next((container for container in self.containers if container.exit_code), None)
            return None if bad is None else f"container {bad.name} {_ended(bad.exit_code)}"
        return None

    def _mains(self) -> list[Container]:
        return [container for container in self.containers if not container.init]

    # --- what happens ------------------------------------------------------------------------------------------

    def started(self, container: Container, pid: int, now: float) -> None:
        """It runs."""
        container.state, container.pid, container.started = "running", pid, now
        container.ended = container.exit_code = container.due = container.reason = None
        self._next(now)

    def ended(self, container: Container, code: int, now: float, why: str | None = None) -> None:
        """It is over, for now or for good. `why`: it could not even be started."""
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
            container.reason = (
                f"{why or f'it {_ended(code)}'}; its Job's backoffLimit ({self._most_restarts}) is reached"
            )
        if again and not (container.sidecar and self.over):
            container.pause = FIRST_PAUSE if lasted >= STEADY else container.pause
            container.due, container.state = now + container.pause, "waiting"
            container.reason = why or f"it {_ended(code)}, and is started again in {container.pause:.0f} s"
            container.pause = min(container.pause * 2, LONGEST_PAUSE)
            container.restarts += 1
        self._next(now)

    def stop(self) -> None:
        """Nobody is started any more."""
        for container in self.containers:
            container.due = None

    def _next(self, now: float) -> None:
        """Whose turn it is, of those that have not had one."""
        if self.over:
            self.stop()
            return
        for container in self.containers:
            fresh = container.state == "waiting" and container.started is None and container.restarts == 0
            if not container.init or container.sidecar:
                if fresh and container.due is None:
                    container.due = now
                if container.init and container.started is None:
                    return  # the next one comes after it
            else:
                if fresh and container.due is None:
                    container.due = now
                if not (container.state == "ended" and container.exit_code == 0):
                    return


def _ended(code: int | None) -> str:
    return f"was ended by signal {code - 128}" if code is not None and code > 128 else f"ended with exit code {code}"
