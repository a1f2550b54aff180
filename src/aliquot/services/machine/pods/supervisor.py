"""The supervisor of one Pod: a process that waits for the Pod's grant, runs its containers and reports their state.

    python -m aliquot.services.machine.pods.supervisor CONTROL_SOCKET UID LOG [USER GROUP GROUPS]

It runs as the Pod's owner. It outlives the daemon, reconnects to the next one and reports again. On SIGTERM, or when
the daemon asks, it ends the containers (SIGKILL after the grace period) and then itself. Its containers cannot outlive
it. There is one per Pod, so it imports nothing heavy (tests/services/machine/pods/test_supervisor.py checks that).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import Any

from aliquot.adapters.host import logfiles
from aliquot.adapters.host.control import Connection, ControlError, NoDaemonError
from aliquot.adapters.host.home import CONTAINER_VARIABLE
from aliquot.adapters.host.process import children, processes, procscan
from aliquot.model.containers.launch import ContainerLaunch, LaunchSpec, ReportedEvent, ReportedState, parse_launch
from aliquot.model.containers.localpod import MOST_EVENTS
from aliquot.model.decoding.openjson import JsonObject
from aliquot.services.machine.pods.lifecycle import Container, Lifecycle

_RECONNECT = 0.5  # seconds between attempts to reach the daemon
_STEP = 0.1  # seconds between checks of containers that are to end
_GRACE = 30.0
_BETWEEN_LOOKS = 5.0  # seconds between looks at the size of the logs
_FINAL = ("denied", "stopped")
_LONGEST = 800  # characters of a start error: a program's name may be a whole script


class Supervisor:
    """See the module docstring."""

    def __init__(self, control: str, uid: str) -> None:
        self._control, self._uid = control, uid
        self._connection: Connection | None = None
        self._lifecycle: Lifecycle | None = None
        self._launches: dict[str, ContainerLaunch] = {}  # by container
        self._grace = _GRACE
        self._log_limit: int | None = None
        self._next_look = 0.0  # on the monotonic clock
        self._kill_at: float | None = None  # on the monotonic clock: the end of the grace period
        self._ending = False
        self._why_ending: str | None = None
        self._events: list[ReportedEvent] = []
        self._reported = self._noted = 0  # number of the last report, and of the last one that the daemon stored
        self._changed = True
        self._wakeup, writer = os.pipe()  # readable after every signal
        for end in (self._wakeup, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._end("its supervisor received a signal to end", None)

    # --- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the Pod is over and the daemon has stored that, or until the supervisor is to end."""
        children.adopt_orphans()
        while True:
            self._connect()
            self._reap()
            self._step()
            self._bound_logs()
            if self._changed:
                self._report()
            if self._finished():
                return
            self._wait()

    def _finished(self) -> bool:
        if self._lifecycle is not None and (self._lifecycle.running() or children.descendants()):
            return False
        if self._ending:
            return True  # the one who ended it knows
        stored = not self._changed and self._noted == self._reported > 0
        return self._lifecycle is not None and self._lifecycle.over and stored

    def _wait(self) -> None:
        lifecycle, timeouts = self._lifecycle, [30.0 if self._log_limit is None else _BETWEEN_LOOKS]
        if self._connection is None:
            timeouts.append(_RECONNECT)
        if lifecycle is not None and (due := lifecycle.next_due()) is not None:
            timeouts.append(due - time.time())
        if self._kill_at is not None and (self._ending or (lifecycle is not None and lifecycle.running())):
            timeouts.append(_STEP)
        files: list[Any] = [self._wakeup] if self._connection is None else [self._wakeup, self._connection]
        ready, _, _ = select.select(files, [], [], max(0.0, min(timeouts)))
        if self._wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 4096)
        if self._connection in ready:
            self._receive()

    # --- the daemon --------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._connection is not None:
            return
        try:
            connection = Connection(self._control)
            connection.send({"op": "keep", "uid": self._uid, "granted": self._lifecycle is not None})
        except (NoDaemonError, ControlError):
            if not os.path.isdir(os.path.dirname(self._control)):  # no daemon will ever come back there
                self._end("the daemon's home is gone", None)
            return
        self._connection, self._changed = connection, True

    def _receive(self) -> None:
        assert self._connection is not None
        try:
            for message in self._connection.there():
                self._handle(message)
        except ControlError:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        time.sleep(0.1)  # the daemon may be ending or busy: do not ask again at once

    def _handle(self, message: JsonObject) -> None:
        event = message.get("event")
        if "error" in message:
            if message["error"].get("kind") not in _FINAL:  # it is busy or its disk is full: ask again
                raise ControlError("not now")
            self._end("the daemon does not know this Pod", None)  # the Pod is gone or has another supervisor
        elif isinstance(event, dict) and "granted" in event:
            self._begin(parse_launch(event["granted"]))
        elif isinstance(event, dict) and "end" in event:
            self._end("it was deleted", event["end"])
        elif isinstance(event, dict) and "noted" in event:
            self._noted = event["noted"]

    def _report(self) -> None:
        if self._connection is None or self._lifecycle is None:
            return
        lifecycle = self._lifecycle
        self._reported += 1
        phase, reason = lifecycle.phase, lifecycle.reason
        if self._why_ending is not None:
            phase, reason = ("Failed" if not lifecycle.running() else phase), self._why_ending
        state: ReportedState = {
            "phase": phase,
            "reason": reason,
            "containers": [container.report() for container in lifecycle.containers],
            "events": self._events[-MOST_EVENTS:],
        }
        try:
            self._connection.send({"report": self._reported, "state": state})
            self._changed = False
        except ControlError:
            self._disconnect()

    def _record(self, text: str, kind: str = "Normal") -> None:
        self._events.append({"time": time.time(), "text": text, "type": kind})
        self._changed = True

    # --- the containers ----------------------------------------------------------------------------------------

    def _begin(self, spec: LaunchSpec) -> None:
        if self._lifecycle is not None or self._ending:
            return
        self._grace, self._log_limit = spec.grace, spec.log_limit
        self._launches = {container.name: container for container in spec.containers}
        containers = [Container(container.name, container.init, container.sidecar) for container in spec.containers]
        self._lifecycle = Lifecycle(containers, spec.restart_policy, time.time(), spec.most_restarts)

    def _step(self) -> None:
        lifecycle = self._lifecycle
        if lifecycle is None:
            return
        if self._ending or lifecycle.over:
            self._wind_up(lifecycle)
            return
        for container in lifecycle.due(time.time()):
            self._start(lifecycle, container)

    def _start(self, lifecycle: Lifecycle, container: Container) -> None:
        launch = self._launches[container.name]
        try:
            pid = children.spawn(launch.command, launch.env, launch.folders, launch.log)
        except (children.SpawnError, OSError) as error:
            code = error.code if isinstance(error, children.SpawnError) else 126
            why = str(error)[:_LONGEST]
            lifecycle.ended(container, code, time.time(), why)
            self._record(f"cannot start container {container.name}: {why}", "Warning")
            return
        lifecycle.started(container, pid, time.time())
        self._record(f"started container {container.name} (pid {pid})")

    def _bound_logs(self) -> None:
        if self._lifecycle is None or self._log_limit is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _BETWEEN_LOOKS
        for launch in self._launches.values():
            with contextlib.suppress(OSError):  # it has not started, or its owner removed the log
                logfiles.bound(launch.log, self._log_limit)

    def _reap(self) -> None:
        for pid, code in children.ended():
            lifecycle = self._lifecycle
            found = (
                next((container for container in lifecycle.containers if container.pid == pid), None)
                if lifecycle is not None
                else None
            )
            if lifecycle is None or found is None:
                continue
            processes.kill_all(self._strays(found))
            lifecycle.ended(found, code, time.time())
            if self._ending:
                lifecycle.stop()
            self._record(f"container {found.name} exited with code {code}", "Normal" if code == 0 else "Warning")

    def _strays(self, container: Container) -> dict[int, int]:
        """Processes that left the container's process group. They end with it, as in any container."""
        return procscan.with_environment(CONTAINER_VARIABLE, f"{self._uid}/{container.name}", uid=os.geteuid())

    # --- the end -----------------------------------------------------------------------------------------------

    def _end(self, why: str, grace: float | None) -> None:
        if grace is not None:
            self._grace = grace
            self._kill_at = None if self._kill_at is None else min(self._kill_at, time.monotonic() + grace)
        if not self._ending:
            self._ending, self._why_ending, self._changed = True, why, True

    def _wind_up(self, lifecycle: Lifecycle) -> None:
        """SIGTERM to the running containers, SIGKILL to all processes after the grace period."""
        lifecycle.stop()
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace
            for container in lifecycle.running():
                children.signal_group(container.pid or 0, signal.SIGTERM)
        left = children.descendants()
        if left and (time.monotonic() >= self._kill_at or not lifecycle.running()):
            processes.kill_all(left)


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    control, uid, log, *identity = arguments
    if identity:
        user, group, groups = identity
        os.setgroups([int(word) for word in groups.split(",")])
        os.setgid(int(group))
        os.setuid(int(user))
    with contextlib.suppress(OSError):  # after the change of user: the folder belongs to the owner
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.dup2(output, 2)
    Supervisor(control, uid).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
