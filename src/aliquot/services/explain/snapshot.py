"""A cluster as it stands at one moment, and where Pods would go on it.

Kubernetes objects in (Nodes, Pods, the unhealthy-GPU ConfigMaps), a board with everything that is already there; then
one Pod after the other is placed, each booked before the next. kube-scheduler's own conditions (taints, selectors,
cordons) are applied too, since nobody else does here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aliquot import dialects
from aliquot.dialects import Rules, kube
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid, Reason, Refusal, show
from aliquot.placement.board import Board, Bools, Occupant
from aliquot.placement.book import Ledger, occupant_of
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.placement.demand import Demand, demand_of

# What of a Pod's spec decides which nodes kube-scheduler lets it on.
_GATES = ("nodeName", "nodeSelector", "affinity", "tolerations")


@dataclass(frozen=True, slots=True)
class Note:
    """What had to be assumed or left out, and about whom. Many may have the same text."""

    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one Pod. Not ours: no claim, no grant, nothing broken."""

    pod: str
    claim: Claim | None = None
    grant: Grant | None = None
    broken: tuple[Invalid, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    remark: str | None = None

    @property
    def ours(self) -> bool:
        """Whether the Pod speaks one of the dialects."""
        return self.claim is not None or bool(self.broken)

    @property
    def fits(self) -> bool:
        """Whether it has a place, or needs none of ours."""
        return self.grant is not None or not self.ours


@dataclass(frozen=True, slots=True)
class _Gate:
    """The rows Kubernetes lets a kind of Pod on, and why not on the others."""

    rows: Bools
    closed: tuple[Refusal, ...]


@dataclass(slots=True)
class Snapshot:
    """See the head of the file."""

    board: Board
    ledger: Ledger
    chooser: Chooser
    rules: Rules
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)  # as Kubernetes shows them
    unusable: dict[str, tuple[Invalid, ...]] = field(default_factory=dict)  # nodes that break a rule
    running: dict[str, Grant] = field(default_factory=dict)  # by namespace/name
    guessed: set[str] = field(default_factory=set)  # those of them whose cards nothing tells
    notes: list[Note] = field(default_factory=list)
    _gates: dict[str, _Gate] = field(default_factory=dict)
    _told: tuple[Demand, _Gate, int, tuple[Refusal, ...]] | None = None  # the latest refusals, and of what

    # --- taking in what is there ---------------------------------------------------------------------------

    def add_node(self, obj: dict[str, Any], unhealthy: frozenset[int]) -> None:
        """One Node object."""
        node = dialects.parse_node(obj, self.rules, unhealthy)
        if isinstance(node, Node):
            self.nodes[node.name] = obj
            self.board.set_node(node)
            self.notes += [Note(node.name, text) for text in node.notes]
        else:
            name = _name(obj) or "(a node without a name)"
            self.unusable[name] = node
            self.notes += [Note(name, f"takes no Pods of ours: {broken.sentence()}") for broken in node]

    def add_pods(self, pods: Iterable[dict[str, Any]]) -> None:
        """The Pods there are; only those bound to a node and not finished hold anything.

        Those whose cards are told come first, so that the others are guessed around them.
        """
        untold = []
        for obj in pods:
            name = _bound_to(obj)
            if name is None or kube.is_finished(obj):
                continue
            claim = dialects.parse_pod(obj, self.rules)
            if not isinstance(claim, Claim):
                if claim is not None:
                    self.notes.append(
                        Note(f"{pod_key(obj)} on {name}", f"its GPU is not counted: {claim[0].sentence()}")
                    )
                self._book_without_cards(obj, name)
                continue
            self.chooser.observe(claim)
            grant = dialects.parse_grant(obj, claim, self.board.node(name))
            if isinstance(grant, Grant):
                self._book(claim, grant)
            else:
                untold.append((obj, name, claim, grant))
        for obj, name, claim, broken in untold:
            self._guess(obj, name, claim, broken)

    def _book(self, claim: Claim, grant: Grant) -> None:
        self.running[claim.key] = grant
        self.ledger.confirm(claim.uid, grant.node, occupant_of(claim, grant))

    def _book_without_cards(self, obj: dict[str, Any], name: str) -> None:
        """A Pod of whose cards we know nothing, if it has any, still takes its CPU and memory, and its place."""
        cpu, memory = kube.pod_request(obj)
        occupant = Occupant({}, cpu_milli=cpu, memory_mib=memory, daemon=kube.is_daemon(obj))
        self.ledger.confirm(_uid(obj), name, occupant)

    def _guess(self, obj: dict[str, Any], name: str, claim: Claim, broken: tuple[Invalid, ...] | None) -> None:
        """Where a Pod most likely sits that was scheduled past us."""
        why = broken[0].sentence() if broken else "no annotation tells its cards"
        row = self.board.row_of.get(name)
        known = row is not None and bool(self.board.present[row])
        grant = self.chooser.seat(claim, row) if known and row is not None else None
        if grant is None:
            reason = "and none of the node's has room" if known else "and its node is not among those given"
            self.notes.append(Note(f"{claim.key} on {name}", f"its GPU is not counted: {why}, {reason}"))
            self._book_without_cards(obj, name)
            return
        cards = sorted({share.card for container in grant.containers for share in container.shares})
        where = f"card{'s' * (len(cards) > 1)} {', '.join(map(str, cards))}"
        self.notes.append(Note(f"{claim.key} ({where} of {name})", f"the place is a guess: {why}"))
        self.guessed.add(claim.key)
        self._book(claim, grant)

    # --- placing -------------------------------------------------------------------------------------------

    def place(self, obj: dict[str, Any], *, why_not_elsewhere: bool = True, book: bool = True) -> Verdict:
        """Where the Pod goes, booked unless that is not wanted; or every reason why not.

        A Pod that has a place is told the refusals of the other nodes too, unless that is not wanted.
        """
        key = pod_key(obj)
        claim = dialects.parse_pod(obj, self.rules)
        if claim is None:
            return Verdict(key, remark="asks for no GPU in any of the dialects: not ours to place")
        if not isinstance(claim, Claim):
            return Verdict(key, broken=claim)
        if claim.key in self.running:
            return Verdict(key, claim, self.running[claim.key], remark="runs there already")
        self.chooser.observe(claim)
        gate = self._gate(obj, claim)
        grant = self.chooser.choose(claim, np.flatnonzero(gate.rows))
        refusals = self._refusals(claim, gate) if grant is None or why_not_elsewhere else ()
        if grant is not None and book:
            self.ledger.confirm(self._new_uid(claim), grant.node, occupant_of(claim, grant))
        return Verdict(key, claim, grant, refusals=refusals)

    def _refusals(self, claim: Claim, gate: _Gate) -> tuple[Refusal, ...]:
        """Every reason, of Kubernetes and ours. Replicas that all do not fit share one answer: nothing changed."""
        demand, told, clock = demand_of(claim), self._told, self.board.clock
        if told is None or told[0] != demand or told[1] is not gate or told[2] != clock:
            told = (demand, gate, clock, (*gate.closed, *self.chooser.refusals(claim)))
            self._told = told
        return told[3]

    def _gate(self, obj: dict[str, Any], claim: Claim) -> _Gate:
        """What Kubernetes says; worked out once per kind of Pod."""
        spec = obj.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        try:
            key = json.dumps([dialects.tolerations(claim), *(spec.get(gate) for gate in _GATES)], default=str)
        except (ValueError, RecursionError):  # nested deeper than anything Kubernetes would take
            return self._asked(obj, claim)
        if key not in self._gates:
            self._gates[key] = self._asked(obj, claim)
        return self._gates[key]

    def _asked(self, obj: dict[str, Any], claim: Claim) -> _Gate:
        rows = self.board.present[: self.board.rows].copy()
        closed = [
            Refusal(name, None, Reason.INVALID, None, broken[0].sentence(), never=True)
            for name, broken in self.unusable.items()
        ]
        for name, node in self.nodes.items():
            refusals = kube.node_refusals(obj, claim, node)
            if refusals:
                closed += refusals
                rows[self.board.row_of[name]] = False
        return _Gate(rows, tuple(closed))

    def _new_uid(self, claim: Claim) -> str:
        """The claim's UID, or one of our own where manifests without a UID share a name."""
        uid, more = claim.uid, 1
        while self.ledger.get(uid) is not None:
            more += 1
            uid = f"{claim.uid}#{more}"
        return uid


