"""Pods that a kubelet rejected for good because the agent of their node did not answer: the node is closed until the
agent is back, and the Pods are deleted, with an event on their controller, which makes others.

An agent that is killed cannot announce it. The first Pod that a kubelet rejects says so: then we write
`aliquot.dev/agent: away` on the agent's behalf. An agent that is there all the same writes its version again at once.

A Pod is deleted by an eviction, which a Pod that has failed is always granted: the API server adds the condition
DisruptionTarget, by which the podFailurePolicy of a Job can tell this from a failure of the program. Pods that we did
not place, that no controller will make again, or that the agent itself refused are left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects import hami
from aliquot.dialects.native import AGENT, AWAY, GRANT
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.dialects.wire.schedulerconfig import RESOURCES
from aliquot.model.node import Closed
from aliquot.model.numbers.backoff import backoff
from aliquot.services.daemon.events import EventSink, ObjectRef
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.preemption.evictionapi import Evictee, evict

log = logging.getLogger(__name__)

_ADMISSION, _OUT_OF = "UnexpectedAdmissionError", "OutOf"
_OURS = RESOURCES.union(hami.RESOURCES)
_INTERVAL = 0.5  # seconds between two looks at what is left
_FIRST_RETRY, _LAST_RETRY = 1.0, 60.0
_CLOSED_AGAIN = 10.0  # seconds in which a node is closed at most once: its agent may say that it is there
_WRITES = 4  # tries to close a node, where others write it between our read and ours
_TIMEOUT = 5.0  # seconds for one call
_MOST = 10_000  # Pods kept


@dataclass(slots=True)
class _Rejected:
    """A Pod to delete."""

    pod: Evictee
    owner: ObjectRef
    text: str
    due: float = 0.0
    failures: int = 0


class RejectedPods:
    """Receives every finished Pod from the sink, before the cluster forgets it; acts while `run` runs and this instance
    leads. Followers keep the same list: a new leader knows what is left. `deletes`: our role allows evictions."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        events: EventSink,
        *,
        leading: Callable[[], bool],
        clock: Callable[[], float],
        deletes: bool = True,
    ) -> None:
        self.deleted = 0
        self._kube, self._cluster, self._events = kube, cluster, events
        self._leading, self._clock, self._deletes = leading, clock, deletes
        self._left: dict[str, _Rejected] = {}  # by key
        self._silent: set[str] = set()  # nodes that have just rejected a Pod
        self._closed_at: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._warned: set[str] = set()

    def observe(self, pod: PodObject) -> None:
        """A Pod that has finished was added or has changed."""
        meta, node = pod.metadata, pod.spec.node_name
        key = f"{meta.namespace}/{meta.name}"
        self.forget(key)
        if not node or meta.deletion_timestamp is not None or GRANT not in (meta.annotations or {}):
            return
        if not is_unserved(pod):
            return
        if self._cluster.placement(meta.uid) is not None:  # else it may be long ago
            self._silent.add(node)
        owner = next((owner for owner in meta.owner_references or () if owner.controller), None)
        if owner is not None and self._deletes and len(self._left) < _MOST:
            about = ObjectRef(owner.kind, owner.name, meta.namespace, owner.uid, owner.api_version)
            why = (pod.status.message if pod.status else None) or ""
            text = (
                f"Pod {meta.name} is deleted, to be made again: the kubelet of {node} rejected it while no node agent"
            )
            self._left[key] = _Rejected(Evictee(meta.uid, key), about, f"{text} answered ({why[:300]})")
        self._wake.set()

    def forget(self, key: str, uid: str = "") -> None:
        """The Pod (with that uid only) is gone."""
        left = self._left.get(key)
        if left is not None and uid in ("", left.pod.uid):
            del self._left[key]

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL if self._left else None):
                    await self._wake.wait()
            self._wake.clear()
            if not self._leading():
                self._silent.clear()
                continue
            await self._close_nodes()
            for rejected in list(self._left.values()):
                if self._silent:
                    await self._close_nodes()
                if rejected.due <= self._clock() and self._leading() and await self._is_settled(rejected):
                    self.forget(rejected.pod.key, rejected.pod.uid)

    async def _close_nodes(self) -> None:
        now, silent = self._clock(), self._silent
        self._silent = set()
        self._closed_at = {name: at for name, at in self._closed_at.items() if now - at < _CLOSED_AGAIN}
        for name in silent - self._closed_at.keys():
            if Closed.AGENT_AWAY not in self._cluster.reported.closed.get(name, ()) and await self._close(name):
                self._closed_at[name] = now

    async def _close(self, name: str) -> bool:
        """A node without an agent of ours is left alone: nobody would open it again."""
        path = f"/api/v1/nodes/{name}"
        for _ in range(_WRITES):
            try:
                node: NodeObject = await self._kube.get(path, into=NodeObject, timeout=_TIMEOUT)
                if (node.metadata.annotations or {}).get(AGENT, AWAY) == AWAY:
                    return False
                # With its version the patch fails where the agent, or the kubelet, has written meanwhile.
                body = {"metadata": {"resourceVersion": node.metadata.resource_version, "annotations": {AGENT: AWAY}}}
                await self._kube.patch(f"{path}/status", body, into=bytes, timeout=_TIMEOUT)
                log.info(
                    "node_closed", extra={"data": {"node": name, "why": "its kubelet rejected a Pod for no agent"}}
                )
                return True
            except (ApiError, Unreachable) as error:
                if not (isinstance(error, ApiError) and error.status == 409):
                    self._warn("node_not_closed", name, error)
                    return False
        return False

    async def _is_settled(self, rejected: _Rejected) -> bool:
        """Delete the Pod. False: to be tried again."""
        try:
            refusal = await evict(self._kube, rejected.pod)
        except ApiError as error:  # our role does not allow it
            self._warn("rejected_pod_not_deleted", rejected.pod.key, error)
            return True
        except Unreachable:
            refusal, again = None, True
        else:
            again = refusal is not None and refusal.temporary
        if again:
            rejected.failures += 1
            rejected.due = self._clock() + backoff(rejected.failures, first=_FIRST_RETRY, longest=_LAST_RETRY)
        elif refusal is not None:
            self._warn("rejected_pod_not_deleted", rejected.pod.key, refusal.why)
        else:
            self.deleted += 1
            self._events.emit(rejected.owner, "PodRejected", rejected.text, type="Warning", action="Deleting")
        return not again

    def _warn(self, what: str, about: str, why: object) -> None:
        if what not in self._warned:
            self._warned.add(what)
            log.warning(what, extra={"data": {"about": about, "why": str(why)}})


def is_unserved(pod: PodObject) -> bool:
    """Whether the kubelet rejected the Pod for good because a resource of ours had no plugin: not because the plugin
    refused it, which is an answer."""
    status = pod.status
    if status is None or status.phase != "Failed":
        return False
    reason, message = status.reason or "", status.message or ""
    if reason.startswith(_OUT_OF):
        return reason.removeprefix(_OUT_OF) in _OURS
    if reason != _ADMISSION:
        return False
    if "rpc error:" in message:
        return "code = Unavailable" in message  # it ended during the call
    return any(resource in message for resource in _OURS)
