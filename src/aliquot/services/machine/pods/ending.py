"""Ends Pods: asks their supervisors, kills those that are late, and clears what is left without a supervisor.

A Pod is removed only when none of its processes is alive.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Container, Iterable, Mapping

from aliquot.adapters.host.home import POD_VARIABLE
from aliquot.adapters.host.process import processes
from aliquot.adapters.host.process.procscan import Scan
from aliquot.adapters.storage.database import StoreError
from aliquot.model.containers.localpod import LocalPod
from aliquot.model.status.answers import Send

_LOG = logging.getLogger("aliquot.pods")
_PATIENCE = 3.0  # seconds after the grace period until the supervisor is killed

Done = Callable[[Exception | None], None]


class PodEnding:
    """`pods`: all there are; `connections`: to supervisors; both by UID. `tenants`: those that hold cards. `delete`
    deletes the Pod's row and calls back; then `removed` is called."""

    def __init__(
        self,
        pods: Mapping[str, LocalPod],
        connections: Mapping[str, Send],
        tenants: Container[str],
        *,
        delete: Callable[[LocalPod, Done], None],
        removed: Callable[[LocalPod], None],
    ) -> None:
        self._pods, self._connections, self._tenants = pods, connections, tenants
        self._delete, self._removed = delete, removed
        self._kill_at: dict[str, float] = {}  # on the monotonic clock
        self._clearing: set[str] = set()  # Pods without a supervisor that may still have processes
        self._removing: set[str] = set()  # Pods whose rows are being deleted

    def ask(self, pod: LocalPod) -> None:
        """Ask the supervisor to end the Pod. If it is late, `kill_late` kills it."""
        assert pod.ending is not None
        if pod.supervisor is None:
            self._clearing.add(pod.uid)
            return
        self._kill_at[pod.uid] = time.monotonic() + pod.ending + _PATIENCE
        send = self._connections.get(pod.uid)
        if send is not None:
            send({"event": {"end": pod.ending}})
        else:
            send_signal(pod.supervisor, signal.SIGTERM)

    def kill_late(self) -> None:
        """Kill the supervisors whose time is up."""
        clock = time.monotonic()
        for uid, deadline in list(self._kill_at.items()):
            if deadline <= clock:
                pod = self._pods.get(uid)
                if pod is None or pod.supervisor is None or send_signal(pod.supervisor, signal.SIGKILL):
                    del self._kill_at[uid]

    def forget(self, uid: str) -> None:
        """The Pod is not there any more."""
        self._kill_at.pop(uid, None)
        self._clearing.discard(uid)

    def lost_supervisor(self, uid: str) -> None:
        """The Pod has no supervisor, and may still have processes."""
        self._clearing.add(uid)

    def is_clearing(self, uid: str) -> bool:
        """Whether processes of an earlier supervisor may be left."""
        return uid in self._clearing

    def to_clear(self) -> dict[str, int]:
        """Pods without a supervisor that may still have processes, and their users."""
        return {uid: self._pods[uid].applier.user for uid in self._clearing if uid in self._pods}

    def clear(self, found: Scan, uids: Iterable[str]) -> None:
        """Kill what is left of these Pods. They were to be cleared before the scan began."""
        try:
            for uid in uids:
                if uid in self._clearing:
                    self._clear(uid, found)
        except StoreError as error:
            _LOG.error("pod_not_removed", extra={"data": {"error": str(error)}})

    def _clear(self, uid: str, found: Scan) -> None:
        """Kill the processes left of the Pod, found by its environment variable. Remove it if it was deleted."""
        pod = self._pods.get(uid)
        if pod is None or pod.supervisor is not None:
            self._clearing.discard(uid)
            return
        left = found.marked(POD_VARIABLE, uid, pod.applier.user)
        processes.kill_all(left, user=pod.applier.user)
        if left or pod.tenant in self._tenants or pod.applier.user in found.unfinished:
            return
        if pod.ending is None:
            self._clearing.discard(uid)
        elif uid not in self._removing:
            self._removing.add(uid)
            self._delete(pod, lambda error: self._deleted(pod, error))

    def _deleted(self, pod: LocalPod, error: Exception | None) -> None:
        """The Pod's row is deleted. Where that failed, the next sweep tries again: until then its name is taken."""
        self._removing.discard(pod.uid)
        if error is not None:
            _LOG.error("pod_not_removed", extra={"data": {"pod": pod.key, "error": str(error)}})
            return
        self._removed(pod)


def send_signal(supervisor: tuple[int, int], number: int) -> bool:
    """Send the signal to that process, if it is still there. False: no file is left to look, so try it again."""
    try:
        processes.send_signal(supervisor[0], number, supervisor[1])
    except OSError as error:
        _LOG.warning("signal_failed", extra={"data": {"pid": supervisor[0], "error": str(error)}})
        return not processes.is_shortage(error)
    return True
