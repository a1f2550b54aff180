"""The workloads and Pods of one machine: in memory, and on the disk (adapters/storage/objectstore.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from aliquot.adapters.storage.objectstore import ObjectStore
from aliquot.adapters.storage.writer import Writer
from aliquot.model.claim import Claim
from aliquot.model.containers.localpod import LocalPod, Workload
from aliquot.services.machine.pods import launchspec

_LOG = logging.getLogger("aliquot.pods")

WorkloadKey = tuple[str, str, str]


class PodRecords:
    """See the module docstring. `clock` is that of the queue."""

    def __init__(self, store: ObjectStore, writer: Writer, clock: Callable[[], float]) -> None:
        self.workloads: dict[WorkloadKey, Workload] = {}
        self.pods: dict[str, LocalPod] = {}
        self.claims: dict[str, Claim | None] = {}
        self._store, self._writer, self._clock = store, writer, clock
        self._since: dict[str, float] = {}  # since when each Pod is there

    def named(self, namespace: str, name: str) -> LocalPod | None:
        """The Pod of that namespace and name."""
        return next((pod for pod in self.pods.values() if (pod.namespace, pod.name) == (namespace, name)), None)

    def owned(self, workload: Workload) -> list[LocalPod]:
        """Its Pods, oldest first."""
        return [pod for pod in self.pods.values() if owner_of(pod) == as_owner(workload)]

    def _remember(self, pod: LocalPod) -> None:
        self.pods[pod.uid] = pod
        self._since.setdefault(pod.uid, self._clock())
        if pod.uid not in self.claims:
            self.claims[pod.uid] = launchspec.claim_of(pod)

    def _persist(self, pod: LocalPod) -> None:
        """For what has happened already: if the disk is full, the next daemon finds out by itself."""
        self._remember(pod)
        self._write(pod.key, pods=[pod])

    def _write(self, about: str, **what: Any) -> None:
        def log(error: Exception | None) -> None:
            if error is not None:
                _LOG.error("pod_not_stored", extra={"data": {"pod": about, "error": str(error)}})

        self._writer.put(lambda: self._store.write(**what), log)

    def _forget(self, uid: str) -> None:
        self.pods.pop(uid, None)
        self.claims.pop(uid, None)
        self._since.pop(uid, None)

    def _write_applied(self, applied: Sequence[Workload | LocalPod]) -> None:
        workloads = [item for item in applied if isinstance(item, Workload)]
        self._store.write(workloads=workloads, pods=[item for item in applied if isinstance(item, LocalPod)])

    def _going(self, uids: Iterable[str], grace: float | None) -> list[LocalPod]:
        """Those that have more time left than that, or are not ending at all, with their end."""
        there = [self.pods[uid] for uid in uids if uid in self.pods]
        return [
            replace(pod, ending=launchspec.plan(pod).grace if grace is None else grace)
            for pod in there
            if pod.ending is None or (grace is not None and grace < pod.ending)
        ]


def workload_key(workload: Workload) -> WorkloadKey:
    """Its identity."""
    return workload.kind, workload.namespace, workload.name


def as_owner(workload: Workload) -> object:
    """With the user: Pods of another user's deleted workload of the same name may still be ending."""
    return workload.namespace, (workload.kind, workload.name), workload.applier.user


def owner_of(pod: LocalPod) -> object:
    """Equal to `as_owner` of the workload that owns the Pod."""
    return pod.namespace, pod.owner, pod.applier.user
