"""Pods and Nodes of the API server as the dialects read them: the same `Pod` and `NodeView` as from a manifest."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from aliquot.dialects.nodes import NodeView
from aliquot.dialects.pods import Container, Pod
from aliquot.dialects.wire.objects import (
    ContainerObject,
    Metadata,
    NodeObject,
    PodObject,
    PodSpec,
    PodStatus,
    Resources,
)
from aliquot.model.claim import Role
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.refusal import Invalid


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
        spec={**_amounts_of_the_pod(spec), **_users_of_the_pod(spec)},
        problems=(),
    )


def as_given(pod: PodObject) -> PodObject:
    """A Pod that asked its node in vain for other resources, with those that its containers have instead; none where
    the kubelet does not say. Init containers that have ended cannot have asked."""
    status = pod.status or PodStatus()
    statuses = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    has = {one.name: one.resources.requests for one in statuses if one.resources is not None}

    def given(container: ContainerObject) -> ContainerObject:
        return structs.replace(container, resources=Resources(requests=has.get(container.name)))

    spec = structs.replace(
        pod.spec,
        containers=[given(container) for container in pod.spec.containers or ()],
        init_containers=[
            given(container) if container.restart_policy == "Always" else container
            for container in pod.spec.init_containers or ()
        ],
        resources=None,
    )
    return structs.replace(pod, spec=spec)


def _owner(metadata: Metadata, namespace: str) -> str | None:
    for reference in metadata.owner_references or ():
        if reference.controller:
            return f"{reference.kind}/{namespace}/{reference.name}"
    return None


def _containers(spec: PodSpec) -> list[Container]:
    found = []
    for key, siblings in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, container in enumerate(siblings or ()):
            role = Role.MAIN
            if key == "initContainers":
                role = Role.SIDECAR if container.restart_policy == "Always" else Role.INIT
            resources = container.resources or Resources()
            limits, requests = resources.limits or {}, resources.requests or {}
            path, user = f"spec.{key}[{index}]", container.run_as_user
            found.append(Container(path, container.name, index, role, limits, requests, user))
    return found


def _users_of_the_pod(spec: PodSpec) -> JsonObject:
    """What `pods.user_of` reads of a Pod's spec beside its containers."""
    if spec.security_context is None and spec.host_users is None:
        return {}
    return {"securityContext": {"runAsUser": spec.run_as_user}, "hostUsers": spec.host_users}


def _amounts_of_the_pod(spec: PodSpec) -> JsonObject:
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
        problems=() if node.metadata.name else (Invalid("metadata.name", None, "a node needs a name"),),
    )
