"""Renders Pods and workloads of one machine as Kubernetes objects with a status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aliquot.model.containers.localpod import ContainerState, LocalPod, Phase, Workload
from aliquot.model.decoding.openjson import JsonView

Stamp = Callable[[float], str]  # formats seconds since 1970 as the API server does

_OVER = {
    Phase.SUCCEEDED.value: {"type": "Complete", "status": "True"},
    Phase.FAILED.value: {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"},
}  # the condition of a Job that is over, by its phase


def render_pod(pod: LocalPod, manifest: JsonView, reason: str | None, stamp: Stamp) -> JsonView:
    """`manifest`: with the uid; `reason`: why the Pod waits or failed."""
    state = pod.state
    metadata = {**manifest["metadata"], "creationTimestamp": stamp(pod.created)}
    spec = {**manifest["spec"], **({} if state.node is None else {"nodeName": state.node})}
    status = {
        "phase": state.phase.value,
        **({"reason": "Waiting" if state.phase is Phase.PENDING else "Error", "message": reason} if reason else {}),
        **({"startTime": stamp(state.started)} if state.started else {}),
        "initContainerStatuses": [_status(container, stamp) for container in state.containers if container.init],
        "containerStatuses": [_status(container, stamp) for container in state.containers if not container.init],
    }
    return {**manifest, "metadata": metadata, "spec": spec, "status": status}


def render_workload(
    workload: Workload, pods: Sequence[LocalPod], ready: int, stamp: Stamp, *, phase: str | None = None
) -> JsonView:
    """`ready`: the number of running Pods; of a Job, of succeeded Pods. `phase` is a Job's."""
    status: JsonView = {"replicas": len(pods), "readyReplicas": ready}
    if workload.kind == "Job":
        status = {
            "active": sum(not pod.state.phase.over for pod in pods),
            "succeeded": ready,
            "failed": sum(pod.state.phase is Phase.FAILED for pod in pods),
            **({"conditions": [_OVER[phase]]} if phase in _OVER else {}),
        }
    return _with_status(workload, status, stamp)


def render_cron_job(workload: Workload, active: Sequence[str], last_run: float | None, stamp: Stamp) -> JsonView:
    """`active`: the names of its Jobs that are not over."""
    jobs = [{"kind": "Job", "namespace": workload.namespace, "name": name} for name in active]
    when = {} if last_run is None else {"lastScheduleTime": stamp(last_run)}
    return _with_status(workload, {"active": jobs, **when}, stamp)


def _with_status(workload: Workload, status: JsonView, stamp: Stamp) -> JsonView:
    metadata = {**workload.manifest["metadata"], "creationTimestamp": stamp(workload.created)}
    return {**workload.manifest, "metadata": metadata, "status": status}


def without_values(shown: Any) -> Any:
    """The object for other users: values of env may be secrets."""
    if isinstance(shown, list):
        return [without_values(item) for item in shown]
    if not isinstance(shown, dict):
        return shown
    return {
        key: [_without_value(variable) for variable in value]
        if key == "env" and isinstance(value, list)
        else without_values(value)
        for key, value in shown.items()
    }


def _without_value(variable: Any) -> Any:
    return {**variable, "value": "(hidden)"} if isinstance(variable, dict) and "value" in variable else variable


def _status(container: ContainerState, stamp: Stamp) -> JsonView:

    def when(seconds: float | None) -> str | None:
        return None if seconds is None else stamp(seconds)

    state: JsonView
    if container.state == "running":
        state = {"running": {"startedAt": when(container.started)}}
    elif container.state == "ended":
        state = {
            "terminated": {
                "exitCode": container.exit_code,
                "startedAt": when(container.started),
                "finishedAt": when(container.ended),
                "reason": "Completed" if container.exit_code == 0 else "Error",
            }
        }
    else:
        why = "CrashLoopBackOff" if container.restarts else "ContainerCreating"
        state = {"waiting": {"reason": why, **({"message": container.reason} if container.reason else {})}}
    return {
        "name": container.name,
        "image": container.image,
        "ready": container.state == "running" or (container.init and container.exit_code == 0),
        "restartCount": container.restarts,
        "state": state,
    }
