"""The state of Deployments, DaemonSets and their Pods. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """How many Pods of the newest template are available. `observed`: the controller has seen the latest spec."""

    ready: int
    wanted: int
    observed: bool

    @property
    def complete(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.observed and self.ready >= self.wanted


def rollout_status(obj: Json) -> RolloutStatus:
    """The status of a Deployment or a DaemonSet."""
    status = obj.get("status") or {}
    observed = (status.get("observedGeneration") or 0) >= (obj["metadata"].get("generation") or 0)
    if obj["kind"] == "DaemonSet":
        wanted = status.get("desiredNumberScheduled") or 0
        ready = min(status.get("updatedNumberScheduled") or 0, status.get("numberAvailable") or 0)
        return RolloutStatus(ready, wanted, observed)
    wanted = obj["spec"].get("replicas", 1)
    ready = min(status.get("updatedReplicas") or 0, status.get("availableReplicas") or 0)
    old_left = (status.get("replicas") or 0) > wanted
    return RolloutStatus(min(ready, wanted - 1) if old_left else ready, wanted, observed)


def containers(obj: Json) -> list[Json]:
    """The init containers and containers of its Pods."""
    inner = obj["spec"]["template"]["spec"]
    return [*(inner.get("initContainers") or ()), *inner["containers"]]


def container_statuses(pod: Json) -> list[Json]:
    """Of the init containers and containers of a Pod."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def not_ready(pod: Json) -> str | None:
    """Why the Pod is not ready, in one line; None if it is ready."""
    status = pod.get("status") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    if conditions.get("Ready", {}).get("status") == "True":
        return None
    for container in container_statuses(pod):
        state, last = container.get("state") or {}, (container.get("lastState") or {}).get("terminated") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting and waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            before = f" (its last exit code was {last.get('exitCode')})" if last else ""
            why = f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
            return f"container {container['name']}: {why}{before}"
        if ended and ended.get("exitCode"):
            return f"container {container['name']} exited with code {ended['exitCode']}: {ended.get('reason', '')}"
    if conditions.get("PodScheduled", {}).get("status") == "False":
        return f"not scheduled: {conditions['PodScheduled'].get('message', '')}"
    unready = [container for container in container_statuses(pod) if not container.get("ready")]
    running = [container["name"] for container in unready if (container.get("state") or {}).get("running")]
    if running:
        return f"container {', '.join(running)} is running but not ready"
    return f"{status.get('reason') or status.get('phase') or 'Pending'}: {status.get('message', '')}".rstrip(": ")
