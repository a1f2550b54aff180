"""How Deployments, DaemonSets and their Pods stand, in words of the API server. Pure.

standing    whether a Deployment or a DaemonSet is as it was asked to be
containers  what its Pods have
not_ready   why a Pod is not ready, in a line
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Standing:
    """How many of how many are there, of the newest kind and available. `seen`: its controller knows what is wanted."""

    there: int
    wanted: int
    seen: bool

    @property
    def complete(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.seen and self.there >= self.wanted


def standing(obj: Json) -> Standing:
    """Of a Deployment or a DaemonSet."""
    status = obj.get("status") or {}
    seen = (status.get("observedGeneration") or 0) >= (obj["metadata"].get("generation") or 0)
    if obj["kind"] == "DaemonSet":
        wanted = status.get("desiredNumberScheduled") or 0
        there = min(status.get("updatedNumberScheduled") or 0, status.get("numberAvailable") or 0)
        return Standing(there, wanted, seen)
    wanted = obj["spec"].get("replicas", 1)
    there = min(status.get("updatedReplicas") or 0, status.get("availableReplicas") or 0)
    return Standing(there if (status.get("replicas") or 0) <= wanted else min(there, wanted - 1), wanted, seen)


def containers(obj: Json) -> list[Json]:
    """All that a Pod of a Deployment or a DaemonSet has."""
    inner = obj["spec"]["template"]["spec"]
    return [*(inner.get("initContainers") or ()), *inner["containers"]]


def not_ready(pod: Json) -> str | None:
    """Why the Pod is not ready, in a line; None when it is."""
    status = pod.get("status") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    if conditions.get("Ready", {}).get("status") == "True":
        return None
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for each in statuses:
        state, last = each.get("state") or {}, (each.get("lastState") or {}).get("terminated") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting and waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            ran = f" (it ended with code {last.get('exitCode')} before)" if last else ""
            return f"container {each['name']}: {waiting['reason']}: {waiting.get('message', '')}".rstrip(": ") + ran
        if ended and ended.get("exitCode"):
            return f"container {each['name']} ended with code {ended['exitCode']}: {ended.get('reason', '')}"
    if conditions.get("PodScheduled", {}).get("status") == "False":
        return f"has no node: {conditions['PodScheduled'].get('message', '')}"
    running = [
        status["name"] for status in statuses if (status.get("state") or {}).get("running") and not status.get("ready")
    ]
    if running:
        return f"container {', '.join(running)} runs, and does not say that it is ready"
    return f"{status.get('reason') or status.get('phase') or 'Pending'}: {status.get('message', '')}".rstrip(": ")
