"""Limits from requests. Kubernetes refuses an extended resource that has a request and no limit; the two are always
equal, so a request alone says what the limit is. qGPU's document writes its Pods so.

Admission changes an object before Kubernetes validates it. A Pod is completed when it is created. A workload's template
is validated with the workload, so it is completed there, and again when it is updated: `kubectl apply` changes the
requests that a user wrote and leaves the limits that we added.

Limits that a user wrote are never changed: where they differ from the requests, the API server refuses them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aliquot.dialects.pods import list_at, mapping_at
from aliquot.model.decoding.openjson import JsonObject, JsonView

Operation = JsonObject

# Where the Pod's spec is, by API group and kind.
TEMPLATES: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "ReplicationController"): ("spec", "template", "spec"),
    ("apps", "DaemonSet"): ("spec", "template", "spec"),
    ("apps", "Deployment"): ("spec", "template", "spec"),
    ("apps", "ReplicaSet"): ("spec", "template", "spec"),
    ("apps", "StatefulSet"): ("spec", "template", "spec"),
    ("batch", "Job"): ("spec", "template", "spec"),
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template", "spec"),
}


def complete_limits(
    obj: object,
    path: tuple[str, ...],
    resources: Collection[str],
    before: object = None,
    more: Mapping[str, Mapping[str, str]] | None = None,
) -> list[Operation]:
    """The JSON patch that completes the Pod spec at `path` of the object; `before` is the object that it replaces, and
    `more` has limits that containers lack, by their names. Accepts any JSON, never raises."""
    patch: list[Operation] = []
    spec, old_spec = _inner(obj, path), _inner(before, path)
    for siblings in ("initContainers", "containers"):
        earlier = _by_name(old_spec, siblings)
        for index, item in enumerate(list_at(spec.get(siblings), "", [])):
            container = mapping_at(item, "", [])
            name = container.get("name")
            old = earlier.get(name, {}) if isinstance(name, str) else {}
            wanted = _missing(container, old, resources)
            limits = _side(container, "limits")
            if more and isinstance(name, str):
                wanted |= {key: amount for key, amount in more.get(name, {}).items() if limits.get(key) != amount}
            where = f"/{'/'.join(path)}/{siblings}/{index}/resources/limits"
            if wanted and not isinstance(container.get("resources"), dict):
                patch.append({"op": "add", "path": where.removesuffix("/limits"), "value": {"limits": wanted}})
            elif wanted and not limits:
                patch.append({"op": "add", "path": where, "value": wanted})
            else:
                patch += [
                    {"op": "add", "path": f"{where}/{escaped(resource)}", "value": amount}
                    for resource, amount in wanted.items()
                ]
    return patch


def _missing(container: JsonView, old: JsonView, resources: Collection[str]) -> JsonObject:
    """The limits to set, by resource."""
    limits, requests = _side(container, "limits"), _side(container, "requests")
    old_limits, old_requests = _side(old, "limits"), _side(old, "requests")

    def followed(resource: str) -> bool:
        """Whether this update changes the request and leaves the limit, which was equal before."""
        limit = limits[resource]
        return bool(limit != requests[resource] and limit == old_limits.get(resource) == old_requests.get(resource))

    return {
        resource: amount
        for resource, amount in requests.items()
        if resource in resources and (resource not in limits or followed(resource))
    }


def _inner(value: object, path: tuple[str, ...]) -> JsonView:
    for key in path:
        value = mapping_at(value, "", []).get(key)
    return mapping_at(value, "", [])


def _side(container: JsonView, side: str) -> JsonView:
    return mapping_at(mapping_at(container.get("resources"), "", []).get(side), "", [])


def _by_name(spec: JsonView, siblings: str) -> dict[object, JsonView]:
    containers = (mapping_at(item, "", []) for item in list_at(spec.get(siblings), "", []))
    return {container["name"]: container for container in containers if isinstance(container.get("name"), str)}


def escaped(key: str) -> str:
    """Escaped for a JSON Pointer."""
    return key.replace("~", "~0").replace("/", "~1")
