"""Kubernetes objects as the API server sends them, with the fields that are read and no others.

The rest of this room reads any JSON, because people write it. What comes from the API server is well-formed already:
decoded straight into these, ten thousand Pods are read in the time that a thousand would take as JSON. What they turn
into is the same (`Pod` and `NodeView`), so every rule is written once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from aliquot.dialects.native import AGENT, AWAY
from aliquot.dialects.nodes import NodeView
from aliquot.dialects.pods import Container, Pod
from aliquot.model.claim import Role

Amounts = dict[str, str | int | float]


class Owner(msgspec.Struct, gc=False):
    """Whose it is."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class Metadata(msgspec.Struct, rename="camel", gc=False):
    """What every object has."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generate_name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Owner] | None = None
    deletion_timestamp: str | None = None
    creation_timestamp: str | None = None


class Resources(msgspec.Struct, gc=False):
    """What a container, or a whole Pod, asks for."""

    limits: Amounts | None = None
    requests: Amounts | None = None


class FieldRef(msgspec.Struct, rename="camel", gc=False):
    """A field of the Pod itself."""

    field_path: str = ""


class EnvSource(msgspec.Struct, rename="camel", gc=False):
    """Where a variable's value comes from."""

    field_ref: FieldRef | None = None


class EnvObject(msgspec.Struct, rename="camel", gc=False):
    """One variable of a container."""

    name: str = ""
    value_from: EnvSource | None = None


class ContainerObject(msgspec.Struct, rename="camel", gc=False):
    """One container of a Pod."""

    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None
    env: list[EnvObject] | None = None


class PodSpec(msgspec.Struct, rename="camel", gc=False):
    """What is read of it."""

    node_name: str | None = None
    scheduler_name: str | None = None
    priority: int | None = None
    containers: list[ContainerObject] | None = None
    init_containers: list[ContainerObject] | None = None
    overhead: Amounts | None = None
    resources: Resources | None = None
    scheduling_gates: list[Any] | None = None


class Condition(msgspec.Struct, rename="camel", gc=False):
    """One condition of a Pod or a Node."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class PodStatus(msgspec.Struct, rename="camel", gc=False):
    """What is read of it."""

    phase: str | None = None
    start_time: str | None = None
    conditions: list[Condition] | None = None


class PodObject(msgspec.Struct, gc=False):
    """A Pod."""

    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus | None = None

    @property
    def finished(self) -> bool:
        """Whether it has run to its end and holds nothing any more."""
        return self.status is not None and self.status.phase in ("Succeeded", "Failed")

    @property
    def runs(self) -> bool:
        """Whether each of its containers was started, says the kubelet."""
        return self.status is not None and self.status.phase == "Running"

    @property
    def taken_up(self) -> bool:
        """Whether the kubelet has decided about it: it writes this first, after its devices were given."""
        return self.status is not None and self.status.start_time is not None

    @property
    def daemon(self) -> bool:
        """Whether a DaemonSet owns it: such Pods do not stand in the way of a whole-node Pod."""
        return any(
            reference.kind == "DaemonSet" and reference.controller for reference in self.metadata.owner_references or ()
        )

    @property
    def refused(self) -> bool:
        """Whether kube-scheduler has tried, and found no node."""
        return any(
            condition.type == "PodScheduled" and condition.status == "False" and condition.reason == "Unschedulable"
            for condition in (self.status.conditions if self.status else None) or ()
        )


class NodeSpec(msgspec.Struct, gc=False):
    """What is read of it."""

    taints: list[dict[str, Any]] | None = None
    unschedulable: bool | None = None


class NodeInfo(msgspec.Struct, rename="camel", gc=False):
    """What the kubelet tells of itself."""

    container_runtime_version: str = ""
    kubelet_version: str = ""


class NodeAddress(msgspec.Struct, gc=False):
    """Where a Node is reached."""

    type: str = ""
    address: str = ""


class NodeStatus(msgspec.Struct, rename="camel", gc=False):
    """What is read of it."""

    capacity: Amounts | None = None
    allocatable: Amounts | None = None
    conditions: list[Condition] | None = None
    node_info: NodeInfo | None = None
    addresses: list[NodeAddress] | None = None


class NodeObject(msgspec.Struct, gc=False):
    """A Node."""

    metadata: Metadata
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def address(self) -> str | None:
        """Where it is reached within the cluster."""
        return next((each.address for each in self.status.addresses or () if each.type == "InternalIP"), None)

    @property
    def closed(self) -> tuple[str, ...]:
        """Why Kubernetes sends no Pods there, in a word each; empty: it does."""
        ready = [condition.status for condition in self.status.conditions or () if condition.type == "Ready"]
        words = ("cordoned" if self.spec.unschedulable else "", "not ready" if ready not in ([], ["True"]) else "")
        return tuple(word for word in (*words, "agent away" if self.agent_away else "") if word)

    @property
    def agent_away(self) -> bool:
        """Whether no agent answers the kubelet there for the moment."""
        return (self.metadata.annotations or {}).get(AGENT) == AWAY


class ConfigMapObject(msgspec.Struct, gc=False):
    """A ConfigMap."""

    metadata: Metadata
    data: dict[str, str] | None = None


class Names(NamedTuple):
    """Who a Pod is."""

    uid: str
    namespace: str
    name: str
    owner: str | None


def pod_names(pod: PodObject) -> Names:
    """Who the Pod is; the same rules as for any JSON (pods.read_pod)."""
    metadata = pod.metadata
    namespace = metadata.namespace or "default"
    name = metadata.name or metadata.generate_name
    return Names(metadata.uid or f"{namespace}/{name}", namespace, name, _owner(metadata, namespace))


def pod_view(pod: PodObject) -> Pod:
    """The Pod as the dialects read it. CPU and memory are left to `with_requests`, as for any other."""
    metadata, spec = pod.metadata, pod.spec
    names = pod_names(pod)
    return Pod(
        uid=names.uid,
        namespace=names.namespace,
        name=names.name,
        owner=names.owner,
        labels=metadata.labels or {},
        annotations=metadata.annotations or {},
        misplaced={},
        containers=tuple(_containers(spec)),
        spec=_amounts_of_the_pod(spec),
        problems=(),
    )


def _owner(metadata: Metadata, namespace: str) -> str | None:
    for reference in metadata.owner_references or ():
        if reference.controller:
            return f"{reference.kind}/{namespace}/{reference.name}"
    return None


def _containers(spec: PodSpec) -> list[Container]:
    found = []
    for key, siblings in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, each in enumerate(siblings or ()):
            role = Role.MAIN
            if key == "initContainers":
                role = Role.SIDECAR if each.restart_policy == "Always" else Role.INIT
            resources = each.resources or Resources()
            found.append(
                Container(
                    f"spec.{key}[{index}]", each.name, index, role, resources.limits or {}, resources.requests or {}
                )
            )
    return found


def _amounts_of_the_pod(spec: PodSpec) -> dict[str, Any]:
    """What `with_requests` reads of a Pod's spec beside its containers."""
    if spec.resources is None and spec.overhead is None:
        return {}
    own = spec.resources or Resources()
    return {"resources": {"limits": own.limits, "requests": own.requests}, "overhead": spec.overhead}


def node_view(node: NodeObject) -> NodeView:
    """The Node as the dialects read it."""
    return NodeView(
        name=node.metadata.name,
        labels=node.metadata.labels or {},
        annotations=node.metadata.annotations or {},
        capacity=node.status.capacity or {},
        allocatable=node.status.allocatable or {},
        taints=tuple(node.spec.taints or ()),
        problems=(),
    )
