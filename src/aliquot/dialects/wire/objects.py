"""Kubernetes objects as the API server sends them, with the fields that we read and no others.

What comes from the API server is well-formed: decoded straight into these structs, ten thousand Pods are read in the
time that a thousand would take as JSON. Objects that came as JSON (kubectl, a file) are converted once, by
`objectreading`. Only manifests that people write are read as JSON (pods.read_pod), so that every mistake in them is
named. Both become the same `Pod` and `NodeView`, so every rule is written once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from aliquot.dialects.native import AGENT, AWAY
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.node import Closed

Amounts = dict[str, str | int | float]


class Owner(msgspec.Struct, rename="camel", gc=False):
    """Whose it is."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None
    api_version: str = ""
    uid: str = ""


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


class UsedClaim(msgspec.Struct, gc=False):
    """A claim of the Pod that a container uses, or one request of it."""

    name: str = ""
    request: str = ""


class Resources(msgspec.Struct, gc=False):
    """What a container, or a whole Pod, asks for."""

    limits: Amounts | None = None
    requests: Amounts | None = None
    claims: list[UsedClaim] | None = None


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


class SecurityContext(msgspec.Struct, rename="camel", gc=False):
    """Who the processes of a container, or of a whole Pod, are."""

    run_as_user: int | None = None


class ContainerObject(msgspec.Struct, rename="camel", gc=False):
    """One container of a Pod."""

    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None
    env: list[EnvObject] | None = None
    security_context: SecurityContext | None = None

    @property
    def run_as_user(self) -> int | None:
        """The user of its processes, if it says one."""
        return None if self.security_context is None else self.security_context.run_as_user


class PodClaim(msgspec.Struct, rename="camel", gc=False):
    """A ResourceClaim that the Pod uses, under a name of its own; in the status, the name of one that was made."""

    name: str = ""
    resource_claim_name: str | None = None


class SchedulingGroup(msgspec.Struct, rename="camel", gc=False):
    """The PodGroup of Kubernetes itself that a Pod belongs to."""

    pod_group_name: str | None = None


class PodSpec(msgspec.Struct, rename="camel", gc=False):
    """What is read of it."""

    node_name: str | None = None
    scheduler_name: str | None = None
    service_account_name: str | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    containers: list[ContainerObject] | None = None
    init_containers: list[ContainerObject] | None = None
    overhead: Amounts | None = None
    resources: Resources | None = None
    scheduling_gates: list[Any] | None = None
    tolerations: list[Any] | None = None  # of first lists only where there is no node yet
    resource_claims: list[PodClaim] | None = None
    scheduling_group: SchedulingGroup | None = None
    security_context: SecurityContext | None = None
    host_users: bool | None = None

    @property
    def run_as_user(self) -> int | None:
        """The user of processes whose containers say none, if it says one."""
        return None if self.security_context is None else self.security_context.run_as_user


class Condition(msgspec.Struct, rename="camel", gc=False):
    """One condition of a Pod or a Node."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


_RESIZE, _INFEASIBLE = "PodResizePending", "Infeasible"


class HeldByContainer(msgspec.Struct, gc=False):
    """What a container has, whatever was asked for since."""

    name: str = ""
    resources: Resources | None = None


class PodStatus(msgspec.Struct, rename="camel", gc=False):
    """What is read of it."""

    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    start_time: str | None = None
    nominated_node_name: str | None = None
    conditions: list[Condition] | None = None  # of first lists only those with a reason
    container_statuses: Sequence[HeldByContainer] | None = None  # of first lists only where a resize is pending
    init_container_statuses: Sequence[HeldByContainer] | None = None
    resource_claim_statuses: list[PodClaim] | None = None
    extended_resource_claim_status: PodClaim | None = None  # of a DeviceClass with an extended resource's name


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
    def resize_refused(self) -> bool:
        """Whether its containers' CPU or memory was changed to what its node can never give, says the kubelet: it has
        what it had before, and not what its spec says."""
        return self.status is not None and any(
            condition.type == _RESIZE and condition.reason == _INFEASIBLE for condition in self.status.conditions or ()
        )

    @property
    def taken_up(self) -> bool:
        """Whether the kubelet has decided about it: it writes this first, after its devices were given."""
        return self.status is not None and self.status.start_time is not None

    @property
    def daemon(self) -> bool:
        """Whether a DaemonSet owns it."""
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

    @property
    def last_refusal(self) -> str:
        """Why kube-scheduler could not place the Pod when it last tried, without its remarks on preemption; empty: it
        did not try.

        It knows of taints, CPU and extended resources that a placement of cards does not look at.
        """
        for condition in (self.status.conditions if self.status else None) or ():
            if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
                message = condition.message or ""
                for aside in (" no new claims to deallocate", " preemption:"):
                    message = message.partition(aside)[0]
                return " ".join(message.split()).rstrip(".")
        return ""


def asks_for(pod: PodObject, resources: Collection[str]) -> bool:
    """Whether a container of it has a limit of one of the resources."""
    containers = (*(pod.spec.containers or ()), *(pod.spec.init_containers or ()))
    limits = ((container.resources and container.resources.limits) or {} for container in containers)
    return any(resource in amounts for amounts in limits for resource in resources)


class NodeSpec(msgspec.Struct, gc=False):
    """What is read of it."""

    taints: list[JsonObject] | None = None
    unschedulable: bool | None = None


class NodeInfo(msgspec.Struct, rename="camel", gc=False):
    """What the kubelet reports of itself."""

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
    conditions: list[Condition] | None = None  # of first lists only their types and statuses
    node_info: NodeInfo | None = None  # not of first lists
    addresses: list[NodeAddress] | None = None


class NodeObject(msgspec.Struct, gc=False):
    """A Node."""

    metadata: Metadata
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def address(self) -> str | None:
        """Where it is reached within the cluster."""
        for address in self.status.addresses or ():
            if address.type == "InternalIP":
                return address.address
        return None

    @property
    def ready(self) -> str:
        """The status of its Ready condition; "True" where it has none."""
        for condition in self.status.conditions or ():
            if condition.type == "Ready":
                return condition.status
        return "True"

    @property
    def closed(self) -> tuple[Closed, ...]:
        """Why Kubernetes sends no Pods there; empty: it does."""
        cordoned, unready, away = self.spec.unschedulable, self.ready != "True", self.agent_away
        if not (cordoned or unready or away):  # nearly all
            return ()
        reasons = {Closed.CORDONED: cordoned, Closed.NOT_READY: unready, Closed.AGENT_AWAY: away}
        return tuple(reason for reason, holds in reasons.items() if holds)

    @property
    def agent_away(self) -> bool:
        """Whether no agent answers the kubelet there for the moment."""
        return (self.metadata.annotations or {}).get(AGENT) == AWAY


class ConfigMapObject(msgspec.Struct, gc=False):
    """A ConfigMap."""

    metadata: Metadata
    data: dict[str, str] | None = None
