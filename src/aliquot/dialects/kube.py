"""What Kubernetes itself says of a Pod and a Node, for the moments when no kube-scheduler stands behind us.

Wrong shapes never raise: a condition that cannot be read is a condition that is not met.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from aliquot.dialects.pods import Json, read_pod, tolerates, with_requests
from aliquot.dialects.t9k import missing_tolerations, taints
from aliquot.model.claim import Claim
from aliquot.model.refusal import Invalid, Reason, Refusal, show

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
# These taints say what the node's Ready condition says already.
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

# More replicas than a cluster has Pods; keeps a manifest that says "replicas: 1000000000" from filling our memory.
MOST_PODS = 150_000


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else show(value)


def node_refusals(pod: object, claim: Claim, node_obj: object) -> list[Refusal]:
    """Why kube-scheduler would keep the Pod from the node; empty where it would not.

    Counted as they will be once our controller and webhook have seen them: the node with the T9k taint its labels call
    for, the Pod with the tolerations it gets by itself. Selectors are `never`; a taint or a sick node may pass.
    """
    node = _mapping(node_obj)
    name = _text(_mapping(node.get("metadata")).get("name", ""))
    spec = _mapping(_mapping(pod).get("spec"))
    tolerations = [*_list(spec.get("tolerations")), *missing_tolerations(pod, claim)]
    return [
        *_unschedulable(node, name, tolerations),
        *_not_ready(node, name),
        *_taints(node, name, tolerations),
        *_selectors(spec, node, name),
    ]


def _unschedulable(node: Json, name: str, tolerations: list[Any]) -> list[Refusal]:
    if _mapping(node.get("spec")).get("unschedulable") is not True:
        return []
    if any(tolerates(toleration, _UNSCHEDULABLE) for toleration in tolerations):
        return []
    return [Refusal(name, None, Reason.UNSCHEDULABLE, None, "cordoned", never=False)]


def _ready(node: Json) -> str:
    """The Ready condition; a node that does not say is taken as ready."""
    for condition in map(_mapping, _list(_mapping(node.get("status")).get("conditions"))):
        if condition.get("type") == "Ready":
            return _text(condition.get("status"))
    return "True"


def _not_ready(node: Json, name: str) -> list[Refusal]:
    ready = _ready(node)
    return [] if ready == "True" else [Refusal(name, None, Reason.NOT_READY, "True", ready, never=False)]


def _taints(node: Json, name: str, tolerations: list[Any]) -> list[Refusal]:
    spec = _mapping(node.get("spec"))
    told = set(_NOT_READY) if _ready(node) != "True" else set()
    if spec.get("unschedulable") is True:
        told.add(_UNSCHEDULABLE["key"])
    refusals = []
    ours = taints(node)
    staying = [taint for taint in map(_mapping, _list(spec.get("taints"))) if taint not in ours.remove]
    for taint in [*staying, *ours.add]:
        if taint.get("effect") not in ("NoSchedule", "NoExecute") or _text(taint.get("key")) in told:
            continue
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            shown = f"{_text(taint.get('key'))}={_text(taint.get('value') or '')}:{taint['effect']}"
            refusals.append(Refusal(name, None, Reason.TAINT, None, shown, never=False))
    return refusals


def _selectors(spec: Json, node: Json, name: str) -> list[Refusal]:
    metadata = _mapping(node.get("metadata"))
    labels, fields = _mapping(metadata.get("labels")), {"metadata.name": metadata.get("name")}
    refusals = []
    wanted_name = spec.get("nodeName")
    if isinstance(wanted_name, str) and wanted_name and wanted_name != name:
        refusals.append(Refusal(name, None, Reason.SELECTOR, f"spec.nodeName={wanted_name}", name, never=True))
    for key, value in _mapping(spec.get("nodeSelector")).items():
        if key not in labels or labels[key] != value:
            had = f"{_text(key)}={_text(labels[key])}" if key in labels else None
            refusals.append(Refusal(name, None, Reason.SELECTOR, f"{_text(key)}={_text(value)}", had, never=True))
    affinity = _mapping(_mapping(spec.get("affinity")).get("nodeAffinity"))
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        terms = [_mapping(each) for each in _list(_mapping(required).get("nodeSelectorTerms"))]
        if not any(_term_matches(term, labels, fields) for term in terms):
            wanted = " or ".join(_term_text(term) for term in terms) or "nothing at all"
            refusals.append(Refusal(name, None, Reason.SELECTOR, wanted, None, never=True))
    return refusals


def _term_matches(term: Json, labels: Json, fields: Json) -> bool:
    """All of a term must hold; a term that asks for nothing selects nothing."""
    expressions, on_fields = _list(term.get("matchExpressions")), _list(term.get("matchFields"))
    if not expressions and not on_fields:
        return False
    return all(_holds(expression, labels) for expression in expressions) and all(
        _holds(field, fields) for field in on_fields
    )


def _whole_number(value: object) -> int | None:
    try:
        return int(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _compare(value: object, values: list[Any], larger: Callable[[int, int], bool]) -> bool:
    left, right = _whole_number(value), _whole_number(values[0]) if len(values) == 1 else None
    return left is not None and right is not None and larger(left, right)


_OPERATORS: dict[str, Callable[[bool, object, list[Any]], bool]] = {
    "In": lambda present, value, values: present and value in values,
    "NotIn": lambda present, value, values: not present or value not in values,
    "Exists": lambda present, value, values: present,
    "DoesNotExist": lambda present, value, values: not present,
    "Gt": lambda present, value, values: present and _compare(value, values, int.__gt__),
    "Lt": lambda present, value, values: present and _compare(value, values, int.__lt__),
}


def _holds(expression: object, labels: Json) -> bool:
    each = _mapping(expression)
    key, operator = each.get("key"), each.get("operator")
    if not isinstance(key, str) or not isinstance(operator, str) or operator not in _OPERATORS:
        return False
    return _OPERATORS[operator](key in labels, labels.get(key), _list(each.get("values")))


def _term_text(term: Json) -> str:
    parts = []
    for each in map(_mapping, [*_list(term.get("matchExpressions")), *_list(term.get("matchFields"))]):
        values = ", ".join(_text(value) for value in _list(each.get("values")))
        shown = f"{_text(each.get('key'))} {_text(each.get('operator'))}"
        parts.append(f"{shown} [{values}]" if values else shown)
    return " and ".join(parts) or "a term that selects nothing"


# The kinds that make Pods, and where each writes how many.
WORKLOADS = {
    "Deployment": "replicas",
    "ReplicaSet": "replicas",
    "StatefulSet": "replicas",
    "ReplicationController": "replicas",
    "Job": "parallelism",
}


def expand(manifest: object) -> list[dict[str, Any]] | Invalid:
    """The Pods a manifest would make, in order.

    A Pod is itself; a Deployment, ReplicaSet, StatefulSet, ReplicationController or Job of any apiVersion is its
    replicas (a Job: its parallelism, no more than its completions), named NAME-0, NAME-1, ... and owned by it; a List
    is all of its items. Other kinds make no Pods of their own choosing of place (a DaemonSet's are bound to their
    nodes) or none at once (a CronJob's come later): the empty list, as for an empty YAML document.
    """
    found: list[dict[str, Any]] = []
    waiting = deque([("", manifest)])  # what is left to read, and where it stands
    while waiting:
        path, each = waiting.popleft()
        if each is None:
            continue
        if not isinstance(each, dict):
            return Invalid(path.removesuffix(".") or "manifest", each, "a Kubernetes object")
        kind = each.get("kind")
        if not isinstance(kind, str):
            return Invalid(f"{path}kind", kind, "the kind of a Kubernetes object")
        made = _items(each, kind, path) if kind.endswith("List") and "items" in each else None
        if isinstance(made, Invalid):
            return made
        if made is not None:
            waiting.extendleft(reversed(made))
            continue
        pods = [each] if kind == "Pod" else _replicas(each, kind, path) if kind in WORKLOADS else []
        if isinstance(pods, Invalid):
            return pods
        found += pods
        if len(found) > MOST_PODS:
            return Invalid(path.removesuffix(".") or "manifest", len(found), f"no more than {MOST_PODS:,} Pods in all")
    return found


def _items(whole: dict[str, Any], kind: str, path: str) -> list[tuple[str, object]] | Invalid:
    items = whole["items"] if whole["items"] is not None else []
    if not isinstance(items, list):
        return Invalid(f"{path}items", items, "a list")
    of = kind.removesuffix("List")
    return [(f"{path}items[{index}].", _with_kind(item, of)) for index, item in enumerate(items)]


def _with_kind(item: object, kind: str) -> object:
    """The items of a PodList do not repeat that they are Pods."""
    return {"kind": kind, **item} if kind and isinstance(item, dict) else item


def _replicas(workload: dict[str, Any], kind: str, path: str) -> list[dict[str, Any]] | Invalid:
    metadata, spec = workload.get("metadata"), workload.get("spec")
    if not isinstance(metadata, dict):
        return Invalid(f"{path}metadata", metadata, "a mapping with a name")
    if not isinstance(spec, dict):
        return Invalid(f"{path}spec", spec, "a mapping with a template")
    name, namespace = metadata.get("name"), metadata.get("namespace", "default")
    if not isinstance(name, str) or not name:
        return Invalid(f"{path}metadata.name", name, "a name")
    template = spec.get("template")
    inner = template.get("metadata") or {} if isinstance(template, dict) else None
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict) or not isinstance(inner, dict):
        return Invalid(f"{path}spec.template", template, "a Pod template with a spec")
    number = spec.get(WORKLOADS[kind])
    number = 1 if number is None else number
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST_PODS:
        return Invalid(f"{path}spec.{WORKLOADS[kind]}", number, f"a whole number, 0 to {MOST_PODS}")
    completions = spec.get("completions")
    if kind == "Job" and isinstance(completions, int):
        number = min(number, max(0, completions))
    owner = {"apiVersion": workload.get("apiVersion"), "kind": kind, "name": name, "controller": True}
    # What stands beside metadata and spec in the template is kept: a slip there is told like any other.
    return [
        {
            **template,
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**inner, "name": f"{name}-{index}", "namespace": namespace, "ownerReferences": [owner]},
        }
        for index in range(number)
    ]


def pod_request(pod: object) -> tuple[int, int]:
    """Milli-CPU and MiB that any Pod takes of its node. What cannot be read counts nothing."""
    view = read_pod(pod)
    if view is None:
        return 0, 0
    counted = with_requests(view)
    return counted.cpu_milli, counted.memory_mib


def is_finished(pod: object) -> bool:
    """Whether the Pod has run to its end and holds nothing any more."""
    return _mapping(_mapping(pod).get("status")).get("phase") in ("Succeeded", "Failed")


def is_daemon(pod: object) -> bool:
    """Whether a DaemonSet owns the Pod: such Pods do not stand in the way of a whole-node Pod."""
    owners = _list(_mapping(_mapping(pod).get("metadata")).get("ownerReferences"))
    return any(each.get("kind") == "DaemonSet" and each.get("controller") is True for each in map(_mapping, owners))