def take_snapshot(objects: Iterable[object], *, policy: str, rules: Rules) -> Snapshot:
    """The cluster that these objects show, in whatever order they come. Other kinds than the three are ignored."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for obj in objects:
        if isinstance(obj, dict):
            kinds.setdefault(str(obj.get("kind")), []).append(obj)
    board = Board()
    snapshot = Snapshot(board, Ledger(board), Chooser(board, POLICIES[policy]()), rules)
    unhealthy: dict[str, frozenset[int]] = {}
    for obj in kinds.get("ConfigMap", []):
        sick = dialects.parse_unhealthy(obj)
        if isinstance(sick, Invalid):
            snapshot.notes.append(Note(pod_key(obj), f"is not heeded: {sick.sentence()}"))
        elif sick is not None:
            unhealthy[sick[0]] = sick[1]
    for obj in kinds.get("Node", []):
        snapshot.add_node(obj, unhealthy.get(_name(obj), frozenset()))
    snapshot.add_pods(kinds.get("Pod", []))
    return snapshot


def _metadata(obj: dict[str, Any]) -> dict[str, Any]:
    metadata = obj.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _name(obj: dict[str, Any]) -> str:
    name = _metadata(obj).get("name")
    return name if isinstance(name, str) else ""


def pod_key(obj: dict[str, Any]) -> str:
    """namespace/name, even where they are not what they should be."""
    metadata = _metadata(obj)
    namespace, name = metadata.get("namespace"), metadata.get("name")
    name = metadata.get("generateName") if name in (None, "") else name
    return "/".join(
        each if isinstance(each, str) and each else missing if each in (None, "") else show(each)
        for each, missing in ((namespace, "default"), (name, "(no name)"))
    )


def _uid(obj: dict[str, Any]) -> str:
    uid = _metadata(obj).get("uid")
    return uid if isinstance(uid, str) and uid else pod_key(obj)


def _bound_to(obj: dict[str, Any]) -> str | None:
    spec = obj.get("spec")
    name = spec.get("nodeName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) and name else None
