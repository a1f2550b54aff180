"""kube-scheduler's own conditions for a Pod on a node, for commands that run without a kube-scheduler.

Wrong shapes in a manifest never raise: a condition that cannot be read is not met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aliquot.dialects.kube.shapes import as_text, mapping, sequence
from aliquot.dialects.pods import tolerates
from aliquot.dialects.t9k import missing_tolerations, taints
from aliquot.dialects.wire.objects import NodeObject, NodeSpec
from aliquot.model.claim import Claim
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.refusal import Reason, Refusal

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
# These taints say what the node's Ready condition says already.
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def scheduling_gates(spec: JsonView) -> tuple[str, ...]:
    """The gates that hold the Pod back."""
    return tuple(as_text(mapping(gate).get("name")) for gate in sequence(spec.get("schedulingGates")))


def asked_of_kubernetes(spec: JsonView) -> list[str]:
    """What else kube-scheduler decides about a Pod with this spec: no command decides it in its place."""
    affinity = mapping(spec.get("affinity"))
    containers = map(mapping, sequence(spec.get("containers")))
    ports = [mapping(port) for container in containers for port in sequence(container.get("ports"))]
    asked = {
        "Pod affinity": any(affinity.get(key) for key in ("podAffinity", "podAntiAffinity")),
        "topology spread": bool(spec.get("topologySpreadConstraints")),
        "host ports": spec.get("hostNetwork") is True or any(port.get("hostPort") for port in ports),
    }
    return [name for name, asks in asked.items() if asks]


def closing_taints(spec: NodeSpec) -> tuple[JsonView, ...]:
    """The taints that keep Pods from a node unless they tolerate them; a cordon is one."""
    if not spec.taints and not spec.unschedulable:  # nearly all
        return ()
    found = [taint for taint in spec.taints or () if taint.get("effect") in ("NoSchedule", "NoExecute")]
    cordoned = spec.unschedulable and not any(taint.get("key") == _UNSCHEDULABLE["key"] for taint in found)
    return (*found, _UNSCHEDULABLE) if cordoned else tuple(found)


def untolerated(taints: Iterable[JsonView], tolerations: Iterable[object] | None) -> str | None:
    """The first of these taints that no toleration covers, as kubectl writes it; None: all are tolerated."""
    wanted = list(tolerations or ())
    for taint in taints:
        if not any(tolerates(toleration, taint) for toleration in wanted):
            return f"{as_text(taint.get('key'))}={as_text(taint.get('value') or '')}:{as_text(taint.get('effect'))}"
    return None


def node_refusals(pod: object, claim: Claim, node: NodeObject) -> list[Refusal]:
    """Why kube-scheduler would keep the Pod (a manifest) from the node; empty where it would not.

    Counted as they will be once our controller and webhook have seen them: the node with the T9k taint its labels call
    for, the Pod with the tolerations it gets by itself. Selectors are `never`; a taint or a sick node may pass.
    """
    spec = mapping(mapping(pod).get("spec"))
    tolerations = [*sequence(spec.get("tolerations")), *missing_tolerations(pod, claim)]
    return [
        *_unschedulable(node, tolerations),
        *_not_ready(node),
        *_taints(node, tolerations),
        *unselected(spec, node),
    ]


def _unschedulable(node: NodeObject, tolerations: list[Any]) -> list[Refusal]:
    if not node.spec.unschedulable:
        return []
    if any(tolerates(toleration, _UNSCHEDULABLE) for toleration in tolerations):
        return []
    return [Refusal(node.metadata.name, None, Reason.UNSCHEDULABLE, None, "cordoned", never=False)]


def _not_ready(node: NodeObject) -> list[Refusal]:
    ready = node.ready
    return [] if ready == "True" else [Refusal(node.metadata.name, None, Reason.NOT_READY, "True", ready, never=False)]


def _taints(node: NodeObject, tolerations: list[Any]) -> list[Refusal]:
    repeated = set(_NOT_READY) if node.ready != "True" else set()
    if node.spec.unschedulable:
        repeated.add(_UNSCHEDULABLE["key"])
    refusals = []
    present = node.spec.taints or []
    ours = taints(node.metadata.labels or {}, present)
    for taint in [*(taint for taint in present if taint not in ours.remove), *ours.add]:
        if taint.get("effect") not in ("NoSchedule", "NoExecute") or as_text(taint.get("key")) in repeated:
            continue
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            shown = f"{as_text(taint.get('key'))}={as_text(taint.get('value') or '')}:{taint['effect']}"
            refusals.append(Refusal(node.metadata.name, None, Reason.TAINT, None, shown, never=False))
    return refusals


def unselected(spec: JsonView, node: NodeObject) -> list[Refusal]:
    """Why nodeName, nodeSelector or node affinity keep the Pod from the node."""
    name = node.metadata.name
    labels, fields = node.metadata.labels or {}, {"metadata.name": name}
    refusals = []
    wanted_name = spec.get("nodeName")
    if isinstance(wanted_name, str) and wanted_name and wanted_name != name:
        refusals.append(Refusal(name, None, Reason.SELECTOR, f"spec.nodeName={wanted_name}", name, never=True))
    for key, value in mapping(spec.get("nodeSelector")).items():
        if key not in labels or labels[key] != value:
            had = f"{as_text(key)}={as_text(labels[key])}" if key in labels else None
            refusals.append(Refusal(name, None, Reason.SELECTOR, f"{as_text(key)}={as_text(value)}", had, never=True))
    affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        terms = [mapping(term) for term in sequence(mapping(required).get("nodeSelectorTerms"))]
        if not any(_term_matches(term, labels, fields) for term in terms):
            wanted = " or ".join(_term_text(term) for term in terms) or "nothing at all"
            refusals.append(Refusal(name, None, Reason.SELECTOR, wanted, None, never=True))
    return refusals


def selects_node(selector: object, name: str, labels: Mapping[str, object]) -> bool:
    """Whether a NodeSelector, as any JSON, selects the node: one of its terms is enough."""
    terms = (mapping(term) for term in sequence(mapping(selector).get("nodeSelectorTerms")))
    return any(_term_matches(term, dict(labels), {"metadata.name": name}) for term in terms)


def _term_matches(term: JsonView, labels: JsonView, fields: JsonView) -> bool:
    """All of a term must hold; a term that asks for nothing selects nothing."""
    expressions, on_fields = sequence(term.get("matchExpressions")), sequence(term.get("matchFields"))
    if not expressions and not on_fields:
        return False
    return all(holds(expression, labels) for expression in expressions) and all(
        holds(field, fields) for field in on_fields
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


def holds(expression: object, labels: JsonView) -> bool:
    """Whether the labels meet an expression of a selector."""
    condition = mapping(expression)
    key, operator = condition.get("key"), condition.get("operator")
    if not isinstance(key, str) or not isinstance(operator, str) or operator not in _OPERATORS:
        return False
    return _OPERATORS[operator](key in labels, labels.get(key), sequence(condition.get("values")))


def _term_text(term: JsonView) -> str:
    conditions = [*sequence(term.get("matchExpressions")), *sequence(term.get("matchFields"))]
    return " and ".join(map(condition_text, conditions)) or "a term that selects nothing"


def condition_text(expression: object) -> str:
    """An expression of a selector, in words."""
    condition = mapping(expression)
    values = ", ".join(as_text(value) for value in sequence(condition.get("values")))
    shown = f"{as_text(condition.get('key'))} {as_text(condition.get('operator'))}"
    return f"{shown} [{values}]" if values else shown
