"""The rollout of our programs: wait until they are ready, or report which Pods are not ready and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.dialects.wire import workloads
from aliquot.dialects.wire.install.deployment import DAEMON_SET, DEPLOYMENT, SELECTOR, Identity
from aliquot.model.decoding.openjson import JsonObject
from aliquot.services.install.clusterobjects import ClusterObjects, InstallError, Report

PROGRAMS = {DAEMON_SET: ("DaemonSet", "agents"), DEPLOYMENT: ("Deployment", "schedulers")}
_INTERVAL = 1.0  # seconds between two looks


class Rollout:
    """The programs in one namespace. `now` returns seconds."""

    def __init__(self, objects: ClusterObjects, namespace: str, *, report: Report, now: Callable[[], float]) -> None:
        self.namespace = namespace
        self._objects, self._report, self._now = objects, report, now

    async def wait(self, names: Sequence[str], until: float) -> None:
        """Wait until those programs are ready. Raises InstallError, which says what is not ready and why."""
        while True:
            unready = []
            for name in names:
                title, status = PROGRAMS[name][1], await self.status(name)
                text = "status unknown" if status is None else f"{status.ready} of {status.wanted} ready"
                if status is None or not status.complete:
                    unready.append(title)
                    text += await self._first_problem(name)
                self._report("wait", f"{title}: {text}")
            if not unready:
                return
            if self._now() >= until:
                raise InstallError(f"{' and '.join(unready)} did not become ready in time:\n{await self.diagnose()}")
            await asyncio.sleep(_INTERVAL)

    async def status(self, name: str) -> workloads.RolloutStatus | None:
        """None: unknown. An API server that is unreachable for a moment is no reason to give up."""
        try:
            found = await self._objects.get(Identity("apps/v1", PROGRAMS[name][0], self.namespace, name))
        except Unreachable:
            return None
        read = None if found is None else workloads.read_workload(found)
        return workloads.rollout_status(read) if isinstance(read, workloads.WorkloadObject) else None

    async def _is_complete(self, name: str) -> bool:
        status = await self.status(name)
        return status is not None and status.complete

    async def diagnose(self) -> str:
        """Each Pod that is not ready: its state, its last event, the end of its log. Where there is none: why."""
        names = [pod.metadata.name for pod, _ in await self._unready_pods()]
        missing = [owner for owner in PROGRAMS if not any(name.startswith(owner) for name in names)]
        refusals = {owner: await self._refusal(owner) for owner in missing if not await self._is_complete(owner)}
        lines = [f"  {owner} gets no Pods: {why}" for owner, why in refusals.items() if why]
        for pod, why in await self._unready_pods():
            name = pod.metadata.name
            lines.append(f"  Pod {name}: {why}")
            lines += [f"    event: {event}" for event in await self._events(name)]
            lines += [f"    log of {line}" for line in await self._logs(pod)]
        return "\n".join(lines) or f"  it has no Pods; see: kubectl get events -n {self.namespace}"

    async def _first_problem(self, owner: str) -> str:
        for pod, why in await self._unready_pods():
            if pod.metadata.name.startswith(owner):
                return f" ({pod.metadata.name}: {why})"
        refusal = await self._refusal(owner)
        return f" ({refusal})" if refusal else ""

    async def _refusal(self, owner: str) -> str:
        """What the API server last said to a controller whose Pods it does not let in (by Pod Security, a quota, a
        policy); empty: nothing."""
        found = await self._items("events", fieldSelector="reason=FailedCreate")
        theirs = [event for event in found if str((event.get("involvedObject") or {}).get("name")).startswith(owner)]
        return "".join(str(event.get("message")) for event in _latest(theirs))

    async def _unready_pods(self) -> list[tuple[workloads.StartedPod, str]]:
        pods = workloads.read_pods(await self._items("pods", labelSelector=SELECTOR))
        return [(pod, why) for pod in pods if (why := workloads.not_ready(pod)) is not None]

    async def _items(self, kind: str, **params: str) -> list[JsonObject]:
        """A diagnosis must not fail: no items if they cannot be read."""
        try:
            return await self._objects.items(f"/api/v1/namespaces/{self.namespace}/{kind}", **params)
        except (ApiError, Unreachable):
            return []

    async def _events(self, pod: str) -> list[str]:
        found = await self._items("events", fieldSelector=f"involvedObject.name={pod}")
        warnings = [event for event in found if event.get("type") == "Warning"] or found
        return [f"{event.get('reason')}: {event.get('message')}" for event in _latest(warnings)]

    async def _logs(self, pod: workloads.StartedPod) -> list[str]:
        """Of the containers that ran and are not ready; of the previous run if they wait for a restart."""
        found = []
        for status in pod.container_statuses:
            restarting = status.waiting is not None
            if status.ready or (restarting and not status.restart_count):
                continue
            params = {"container": status.name, "tailLines": "5", "previous": "true" if restarting else "false"}
            path = f"/api/v1/namespaces/{self.namespace}/pods/{pod.metadata.name}/log"
            try:
                text: bytes = await self._objects.kube.get(path, params=params, into=bytes)
            except (ApiError, Unreachable):
                continue
            found += [f"{status.name}: {line}" for line in text.decode(errors="replace").splitlines()]
        return found


def _latest(events: list[JsonObject]) -> list[JsonObject]:
    """The last one, if there is any."""
    return sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime")))[-1:]
