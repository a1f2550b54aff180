"""The state of Deployments, DaemonSets and their Pods. Pure.

`read_workload` and `read_pod` are the edge: what kubectl or the API server sent as JSON becomes structs there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from aliquot.dialects.kube.shapes import mapping
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import Condition, HeldByContainer, Metadata, PodObject, PodStatus
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.refusal import Invalid


class Waiting(msgspec.Struct, gc=False):
    """Why a container has not started."""

    reason: str | None = None
    message: str | None = None


class Terminated(msgspec.Struct, rename="camel", gc=False):
    """How a container ended."""

    exit_code: int | None = None
    reason: str | None = None


class ContainerState(msgspec.Struct, gc=False):
    """One of the three."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None
    running: dict[str, object] | None = None


class ContainerStatus(HeldByContainer, rename="camel", gc=False):
    """What the kubelet reports of a container."""

    ready: bool | None = None
    restart_count: int | None = None
    state: ContainerState | None = None
    last_state: ContainerState | None = None

    @property
    def waiting(self) -> Waiting | None:
        """Why it waits; None where it does not."""
        return None if self.state is None else self.state.waiting


class KubeletPodStatus(PodStatus, rename="camel", gc=False):
    """A Pod's status with what the kubelet reports of its containers."""

    reason: str | None = None
    message: str | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None


class StartedPod(PodObject, gc=False):
    """A Pod with the states of its containers: for those who look at a few Pods, and not at ten thousand."""

    status: KubeletPodStatus | None = None

    @property
    def container_statuses(self) -> list[ContainerStatus]:
        """The statuses of its init containers and containers."""
        if self.status is None:
            return []
        return [*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ())]


class WorkloadMetadata(Metadata, gc=False):
    """Metadata with the number of the latest spec."""

    generation: int | None = None


class TemplateContainer(msgspec.Struct, gc=False):
    """What is read of a container in a template."""

    image: str = ""


class TemplateSpec(msgspec.Struct, gc=False):
    """What is read of it."""

    containers: list[TemplateContainer] | None = None


class Template(msgspec.Struct, gc=False):
    """The template of a workload's Pods."""

    spec: TemplateSpec = msgspec.field(default_factory=TemplateSpec)


class WorkloadSpec(msgspec.Struct, gc=False):
    """What is read of it."""

    replicas: int | None = None
    template: Template = msgspec.field(default_factory=Template)


class WorkloadStatus(msgspec.Struct, rename="camel", gc=False):
    """The status of a Deployment or of a DaemonSet."""

    observed_generation: int | None = None
    replicas: int | None = None
    updated_replicas: int | None = None
    available_replicas: int | None = None
    desired_number_scheduled: int | None = None
    updated_number_scheduled: int | None = None
    number_available: int | None = None
    conditions: list[Condition] | None = None


class WorkloadObject(msgspec.Struct, gc=False):
    """A Deployment or a DaemonSet."""

    metadata: WorkloadMetadata
    kind: str = ""
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)

    def label(self, name: str) -> str | None:
        """Its value; None without it."""
        return (self.metadata.labels or {}).get(name)


def read_workload(value: object) -> WorkloadObject | Invalid:
    """Never raises."""
    return read_object(value, WorkloadObject, "workload")


def read_pod(value: object) -> StartedPod:
    """Never raises: of a Pod that cannot be read there is who it is, so that it is not taken for gone."""
    read = read_object(value, StartedPod, "pod")
    if isinstance(read, StartedPod):
        return read
    metadata = mapping(mapping(value).get("metadata"))
    name, namespace, uid = (
        text if isinstance(text := metadata.get(field), str) else "" for field in ("name", "namespace", "uid")
    )
    return StartedPod(Metadata(name, namespace, uid))


def read_pods(values: Iterable[object]) -> list[StartedPod]:
    """Read all of these Pods."""
    return [read_pod(value) for value in values]


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


def rollout_status(obj: WorkloadObject) -> RolloutStatus:
    """The status of a Deployment or a DaemonSet."""
    status = obj.status
    observed = (status.observed_generation or 0) >= (obj.metadata.generation or 0)
    if obj.kind == "DaemonSet":
        wanted = status.desired_number_scheduled or 0
        ready = min(status.updated_number_scheduled or 0, status.number_available or 0)
        return RolloutStatus(ready, wanted, observed)
    wanted = 1 if obj.spec.replicas is None else obj.spec.replicas
    ready = min(status.updated_replicas or 0, status.available_replicas or 0)
    old_left = (status.replicas or 0) > wanted
    return RolloutStatus(min(ready, wanted - 1) if old_left else ready, wanted, observed)


def containers(obj: JsonObject) -> list[JsonObject]:
    """The init containers and containers of a manifest's Pods."""
    inner = obj["spec"]["template"]["spec"]
    return [*(inner.get("initContainers") or ()), *inner["containers"]]


def not_ready(pod: StartedPod) -> str | None:
    """Why the Pod is not ready, in one line; None if it is ready."""
    status = pod.status or KubeletPodStatus()
    conditions = {condition.type: condition for condition in status.conditions or ()}
    if (ready := conditions.get("Ready")) is not None and ready.status == "True":
        return None
    for sentence in map(_trouble, pod.container_statuses):
        if sentence is not None:
            return sentence
    if (scheduled := conditions.get("PodScheduled")) is not None and scheduled.status == "False":
        return f"not scheduled: {scheduled.message or ''}"
    running = list(_running(pod))
    if running:
        return f"container {', '.join(running)} is running but not ready"
    return f"{status.reason or status.phase or 'Pending'}: {status.message or ''}".rstrip(": ")


def _trouble(container: ContainerStatus) -> str | None:
    """Why a container does not run; None where it runs, or is about to."""
    waiting, state = container.waiting, container.state or ContainerState()
    if waiting is not None and waiting.reason not in (None, "PodInitializing", "ContainerCreating"):
        last = container.last_state.terminated if container.last_state else None
        before = f" (its last exit code was {last.exit_code})" if last else ""
        why = f"{waiting.reason}: {waiting.message or ''}".rstrip(": ")
        return f"container {container.name}: {why}{before}"
    if state.terminated is not None and state.terminated.exit_code:
        code, reason = state.terminated.exit_code, state.terminated.reason or ""
        return f"container {container.name} exited with code {code}: {reason}"
    return None


def _running(pod: StartedPod) -> Iterator[str]:
    """The names of the containers that run and are not ready."""
    for container in pod.container_statuses:
        if not container.ready and container.state is not None and container.state.running:
            yield container.name
