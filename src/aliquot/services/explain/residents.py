"""The Pods on the nodes, as far as they keep others away: resources, Pod limits, host ports, (anti-)affinity, spread.

kube-scheduler's rules of NodeResourcesFit, NodePorts, InterPodAffinity and PodTopologySpread. Pods come, and rarely
go: what is known about a kind of Pod is brought up to date by the Pods that came since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from aliquot.dialects.kube.conditions import unselected
from aliquot.dialects.kube.podterms import OF_CARDS, PodTerm, PodTerms, SpreadTerm, conflicting
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.numbers.quantity import QuantityError, parse_quantity
from aliquot.model.refusal import Reason, Refusal

_Place = tuple[str, str]  # a topology key and its value on a node
_NATIVE = ("hugepages-", "ephemeral-storage")  # a node that does not report them is not known to have none


@dataclass(frozen=True, slots=True)
class _Resident:
    node: str
    terms: PodTerms
    ending: bool


@dataclass(slots=True)
class _OnNode:
    """What the Pods of a node take."""

    pods: int = 0
    amounts: Counter[str] = field(default_factory=Counter)
    ports: set[tuple[str, str, int]] = field(default_factory=set)


@dataclass(slots=True)
class _Standing:
    """What is known about one kind of Pod, from the first `seen` residents."""

    terms: PodTerms
    spec: JsonView
    seen: int = 0
    own: dict[str, tuple[Refusal, ...]] = field(default_factory=dict)  # by node: what the node itself lacks
    wanted: Counter[_Place] = field(default_factory=Counter)  # where Pods of the affinity terms are
    unwanted: list[set[_Place]] = field(default_factory=list)  # per anti-affinity term
    keep_away: set[_Place] = field(default_factory=set)  # where Pods are that do not want it near
    spread: list[Counter[str]] = field(default_factory=list)  # per spread term: Pods by topology value
    refusals: tuple[Refusal, ...] | None = None


class Residents:
    """The Pods on `nodes`, which are all nodes that take Pods."""

    def __init__(self, nodes: Mapping[str, NodeObject]) -> None:
        self._nodes = nodes
        self._pods: list[_Resident] = []
        self._on: dict[str, _OnNode] = {}
        self._standings: dict[str, _Standing] = {}

    def add(self, node: str, terms: PodTerms, *, ending: bool = False) -> None:
        """A Pod is on the node; `ending`: it was deleted and still runs."""
        self._pods.append(_Resident(node, terms, ending))
        there = self._on.setdefault(node, _OnNode())
        there.pods += 1
        if terms.amounts:
            there.amounts.update(terms.amounts)
        if terms.ports:
            there.ports |= terms.ports

    def remove(self, node: str, terms: PodTerms, *, ending: bool = False) -> None:
        """A Pod that was added is gone. What is known is found anew, which is slow and rare."""
        self._pods.remove(_Resident(node, terms, ending))
        there = self._on[node]
        there.pods -= 1
        there.amounts.subtract(terms.amounts)
        there.ports -= terms.ports
        self._standings.clear()

    def refusals(self, kind: str | None, terms: PodTerms, spec: JsonView) -> tuple[Refusal, ...]:
        """Why nodes do not take the Pod; the same tuple while nothing changes. `kind` is equal for equal Pods; None:
        nothing is kept for the next one."""
        standing = None if kind is None else self._standings.get(kind)
        if standing is None:
            standing = _Standing(terms, spec)
            if kind is not None:
                self._standings[kind] = standing
            standing.unwanted = [set() for _ in terms.anti_affinity]
            standing.spread = [Counter() for _ in terms.spread]
            standing.own = {name: tuple(self._lacks(name, terms)) for name in self._nodes}
        if standing.refusals is None or standing.seen < len(self._pods):
            self._update(standing)
            found = self._found(standing)
            if found != standing.refusals:
                standing.refusals = found
        return standing.refusals or ()

    def _update(self, standing: _Standing) -> None:
        new, standing.seen = self._pods[standing.seen :], len(self._pods)
        terms = standing.terms
        for resident in new:
            node = self._nodes.get(resident.node)
            if node is not None:
                _count(standing, resident, node)
        for name in {resident.node for resident in new} & self._nodes.keys():
            standing.own[name] = tuple(self._lacks(name, terms))

    def _found(self, standing: _Standing) -> tuple[Refusal, ...]:
        near = tuple(self._near(standing)) if _looks_around(standing) else ()
        return (*(refusal for refusals in standing.own.values() for refusal in refusals), *near)

    # --- what a node itself lacks --------------------------------------------------------------------------------

    def _lacks(self, name: str, terms: PodTerms) -> Iterator[Refusal]:
        node, there = self._nodes[name], self._on.get(name) or _OnNode()
        has = node.status.allocatable if node.status.allocatable is not None else node.status.capacity or {}
        limit = _amount(has.get("pods"))
        if limit is not None and there.pods >= limit:
            yield Refusal(name, None, Reason.PODS, 1, limit, never=not limit)
        for resource, wanted in terms.amounts.items():
            total = _amount(has.get(resource))
            if total is None and (resource in OF_CARDS or resource.startswith(_NATIVE)):
                continue
            total = total or 0
            if wanted > total - there.amounts[resource]:
                never = wanted > total
                free = total if never else max(0, total - there.amounts[resource])
                yield Refusal(name, None, Reason.RESOURCE, f"{wanted:,} {resource}", f"{free:,}", never=never)
        for port in sorted(terms.ports):
            if conflicting(port, there.ports):
                yield Refusal(name, None, Reason.HOST_PORT, f"{port[2]}/{port[1]}", None, never=False)

    # --- which Pods are near -------------------------------------------------------------------------------------

    def _near(self, standing: _Standing) -> Iterator[Refusal]:
        terms = standing.terms
        # The first Pod of a group that wants to be together has nothing to join.
        first = not standing.wanted and all(term.matches(terms.namespace, terms.labels) for term in terms.affinity)
        least = [
            self._least(term, counts, standing) for term, counts in zip(terms.spread, standing.spread, strict=True)
        ]
        for name, node in self._nodes.items():
            labels = node.metadata.labels or {}
            for term in terms.affinity:
                value = labels.get(term.topology_key)
                if value is None or not (first or standing.wanted[term.topology_key, value]):
                    yield _refusal(name, Reason.POD_AFFINITY, f"a Pod with {_of(term)}")
            for term, places in zip(terms.anti_affinity, standing.unwanted, strict=True):
                if (term.topology_key, labels.get(term.topology_key)) in places:
                    yield _refusal(name, Reason.POD_AFFINITY, f"no Pod with {_of(term)}")
            for key in sorted({key for key, value in standing.keep_away if labels.get(key) == value}):
                yield _refusal(name, Reason.POD_AFFINITY, f"another {key}: a Pod there allows none like it near")
            for spread, counts, fewest in zip(terms.spread, standing.spread, least, strict=True):
                value = labels.get(spread.topology_key)
                one_more = spread.selector.matches(terms.labels)
                if value is None or counts[value] + one_more - fewest > spread.max_skew:
                    yield _refusal(name, Reason.SPREAD, _skew(spread))

    def _least(self, term: SpreadTerm, counts: Counter[str], standing: _Standing) -> int:
        """The fewest Pods in any part of the cluster where the Pod could go."""
        nodes = (node for node in self._nodes.values() if _eligible(term, standing, node))
        parts = {(node.metadata.labels or {})[term.topology_key] for node in nodes}
        return 0 if len(parts) < term.min_domains else min((counts[part] for part in parts), default=0)


def _looks_around(standing: _Standing) -> bool:
    terms = standing.terms
    return bool(terms.affinity or terms.anti_affinity or terms.spread or standing.keep_away)


def _eligible(term: SpreadTerm, standing: _Standing, node: NodeObject) -> bool:
    """Whether the node and its Pods count for the term: it has every topology key, and the Pod selects it."""
    labels = node.metadata.labels or {}
    known = all(spread.topology_key in labels for spread in standing.terms.spread)
    return known and (term.all_nodes or not unselected(standing.spec, node))


def _count(standing: _Standing, resident: _Resident, node: NodeObject) -> None:
    """One more Pod, on that node."""
    terms, there, labels = standing.terms, resident.terms, node.metadata.labels or {}
    if terms.affinity and all(term.matches(there.namespace, there.labels) for term in terms.affinity):
        standing.wanted.update(
            (term.topology_key, labels[term.topology_key]) for term in terms.affinity if term.topology_key in labels
        )
    for term, places in zip(terms.anti_affinity, standing.unwanted, strict=True):
        if term.topology_key in labels and term.matches(there.namespace, there.labels):
            places.add((term.topology_key, labels[term.topology_key]))
    for term in there.anti_affinity:
        if term.topology_key in labels and term.matches(terms.namespace, terms.labels):
            standing.keep_away.add((term.topology_key, labels[term.topology_key]))
    if there.namespace != terms.namespace or resident.ending:
        return
    for spread, counts in zip(terms.spread, standing.spread, strict=True):
        if spread.selector.matches(there.labels) and _eligible(spread, standing, node):
            counts[labels[spread.topology_key]] += 1


def lacks_cards(refusal: Refusal) -> bool:
    """Whether it is a resource of cards that the kubelet has too little of: none, where no agent answers it."""
    return refusal.reason is Reason.RESOURCE and str(refusal.wanted).rpartition(" ")[2] in OF_CARDS


def _amount(value: object) -> int | None:
    try:
        return None if value is None else int(parse_quantity(value))
    except QuantityError:
        return None


def _refusal(node: str, reason: Reason, wanted: str) -> Refusal:
    return Refusal(node, None, reason, wanted, None, never=False)


def _of(term: PodTerm) -> str:
    return f"{term.selector} in the same {term.topology_key}"


def _skew(term: SpreadTerm) -> str:
    pods = f"{term.max_skew:,} more Pod{'s' * (term.max_skew > 1)} with {term.selector}"
    return f"at most {pods} in one {term.topology_key} than in another"
