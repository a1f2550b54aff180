"""Nodes, Pods and an API server around the evictor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects.wire.events import ObjectRef
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.preemption.evictor import Evictor
from kit.clusters.watchobjects import a_cluster, as_pod, claim_of, live_node, live_pod, pod_json
from kit.running.virtualclock import play
from kit.values.manifests import MEM, Json

EPOCH = 1_800_000_000.0
BUDGET = {"causes": [{"message": "The disruption budget web needs 1 healthy pods and has 1 currently"}]}


class Rig:
    """Nodes, an API server that has the Pods, and the evictor on top."""

    def __init__(self, *cards_gib: int, enabled: bool = True) -> None:
        self.cluster: Cluster = a_cluster(live_node("n1", *(cards_gib or (16,))))
        self.pods: dict[str, Json] = {}
        self.protected: set[str] = set()
        self.events: list[tuple[str, str, str]] = []
        self.evicted: list[str] = []
        self.retried: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self.lost: set[str] = set()  # calls that happen, but their answer does not arrive: "nominate"
        self.no_answer: Exception = Unreachable("no answer")  # what arrives instead
        self.refuse: Callable[[str, str], Exception | None] = lambda verb, path: None
        self.loop = asyncio.get_running_loop()
        self.start(enabled)

    def start(self, enabled: bool = True) -> None:
        """Start the evictor as after a crash: it knows only what the cluster does."""
        self.evictor = Evictor(
            cast(Kube, self),
            self.cluster,
            self,
            enabled=enabled,
            clock=self.loop.time,
            wall=lambda: EPOCH + self.loop.time(),
            stamp=lambda: "now",
        )

    # What happens in the cluster

    def put(self, name: str, gib: int, card: int = 0, *, priority: int = 0, on: str = "n1") -> None:
        annotations = {"ALIYUN_COM_GPU_MEM_IDX": str(card)}
        self._set(pod_json(name, {MEM: gib}, on=on, annotations=annotations, priority=priority))

    def wait(self, name: str, gib: int, *, priority: int = 1000, ask: bool = True, **spec: Any) -> None:
        """kube-scheduler has tried the Pod on n1, in vain."""
        self._set(pod_json(name, {MEM: gib}, refused=True, priority=priority, **spec))
        if ask:
            self.ask(name, gib)

    def ask(self, name: str, gib: int, names: Sequence[str] = ("n1",)) -> bool:
        """kube-scheduler asks about these nodes, as the extender answers it."""
        claim = claim_of(self.cluster, live_pod(name, {MEM: gib}))
        found = self.cluster.filter(claim, names)
        if not found.fit:
            self.evictor.note_refused(claim, names)
        return bool(found.fit)

    def set_status(self, name: str, **status: Any) -> None:
        """Another client writes it."""
        self._set({**self.pods[name], "status": {**self.pods[name].get("status", {}), **status}})

    def gone(self, name: str) -> None:
        del self.pods[name]
        self.cluster.drop_pod(f"ns/{name}")

    def _set(self, pod: Json) -> None:
        pod["metadata"]["resourceVersion"] = str(len(self.calls))
        self.pods[pod["metadata"]["name"]] = pod
        self.cluster.set_pod(as_pod(pod))

    async def rounds(self, seconds: float = 3.0, every: float = 0.25) -> None:
        until = self.loop.time() + seconds
        while self.loop.time() < until:
            await self.evictor.round()
            await asyncio.sleep(every)

    def nominated(self, name: str) -> str | None:
        found = self.pods[name].get("status", {}).get("nominatedNodeName")
        return None if found is None else str(found)

    # The API server

    async def get(self, path: str, **_: Any) -> Any:
        self._called("get", path)
        return as_pod(self._pod(path))

    async def patch(self, path: str, body: Json, **_: Any) -> None:
        self._called("patch", path)
        pod = self._pod(path.removesuffix("/status"))
        version = body["metadata"].get("resourceVersion")
        if version is not None and version != pod["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", path)
        if path.endswith("/status"):
            if "nominate" in self.lost and body["status"]["nominatedNodeName"] is None:
                raise self.no_answer
            self.set_status(pod["metadata"]["name"], **body["status"])
            if "nominate" in self.lost:
                raise self.no_answer
        else:
            self.retried.append(pod["metadata"]["name"])

    async def create(self, path: str, body: Json, *, params: Json | None = None, **_: Any) -> None:
        self._called("dry-run" if params else "evict", path)
        pod = self._pod(path.removesuffix("/eviction"))
        name = pod["metadata"]["name"]
        assert body["deleteOptions"]["preconditions"] == {"uid": f"uid-{name}"}
        if name in self.protected:
            raise ApiError(429, "TooManyRequests", "Cannot evict pod", BUDGET)
        if not params:
            self.evicted.append(name)
            until = datetime.fromtimestamp(EPOCH + self.loop.time() + 30, UTC).isoformat().replace("+00:00", "Z")
            self._set({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": until}})

    def _called(self, verb: str, path: str) -> None:
        self.calls.append((verb, path.split("/pods/")[1]))
        error = self.refuse(verb, path)
        if error is not None:
            raise error

    def _pod(self, path: str) -> Json:
        name = path.rpartition("/pods/")[2]
        if name not in self.pods:
            raise ApiError(404, "NotFound", path)
        return self.pods[name]

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None:
        self.events.append((about.name, reason, message))


def scene(*cards_gib: int, enabled: bool = True) -> Callable[[Callable[[Rig], Awaitable[None]]], Callable[[], None]]:
    def wrap(play_it: Callable[[Rig], Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            await play_it(Rig(*cards_gib, enabled=enabled))

        def test() -> None:
            play(run())

        return test

    return wrap
