"""PodGroups: Pods that want to start together, as T9k, the coscheduling plugin and Kubernetes itself write them.

    API group                    how a Pod names its group                            how many are needed
    scheduling.k8s.io            spec.schedulingGroup.podGroupName                    schedulingPolicy.gang.minCount
    scheduler.tensorstack.dev    label scheduler.tensorstack.dev/group-name           minMember, roles
    scheduling.x-k8s.io          label scheduling.x-k8s.io/pod-group                  minMember
    scheduling.sigs.k8s.io       label pod-group.scheduling.sigs.k8s.io (older)       minMember

A Pod of several groups belongs to the first of these that exists. A group whose numbers cannot be read is an Invalid:
its members wait, with that sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aliquot.dialects.wire.objects import Metadata, PodObject
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.group import Group, Membership
from aliquot.model.refusal import Invalid

KIND = "PodGroup"
RESOURCE = "podgroups"
KUBERNETES, T9K = "scheduling.k8s.io", "scheduler.tensorstack.dev"
COSCHEDULING, OLDER = "scheduling.x-k8s.io", "scheduling.sigs.k8s.io"
VERSIONS: Mapping[str, tuple[str, ...]] = {  # that we can read, the newest first
    KUBERNETES: ("v1beta1", "v1alpha3", "v1alpha2"),
    T9K: ("v1beta1",),
    COSCHEDULING: ("v1alpha1",),
    OLDER: ("v1alpha1",),
}

GROUP_NAME, ROLE = "scheduler.tensorstack.dev/group-name", "scheduler.tensorstack.dev/role"
POD_GROUP, OLDER_POD_GROUP = "scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io"
_LABELS = {GROUP_NAME: (T9K,), POD_GROUP: (COSCHEDULING, OLDER), OLDER_POD_GROUP: (OLDER, COSCHEDULING)}
GROUP_LABELS = (*_LABELS, ROLE)
_MOST = 2**31  # members of a group: more than a field of Kubernetes can have


class GroupObject(msgspec.Struct, rename="camel"):
    """A PodGroup of any of the APIs. Its spec is read by `parse_group`: one wrong number must not hide all others."""

    metadata: Metadata
    api_version: str = ""  # empty in a list
    spec: Any = None


def membership(pod: PodObject) -> Membership | None:
    """The group that the Pod names; None: it belongs to none."""
    metadata, native, labels = pod.metadata, pod.spec.scheduling_group, pod.metadata.labels
    namespace = metadata.namespace or "default"
    if native is not None and native.pod_group_name:
        return Membership(
            (_key(KUBERNETES, namespace, native.pod_group_name),),
            "spec.schedulingGroup.podGroupName",
            native.pod_group_name,
        )
    if not labels or _LABELS.keys().isdisjoint(labels):
        return None
    for label, apis in _LABELS.items():
        name = labels.get(label)
        if name:
            keys = tuple(_key(api, namespace, name) for api in apis)
            return Membership(keys, f'metadata.labels["{label}"]', name, labels.get(ROLE, "") if apis == (T9K,) else "")
    return None


def group_key(api: str, group: GroupObject) -> str:
    """Who the group is, among those of all APIs."""
    return _key(api, group.metadata.namespace or "default", group.metadata.name)


def _key(api: str, namespace: str, name: str) -> str:
    return f"{api}/{namespace}/{name}"


def api_of(manifest: JsonView) -> str | None:
    """The API group of a manifest, if it is one of the PodGroups above."""
    api = str(manifest.get("apiVersion")).partition("/")[0]
    return api if manifest.get("kind") == KIND and api in VERSIONS else None


def parse_group(api: str, item: GroupObject) -> Group | Invalid:
    """What the group asks for, or the first rule that it breaks."""
    spec: JsonView = item.spec if isinstance(item.spec, dict) else {}
    if item.spec is not None and not isinstance(item.spec, dict):
        return Invalid("spec", item.spec, "a mapping")
    key, created = group_key(api, item), item.metadata.creation_timestamp or ""
    if api == KUBERNETES:
        needed = _kubernetes_count(spec)
        return needed if isinstance(needed, Invalid) else Group(key, needed, created=created)
    needed = _number(spec, "minMember", "spec", 0)
    priority = _number(spec, "priority", "spec", 0, least=-(2**31)) if api == T9K else 0
    roles = _roles(spec.get("roles")) if api == T9K else ()
    patience = _number(spec, "scheduleTimeoutSeconds", "spec", 0) if api != T9K else 0
    for read in (needed, priority, roles, patience):
        if isinstance(read, Invalid):
            return read
    assert isinstance(needed, int)
    assert isinstance(priority, int)
    assert isinstance(roles, tuple)
    assert isinstance(patience, int)
    finished = api == T9K and spec.get("finished") is True
    return Group(key, needed, roles, priority, created, finished, float(patience) if patience else None)


def _kubernetes_count(spec: JsonView) -> int | Invalid:
    """minCount of a gang; 0 of a group without the policy `gang`, whose Pods Kubernetes schedules one by one."""
    policy = spec.get("schedulingPolicy")
    gang = policy.get("gang") if isinstance(policy, dict) else None
    return _number(gang, "minCount", "spec.schedulingPolicy.gang", 0) if isinstance(gang, dict) else 0


def _roles(given: object) -> tuple[tuple[str, int], ...] | Invalid:
    if given is None:
        return ()
    if not isinstance(given, list):
        return Invalid("spec.roles", given, "a list of roles, each with name and minMember")
    found: list[tuple[str, int]] = []
    for at, role in enumerate(given):
        name = role.get("name") if isinstance(role, dict) else None
        if not isinstance(name, str) or not name:
            return Invalid(f"spec.roles[{at}].name", name, "the name of a role")
        needed = _number(role, "minMember", f"spec.roles[{at}]", 0)
        if isinstance(needed, Invalid):
            return needed
        found.append((name, needed))
    return tuple(found)


def _number(fields: JsonView, field: str, path: str, missing: int, *, least: int = 0) -> int | Invalid:
    number = fields.get(field)
    if number is None:
        return missing
    if isinstance(number, int) and not isinstance(number, bool) and least <= number <= _MOST:
        return number
    return Invalid(f"{path}.{field}", number, f"a whole number, at least {least}")
