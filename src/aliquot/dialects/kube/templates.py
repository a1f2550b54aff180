"""The Pod templates in any object, found by their shape: what an operator makes Pods of.

A mapping with a list of `containers` is the spec of a Pod. A mapping with `resources` that is in none is a container by
itself, as in Argo's templates and KServe's models. How many Pods: the numbers on the way to it, multiplied. What an
operator adds, and templates in other objects, are not known here: the webhook and the scheduler see the real Pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from aliquot.dialects.kube.shapes import mapping
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.refusal import Invalid

MOST = 150_000  # Pods, as of every workload
_DEEPEST = 24  # of mappings and lists; no operator's template is half as deep
_NUMBERS = ("replicas", "parallelism", "numOfHosts", "size", "numNodes")
_CONTAINERS = ("resources", "resourcesPerNode")
# What operators write once for all their Pods.
_SHARED = ("schedulerName", "priorityClassName", "nodeSelector", "tolerations", "affinity")


class Template(NamedTuple):
    """One template; `path` ends with the field that holds it."""

    path: str
    number: int
    pod: JsonObject  # its metadata and spec


class _Place(NamedTuple):
    """Something in the object that is still to be read."""

    value: object
    path: tuple[str, ...]
    number: int
    shared: JsonView
    metadata: object = None  # of the same object


class _WrongNumberError(Exception):
    def __init__(self, invalid: Invalid) -> None:
        super().__init__(invalid.field)
        self.invalid = invalid


def is_custom(obj: JsonView) -> bool:
    """Whether an operator defines the object's kind, not Kubernetes."""
    api = obj.get("apiVersion")
    group = api.partition("/")[0] if isinstance(api, str) else ""
    return "." in group and not group.endswith(".k8s.io")


def templates_in(obj: JsonView, path: str = "") -> list[Template] | Invalid:
    """The templates in an object of an operator, in order. Never raises on any JSON."""
    try:
        return list(_templates(_Place(obj.get("spec"), (f"{path}spec",), 1, {})))
    except _WrongNumberError as wrong:
        return wrong.invalid


def template_pods(obj: JsonView, path: str = "") -> list[JsonObject] | Invalid:
    """The Pods of an object of an operator, in order. Never raises on any JSON."""
    metadata, found = mapping(obj.get("metadata")), templates_in(obj, path)
    name = metadata.get("name") or metadata.get("generateName")
    if isinstance(found, Invalid) or not found:
        return found if isinstance(found, Invalid) else []
    if not isinstance(name, str) or not name:
        return Invalid(f"{path}metadata.name", metadata.get("name"), "a name")
    total = sum(template.number for template in found)
    if total > MOST:
        return Invalid(f"{path}spec", total, f"no more than {MOST:,} Pods in all")
    owner = {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), "name": name, "controller": True}
    shared = {"namespace": metadata.get("namespace") or "default", "ownerReferences": [owner]}
    return [
        {
            **template.pod,
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**mapping(template.pod["metadata"]), **shared, "name": f"{name.rstrip('-')}-{index}"},
        }
        for index, template in enumerate(each for each in found for _ in range(each.number))
    ]


def guess(obj: JsonView) -> str | None:
    """How many Pods are taken to be made of which field; None: none, or it cannot be read."""
    found = templates_in(obj)
    if isinstance(found, Invalid) or not found:
        return None
    counted = ", ".join(f"{template.number:,} of {template.path}" for template in found)
    return f"its Pods are taken to be {counted}: its operator may make others"


def _templates(first: _Place) -> Iterator[Template]:
    waiting = [first]
    while waiting:
        place = waiting.pop()
        value, path = place.value, place.path
        if len(path) > _DEEPEST:
            continue
        if isinstance(value, list):
            waiting += reversed([place._replace(value=v, path=(*path, f"[{at}]")) for at, v in enumerate(value)])
        if not isinstance(value, dict):
            continue
        own = {**place.shared, **{key: value[key] for key in _SHARED if value.get(key) not in (None, "")}}
        if isinstance(value.get("containers"), list):
            spec = {**own, **_without_null(value), "containers": _named(value["containers"])}
            pod = {"metadata": mapping(place.metadata), "spec": spec}
            yield Template(_shown(path), place.number, pod)
            continue
        number = _number(value, path, place.number)
        if (container := _container(value)) is not None:
            yield Template(_shown(path), number, {"metadata": {}, "spec": {**own, "containers": [container]}})
            continue
        beside = {"spec": value.get("metadata")}
        children = [(key, child) for key, child in value.items() if isinstance(key, str)]
        waiting += reversed([_Place(v, (*path, key), number, own, beside.get(key)) for key, v in children])


def _without_null(spec: JsonView) -> JsonObject:
    """A field that is null or empty says nothing: what is written for all Pods counts."""
    return {key: value for key, value in spec.items() if key not in _SHARED or value not in (None, "")}


def _named(containers: list[object]) -> list[object]:
    """With the names that operators give to those that have none, as Knative's."""
    return [{"name": f"main-{at}", **part} if isinstance(part, dict) else part for at, part in enumerate(containers)]


def _container(value: JsonView) -> JsonObject | None:
    """The mapping as a container; None: it is none, or a claim of a volume."""
    for key in _CONTAINERS:
        resources = mapping(value.get(key))
        if ("limits" in resources or "requests" in resources) and "accessModes" not in value:
            return {"name": "main", **value, "resources": resources}
    return None


def _number(value: JsonView, path: tuple[str, ...], number: int) -> int:
    """So many on the way to here, times what this mapping says. Raises _WrongNumberError."""
    if value.get("suspend") is True or mapping(value.get("runPolicy")).get("suspend") is True:
        return 0
    for key in _NUMBERS if "replicas" in value else ("minReplicas", *_NUMBERS):
        own = value.get(key)
        if key == "minReplicas" and own == 0:  # the first request brings one
            continue
        if own is None or isinstance(own, (dict, list)) or (key == "size" and isinstance(own, str)):  # a disk's
            continue
        if isinstance(own, bool) or not isinstance(own, int) or not 0 <= own <= MOST:
            raise _WrongNumberError(Invalid(f"{_shown(path)}.{key}", own, f"a whole number, 0 to {MOST}"))
        number *= own
    return number


def _shown(path: tuple[str, ...]) -> str:
    return "".join(part if part.startswith("[") else f".{part}" for part in path).removeprefix(".")
