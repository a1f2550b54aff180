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
from aliquot.model.refusal import Invalid, Reason, Refusal
from aliquot.placement.board import Board, Bools, Occupant
from aliquot.placement.book import Ledger, occupant_of
from aliquot.placement.choose import POLICIES, Chooser

# What of a Pod's spec decides which nodes kube-scheduler lets it on.
_GATES = ("nodeName", "nodeSelector", "affinity", "tolerations")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one Pod. Not ours: no claim, no grant, nothing broken."""

    pod: str
    claim: Claim | None = None
    grant: Grant | None = None
    broken: tuple[Invalid, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ours(self) -> bool:
        """Whether the Pod speaks one of the dialects."""
        return self.claim is not None or bool(self.broken)

    @property
    def fits(self) -> bool:
        """Whether it has a place, or needs none of ours."""
        return self.grant is not None or not self.ours


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
    notes: list[str] = field(default_factory=list)
    _gates: dict[str, tuple[Bools, tuple[Refusal, ...]]] = field(default_factory=dict)

    # --- taking in what is there ---------------------------------------------------------------------------

    def add_node(self, obj: dict[str, Any], unhealthy: frozenset[int]) -> None:
        """One Node object."""
        node = dialects.parse_node(obj, self.rules, unhealthy)
        name = _name(obj)
        if isinstance(node, Node):
            self.nodes[node.name] = obj
            self.board.set_node(node)
            self.notes += [f"{node.name}: {note}" for note in node.notes]
        else:
            self.unusable[name] = node
            self.notes += [f"{name}: {broken.sentence()}" for broken in node]

    def add_pod(self, obj: dict[str, Any]) -> None:
        """One Pod object; only those bound to a node and not finished hold anything."""
        name = _bound_to(obj)
        if name is None or kube.is_finished(obj):
            return
        claim = dialects.parse_pod(obj, self.rules)
        key = _key(obj)
        if not isinstance(claim, Claim):
            if claim is not None:
                self.notes.append(f"{key} runs on {name} and is not counted: {claim[0].sentence()}")
            cpu, memory = kube.pod_request(obj)
            self.ledger.confirm(
                _uid(obj), name, Occupant({}, cpu_milli=cpu, memory_mib=memory, daemon=kube.is_daemon(obj))
            )
            return
        self.chooser.observe(claim)
        grant = dialects.parse_grant(obj, claim, self.board.node(name))
        if not isinstance(grant, Grant):
            grant = self._guessed(claim, name, grant)
        if grant is None:
            self.notes.append(f"{key} runs on {name} and is not counted: nothing tells its cards, and none has room")
            return
        self.running[key] = grant
        self.ledger.confirm(claim.uid, name, occupant_of(claim, grant))

    def _guessed(self, claim: Claim, name: str, broken: tuple[Invalid, ...] | None) -> Grant | None:
        """Where a Pod most likely sits that was scheduled past us."""
        row = self.board.row_of.get(name)
        grant = None if row is None else self.chooser.seat(claim, row)
        if grant is not None:
            why = broken[0].sentence() if broken else "no annotation tells its cards"
            cards = sorted({share.card for container in grant.containers for share in container.shares})
            self.notes.append(f"{claim.key} on {name}: {why}; card {', '.join(map(str, cards))} assumed")
        return grant

    # --- placing -------------------------------------------------------------------------------------------

    def place(self, obj: dict[str, Any]) -> Verdict:
        """Where the Pod goes, booked; or every reason why not."""
        key = _key(obj)
        claim = dialects.parse_pod(obj, self.rules)
        if claim is None:
            return Verdict(key, notes=("asks for no GPU in any of the dialects: not ours to place",))
        if not isinstance(claim, Claim):
            return Verdict(key, broken=claim)
        if key in self.running:
            return Verdict(key, claim, self.running[key], notes=("runs there already",))
        self.chooser.observe(claim)
        open_rows, closed = self._open(obj, claim)
        grant = self.chooser.choose(claim, np.flatnonzero(open_rows))
        refusals = (*closed, *self.chooser.refusals(claim))
        if grant is not None:
            self.ledger.confirm(self._new_uid(claim), grant.node, occupant_of(claim, grant))
        return Verdict(key, claim, grant, refusals=refusals)

    def _open(self, obj: dict[str, Any], claim: Claim) -> tuple[Bools, tuple[Refusal, ...]]:
        """The rows Kubernetes lets the Pod on, and why not on the others; worked out once per kind of Pod."""
        spec = obj.get("spec") if isinstance(obj.get("spec"), dict) else {}
        key = json.dumps([dialects.tolerations(claim), *((spec or {}).get(gate) for gate in _GATES)], default=str)
        if key not in self._gates:
            rows = self.board.present[: self.board.rows].copy()
            closed = [
                Refusal(name, None, Reason.INVALID, None, broken[0].sentence(), never=True)
                for name, broken in self.unusable.items()
            ]
            for name, node in self.nodes.items():
                refusals = kube.node_refusals(obj, claim, node)
                closed += refusals
                rows[self.board.row_of[name]] &= not refusals
            self._gates[key] = (rows, tuple(closed))
        return self._gates[key]

    def _new_uid(self, claim: Claim) -> str:
        """The claim's UID, or one of our own where manifests without a UID share a name."""
        uid, more = claim.uid, 1
        while self.ledger.get(uid) is not None:
            more += 1
            uid = f"{claim.uid}#{more}"
        return uid


def take_snapshot(objects: Iterable[object], *, policy: str, rules: Rules) -> Snapshot:
    """The cluster that these objects show, in whatever order they come. Other kinds than the three are ignored."""
    kinds: dict[object, list[dict[str, Any]]] = {}
    for obj in objects:
        if isinstance(obj, dict):
            kinds.setdefault(obj.get("kind"), []).append(obj)
    board = Board()
    snapshot = Snapshot(board, Ledger(board), Chooser(board, POLICIES[policy]()), rules)
    unhealthy: dict[str, frozenset[int]] = {}
    for obj in kinds.get("ConfigMap", []):
        sick = dialects.parse_unhealthy(obj)
        if isinstance(sick, Invalid):
            snapshot.notes.append(sick.sentence())
        elif sick is not None:
            unhealthy[sick[0]] = sick[1]
    for obj in kinds.get("Node", []):
        snapshot.add_node(obj, unhealthy.get(_name(obj), frozenset()))
    # Pods whose cards are told come first, so that those whose cards must be guessed are guessed around them.
    for obj in sorted(kinds.get("Pod", []), key=_tells_nothing):
        snapshot.add_pod(obj)
    return snapshot


def _tells_nothing(obj: dict[str, Any]) -> bool:
    metadata = obj.get("metadata")
    return not (isinstance(metadata, dict) and metadata.get("annotations"))


def _name(obj: dict[str, Any]) -> str:
    metadata = obj.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _key(obj: dict[str, Any]) -> str:
    metadata = obj.get("metadata")
    found = metadata if isinstance(metadata, dict) else {}
    name = found.get("name") or found.get("generateName") or "(no name)"
    return f"{found.get('namespace') or 'default'}/{name}"


def _uid(obj: dict[str, Any]) -> str:
    metadata = obj.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    return uid if isinstance(uid, str) and uid else _key(obj)


def _bound_to(obj: dict[str, Any]) -> str | None:
    spec = obj.get("spec")
    name = spec.get("nodeName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) and name else None
