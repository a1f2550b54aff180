"""PodGroups and their members, for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from aliquot.dialects.podgroups import COSCHEDULING, GROUP_NAME, KUBERNETES, POD_GROUP, T9K, GroupObject
from aliquot.services.scheduler.cluster import Cluster
from kit.clusters.watchobjects import as_pod, pod_json
from kit.values.manifests import Json

API_VERSIONS = {T9K: "v1beta1", COSCHEDULING: "v1alpha1", KUBERNETES: "v1alpha2"}


def group_json(name: str = "g", needed: int = 2, api: str = T9K, **spec: Any) -> Json:
    """A PodGroup of namespace ns."""
    number: Json = {"minMember": needed}
    if api == KUBERNETES:
        number = {"schedulingPolicy": {"gang": {"minCount": needed}}}
    return {
        "apiVersion": f"{api}/{API_VERSIONS[api]}",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "ns", "creationTimestamp": f"2026-01-01T00:00:00Z-{name}"},
        "spec": {**number, **spec},
    }


def as_group(group: Json) -> GroupObject:
    return msgspec.convert(group, GroupObject)


def set_group(cluster: Cluster, name: str = "g", needed: int = 2, api: str = T9K, **spec: Any) -> None:
    cluster.groups.set_group(api, as_group(group_json(name, needed, api, **spec)))


def member_json(
    name: str, group: str = "g", limits: Json | None = None, *, label: str = GROUP_NAME, **more: Any
) -> Json:
    """A Pod that names the group, in gpushare's dialect unless `limits` says otherwise."""
    pod = pod_json(name, limits, **more)
    pod["metadata"]["labels"] = {**(pod["metadata"].get("labels") or {}), label: group}
    pod["metadata"].setdefault("creationTimestamp", f"2026-01-01T00:00:00Z-{name}")
    return pod


def add_members(cluster: Cluster, *names: str, group: str = "g", **more: Any) -> list[Json]:
    pods = [member_json(name, group, **more) for name in names]
    for pod in pods:
        cluster.set_pod(as_pod(pod))
    return pods


__all__ = ["POD_GROUP", "add_members", "as_group", "group_json", "member_json", "set_group"]
