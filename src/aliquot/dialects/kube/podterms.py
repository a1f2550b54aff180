"""What a Pod asks of a node besides GPUs, CPU and memory: other resources, host ports, and which Pods are near. Pure.

kube-scheduler decides about these before it asks us. `aliquot explain` runs without it, so it reads them here.
Wrong shapes never raise: a condition that cannot be read is not met.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aliquot.dialects import gpushare, hami, native, qgpu, t9k
from aliquot.dialects.kube.conditions import condition_text, holds
from aliquot.dialects.kube.shapes import as_text, mapping, sequence
from aliquot.dialects.pods import Pod, total_request
from aliquot.model.decoding.openjson import JsonView

# Of cards, which kube-scheduler counts too: it does not ignore them in our configuration, as it does HAMi's.
OF_CARDS = frozenset({*qgpu.RESOURCES, *t9k.RESOURCES, *gpushare.RESOURCES, native.PLACE})
_COUNTED_ELSEWHERE = frozenset({"cpu", "memory", *hami.PARTS})
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"  # the one label of a namespace that follows from its name
_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104  # of a host port without hostIP
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

Labels = Mapping[str, object]
Port = tuple[str, str, int]  # address, protocol, number


@dataclass(frozen=True, slots=True)
class Selector:
    """Which Pods. `conditions` None: no selector, which selects nothing."""

    conditions: tuple[JsonView, ...] | None

    def matches(self, labels: Labels) -> bool:
        """Whether a Pod with these labels is selected."""
        return self.conditions is not None and all(holds(condition, labels) for condition in self.conditions)

    def __str__(self) -> str:
        if self.conditions is None:
            return "no labels that a selector names"
        return " and ".join(_shown(condition) for condition in self.conditions) or "any labels"


@dataclass(frozen=True, slots=True)
class PodTerm:
    """One term of podAffinity or podAntiAffinity: Pods of these namespaces, in the same part of the cluster."""

    selector: Selector
    topology_key: str
    namespaces: frozenset[str]
    namespace_selector: Selector

    def matches(self, namespace: str, labels: Labels) -> bool:
        """Whether a Pod is one of those that the term is about."""
        theirs = namespace in self.namespaces or self.namespace_selector.matches({_NAMESPACE_LABEL: namespace})
        return theirs and self.selector.matches(labels)


@dataclass(frozen=True, slots=True)
class SpreadTerm:
    """One entry of topologySpreadConstraints that must hold."""

    selector: Selector
    topology_key: str
    max_skew: int
    min_domains: int
    all_nodes: bool  # nodes that the Pod does not select are counted too


@dataclass(frozen=True, slots=True)
class PodTerms:
    """What kube-scheduler compares with a node and the Pods there."""

    namespace: str
    labels: Labels
    amounts: Mapping[str, int]  # of resources but CPU, memory and those that kube-scheduler ignores, by name
    ports: frozenset[Port]
    affinity: tuple[PodTerm, ...]
    anti_affinity: tuple[PodTerm, ...]
    spread: tuple[SpreadTerm, ...]


def terms_of(pod: Pod, spec: JsonView) -> PodTerms:
    """The terms of a Pod; `spec` is all of its spec."""
    affinity = mapping(spec.get("affinity"))  # of few Pods: most of a cluster are read here for nothing
    return PodTerms(
        namespace=pod.namespace,
        labels=pod.labels,
        amounts=_amounts(pod, spec),
        ports=frozenset(_ports(spec)),
        affinity=_pod_terms(affinity.get("podAffinity"), pod) if affinity else (),
        anti_affinity=_pod_terms(affinity.get("podAntiAffinity"), pod) if affinity else (),
        spread=tuple(_spread(spec, pod.labels)) if spec.get("topologySpreadConstraints") else (),
    )


def scheduling_gates(spec: JsonView) -> tuple[str, ...]:
    """The gates that hold the Pod back."""
    return tuple(as_text(mapping(gate).get("name")) for gate in sequence(spec.get("schedulingGates")))


def _amounts(pod: Pod, spec: JsonView) -> dict[str, int]:
    names = {
        name
        for container in pod.containers
        for amounts in (container.limits, container.requests)
        for name in amounts
        if name not in _COUNTED_ELSEWHERE
    }
    totals = {name: total_request(spec, pod.containers, name, 1, []) for name in sorted(names)}
    return {name: amount for name, amount in totals.items() if amount}


def _ports(spec: JsonView) -> Iterable[Port]:
    sidecars = [
        container
        for container in map(mapping, sequence(spec.get("initContainers")))
        if container.get("restartPolicy") == "Always"
    ]
    for container in [*sidecars, *map(mapping, sequence(spec.get("containers")))]:
        for port in map(mapping, sequence(container.get("ports")) if "ports" in container else ()):
            number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") is True else None)
            if isinstance(number, int):
                yield as_text(port.get("hostIP") or _EVERY_ADDRESS), as_text(port.get("protocol") or "TCP"), number


def conflicting(port: Port, taken: Iterable[Port]) -> bool:
    """Whether the port is taken, on its address or on every address."""
    address, *rest = port
    return any(rest == others and (address == there or _EVERY_ADDRESS in (address, there)) for there, *others in taken)


def _pod_terms(affinity: object, pod: Pod) -> tuple[PodTerm, ...]:
    terms = map(mapping, sequence(mapping(affinity).get(_REQUIRED)))
    return tuple(_pod_term(term, pod) for term in terms)


def _pod_term(term: JsonView, pod: Pod) -> PodTerm:
    names = frozenset(map(as_text, sequence(term.get("namespaces"))))
    of_namespaces = selector_of(term.get("namespaceSelector"))
    if not names and of_namespaces.conditions is None:
        names = frozenset({pod.namespace})
    return PodTerm(
        selector=selector_of(
            term.get("labelSelector"), pod.labels, term.get("matchLabelKeys"), term.get("mismatchLabelKeys")
        ),
        topology_key=as_text(term.get("topologyKey")),
        namespaces=names,
        namespace_selector=of_namespaces,
    )


def _spread(spec: JsonView, labels: Labels) -> Iterable[SpreadTerm]:
    for term in map(mapping, sequence(spec.get("topologySpreadConstraints"))):
        if term.get("whenUnsatisfiable") == "ScheduleAnyway":
            continue
        yield SpreadTerm(
            selector=selector_of(term.get("labelSelector"), labels, term.get("matchLabelKeys")),
            topology_key=as_text(term.get("topologyKey")),
            max_skew=_whole(term.get("maxSkew")),
            min_domains=_whole(term.get("minDomains")),
            all_nodes=term.get("nodeAffinityPolicy") == "Ignore",
        )


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def selector_of(selector: object, labels: Labels | None = None, same: object = None, other: object = None) -> Selector:
    """A labelSelector; `same` and `other` are keys whose value in `labels` Pods must have, or must not have."""
    if not isinstance(selector, dict):
        return Selector(None)
    conditions: list[JsonView] = [
        {"key": key, "operator": "In", "values": [value]} for key, value in mapping(selector.get("matchLabels")).items()
    ]
    conditions += map(mapping, sequence(selector.get("matchExpressions")))
    for keys, operator in ((same, "In"), (other, "NotIn")):
        for key in sequence(keys):
            if isinstance(key, str) and labels is not None and key in labels:
                conditions.append({"key": key, "operator": operator, "values": [labels[key]]})
    return Selector(tuple(conditions))


def _shown(condition: JsonView) -> str:
    values = sequence(condition.get("values"))
    if condition.get("operator") == "In" and len(values) == 1:
        return f"{as_text(condition.get('key'))}={as_text(values[0])}"
    return condition_text(condition)
