"""The cluster: what the API server sent, what we decided and it has not confirmed yet, and the board of both.

The scheduler feeds it from watches; `explain`, `kubectl aliquot` and `doctor` fill it from lists, so that they cannot
disagree with the scheduler.

No IO, no clock, no await: every method takes what has happened and leaves the board right. So nothing can come between
a decision and its booking, and a test needs no API server.

    a Pod is   pending    no node yet; what it asks for is known
               assumed    we sent it to a node; the API server has not confirmed
               placed     on a node, says the API server

Everything here can be rebuilt from the API server: nothing else is kept anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import structs

from aliquot import dialects
from aliquot.dialects import MemoryUnit, NodeReader, PodReader, Rules, gpushare
from aliquot.dialects.wire.objects import ConfigMapObject, NodeObject, PodObject
from aliquot.dialects.wire.views import Names, pod_names
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid, Reason, Refusal
from aliquot.placement.board import Board, Ints, Occupant
from aliquot.placement.book import Ledger, occupant_of
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.placement.preemption.reservations import Reservations
from aliquot.services.scheduler.candidates import Candidates, Filtered
from aliquot.services.scheduler.cluster.nodes import ReportedNodes
from aliquot.services.scheduler.cluster.pods import BoundPodReader, Pending, Placed
from aliquot.services.scheduler.roster import Roster

NEVER = float("inf")  # the deadline of what only the API server may end


@dataclass(slots=True)
class Cluster:
    """See the head of the file."""

    policy: str
    rules: Rules = dialects.DEFAULT_RULES
    shortlist: int = 0  # how many of the nodes that fit a Pod's first filter call answers; 0: all
    says_mib: bool = False  # by the command line gpu-mem is counted in MiB, on all nodes
    board: Board = field(default_factory=Board)
    pending: dict[str, Pending] = field(default_factory=dict)  # by uid, as all of these
    assumed: dict[str, Placed] = field(default_factory=dict)
    held: dict[str, Placed] = field(default_factory=dict)  # kept before anything was sent: may be dropped at any time
    placed: dict[str, Placed] = field(default_factory=dict)
    unseated: dict[str, PodObject] = field(default_factory=dict)  # those of `placed` for which no card was found
    reported: ReportedNodes = field(default_factory=ReportedNodes)
    claimants: dict[str, PodObject] = field(default_factory=dict)  # Pods without a node that ask by claims alone
    seen: dict[str, str] = field(default_factory=dict)  # key -> uid of every Pod there is
    priorities: dict[str, int] = field(default_factory=dict)  # of Pods on nodes; most have 0, which is left out
    going: dict[str, str] = field(default_factory=dict)  # Pods on nodes that terminate, and until when they may
    groups: Roster = field(default_factory=Roster)  # PodGroups and their members
    ledger: Ledger = field(init=False)
    reserved: Reservations = field(init=False)
    chooser: Chooser = field(init=False)
    _candidates: Candidates = field(init=False)
    _reader: PodReader = field(init=False)
    _bound: BoundPodReader = field(init=False)
    _node_reader: NodeReader = field(init=False)
    _unnamed: dict[str, tuple[PodObject, Claim, str]] = field(default_factory=dict)  # guessed when a list ends
    _batch: ExitStack | None = None
    _lists: int = 0  # that are under way

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.board)
        self.reserved = Reservations(self.ledger)
        self.chooser = Chooser(self.board, POLICIES[self.policy]())
        self._candidates = Candidates(self.board, self.chooser, self.shortlist)
        self._read_by(self.rules)

    def _read_by(self, rules: Rules) -> None:
        self.rules, self._reader, self._node_reader = rules, PodReader(rules), NodeReader(rules)
        self._bound = BoundPodReader(rules, self._reader)

    # --- lists ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Many changes follow; the board is worked out once, at their end."""
        self._lists += 1
        if self._batch is None:
            self._batch = ExitStack()
            self._batch.enter_context(self.board.together())

    def end(self) -> None:
        """The list is complete. Pods whose cards no annotation names are guessed around those that have one."""
        self.break_off()
        if self._lists:  # Nodes were listed while Pods are
            return
        unnamed, self._unnamed = self._unnamed, {}
        for pod, claim, why in unnamed.values():
            self._guess(pod, claim, why)

    def break_off(self) -> None:
        """The list ends before it is complete, and another follows: nothing can be guessed yet."""
        self._lists = max(0, self._lists - 1)
        if self._batch is not None and not self._lists:
            self._batch.close()
            self._batch = None
            self.reserved.renew_all()

    # --- nodes ------------------------------------------------------------------------------------------------

    def set_node(self, node: NodeObject) -> None:
        """A node is there, or has changed."""
        reported = self.reported.set(node, self._node_reader)
        if reported is None:
            self.board.drop_node(node.metadata.name)
        else:
            self._show(reported)

    def show_again(self, name: str) -> None:
        """The DRA drivers that name this node have changed."""
        self._show(self.reported.set_others(name))

    def _show(self, node: Node | None) -> None:
        """Put the node on the board, where there is one to show."""
        if node is None:
            return
        before = self.board.node(node.name)
        if before is not None and before == node:
            return
        self.board.set_node(node)
        if before is None or before.cards != node.cards:
            self._reseat(node)
            for pod in list(self.unseated.values()):
                if pod.spec.node_name == node.name:
                    self._set_bound(pod, pod_names(pod), node.name)

    def drop_node(self, name: str) -> None:
        """A node is gone; what runs there stays booked until its Pods are gone too."""
        self.reported.drop(name)
        self.board.drop_node(name)

    def _reseat(self, node: Node) -> None:
        """Cards are who their UUID says: what is booked follows them when their numbers change over a reboot."""
        booked = [booking.uid for booking in self.ledger.on(node.name)]
        if not booked:
            return
        today = {card.uuid: card.index for card in node.cards if card.uuid}
        for uid in booked:
            self.release_hold(uid)
            for known in (self.placed, self.assumed):
                placed = known.get(uid)
                if placed is None or not today:
                    continue
                grant = _renumbered(placed.grant, today)
                if grant != placed.grant:
                    known[uid] = structs.replace(placed, grant=grant)
                    self.ledger.confirm(uid, node.name, occupant_of(placed.claim, grant))

    def set_unhealthy(self, config: ConfigMapObject) -> Invalid | None:
        """A ConfigMap is there, or has changed. Those that take cards out are heeded; an Invalid for a broken one."""
        unhealthy = dialects.parse_unhealthy(_as_json(config))
        if isinstance(unhealthy, Invalid):
            return unhealthy
        if unhealthy is not None:
            self._show(self.reported.set_sick(*unhealthy))
        return None

    def drop_unhealthy(self, key: str) -> None:
        """A ConfigMap is gone."""
        names = dict(zip(("namespace", "name"), key.split("/", 1), strict=True))
        unhealthy = dialects.parse_unhealthy({"metadata": names})
        if unhealthy is not None and not isinstance(unhealthy, Invalid):
            self._show(self.reported.set_sick(unhealthy[0], frozenset()))

    @property
    def admission_rules(self) -> Rules:
        """The rules for Pods that are created now. A node that counts gpu-mem may also come later, by an autoscaler."""
        expected = self.says_mib and not self.reported.placeless
        return replace(self.rules, counted=bool(self.reported.counted) or expected)

    @property
    def holds_gpu_mem(self) -> bool:
        """Whether any Pod of gpushare is booked: what it has was read in the present unit."""
        booked = (placed for known in (self.assumed, self.held, self.placed) for placed in known.values())
        return any(placed.claim.dialect == gpushare.DIALECT for placed in booked)

    def use_unit(self, unit: MemoryUnit) -> bool:
        """From now on gpu-mem is counted in that. True where it was not: Pods read before must be read again."""
        if unit is self.rules.gpushare_unit:
            return False
        self._read_by(replace(self.rules, gpushare_unit=unit))
        return True

    # --- Pods -------------------------------------------------------------------------------------------------

    def read(self, pod: PodObject) -> Claim | tuple[Invalid, ...] | None:
        """What the Pod asks for, in any dialect."""
        return self._reader.read(pod).claim

    def set_pod(self, pod: PodObject) -> None:
        """A Pod is there, or has changed."""
        names = pod_names(pod)
        key = f"{names.namespace}/{names.name}"
        before = self.seen.get(key)
        if before is not None and before != names.uid:  # gone and made anew between two looks
            self._forget(before)
        self.seen[key] = names.uid
        if pod.finished:
            self._forget(names.uid)
        elif pod.spec.node_name:
            self._set_bound(pod, names, pod.spec.node_name)
        else:
            self._set_pending(pod, key, names)
        self.groups.observe(pod, names)

    def drop_pod(self, key: str) -> None:
        """A Pod is gone."""
        uid = self.seen.pop(key, None)
        if uid is not None:
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        booking = self.ledger.get(uid)
        self.reserved.drop(uid)
        self.ledger.forget(uid)
        if booking is not None and self._batch is None:
            self.reserved.renew(booking.node)
        for known in (self.pending, self.claimants, self.assumed, self.placed, self._unnamed, self.unseated):
            known.pop(uid, None)
        self.held.pop(uid, None)
        self._candidates.forget(uid)
        self.priorities.pop(uid, None)
        self.going.pop(uid, None)
        self.groups.forget(uid)

    def _set_pending(self, pod: PodObject, key: str, names: Names) -> None:
        uid = names.uid
        claim = self._reader.read(pod, names).claim
        self.claimants.pop(uid, None)
        held_back = pod.metadata.deletion_timestamp is not None or bool(pod.spec.scheduling_gates)
        if claim is None or held_back:
            self.pending.pop(uid, None)
            if pod.spec.resource_claims and not held_back:
                self.claimants[uid] = pod
            return
        if uid not in self.pending and isinstance(claim, Claim):
            self.chooser.observe(claim)
        scheduler = pod.spec.scheduler_name or "default-scheduler"
        self.pending[uid] = Pending(
            key,
            uid,
            claim,
            pod.refused,
            scheduler,
            pod.metadata.creation_timestamp,
            pod.spec.tolerations or (),
            pod.spec.priority or 0,
            pod.spec.preemption_policy != "Never",
            (pod.status.nominated_node_name if pod.status else None) or "",
        )

    def _set_bound(self, pod: PodObject, names: Names, name: str) -> None:
        uid = names.uid
        self.pending.pop(uid, None)
        self.claimants.pop(uid, None)
        self.held.pop(uid, None)
        self._candidates.forget(uid)
        self._unnamed.pop(uid, None)
        self.unseated.pop(uid, None)
        self.reserved.drop(uid)
        assumed = self.assumed.pop(uid, None)
        if pod.spec.priority:
            self.priorities[uid] = pod.spec.priority
        if pod.metadata.deletion_timestamp is not None:
            self.going[uid] = pod.metadata.deletion_timestamp
        held = self._bound.read(pod, names, name, self.board.node(name), known=self.placed.get(uid), assumed=assumed)
        if isinstance(held, Placed):
            self._place(held)
        elif isinstance(held, Occupant):
            self.placed.pop(uid, None)
            self.ledger.confirm(uid, name, held)
        elif self._batch is not None:
            self._unnamed[uid] = (pod, *held)
        else:
            self._guess(pod, *held)

    def doubt(self, placed: Placed) -> str | None:
        """Why its cards are a guess: no annotation names them, or a peer's does, by a number that no card has now."""
        if placed.claim.uid in self.unseated:
            return f"{placed.doubt}, and no card of the node has room for it"
        unnamed = {share.card for container in placed.grant.containers for share in container.shares if not share.uuid}
        node = self.board.node(placed.grant.node) if unnamed and placed.doubt is None else None
        lost = sorted(unnamed - {card.index for card in node.cards}) if node and node.cards else []
        return f"its annotation names card {lost[0]}, which the node does not have" if lost else placed.doubt

    def _place(self, placed: Placed) -> None:
        self.placed[placed.claim.uid] = placed
        self.ledger.confirm(placed.claim.uid, placed.grant.node, occupant_of(placed.claim, placed.grant))

    def _guess(self, pod: PodObject, claim: Claim, why: str) -> None:
        """Book the cards that a Pod most likely has which was scheduled past us."""
        name = pod.spec.node_name or ""
        row = self.board.row_of.get(name)
        grant = None
        if row is not None and self.board.present[row]:
            self.ledger.forget(claim.uid)
            grant = self.chooser.seat(claim, row)
        if grant is None:  # no card of the node has room, or the node is not known: its CPU and its place still count
            grant = Grant(claim.uid, name, ())
            self.unseated[claim.uid] = pod
        self._place(Placed(claim, grant, why))

    # --- deciding ---------------------------------------------------------------------------------------------

    def filter(self, claim: Claim, names: Sequence[str]) -> Filtered:
        """Which of the nodes would take the claim now."""
        self.release_hold(claim.uid)
        if claim.uid not in self.reserved:
            return self._candidates.filter(claim, names)
        with self.reserved.aside(claim.uid):
            return self._candidates.filter(claim, names)

    def rank(self, claim: Claim, names: Sequence[str], top: int = 10) -> tuple[Ints, Grant | None]:
        """0 (worst) to `top` for each name, and the grant of the best of them, the only one with `top`."""
        if claim.uid not in self.reserved:
            return self._candidates.rank(claim, names, top)
        with self.reserved.aside(claim.uid):
            return self._candidates.rank(claim, names, top)

    def hold(self, claim: Claim, grant: Grant, deadline: float) -> None:
        """Keep the place that the claim will most likely get, so that the next claim is not sent there too."""
        if self.ledger.get(claim.uid) is None and not isinstance(self.ledger.assume(claim, grant, deadline), list):
            self.held[claim.uid] = Placed(claim, grant)

    def release_hold(self, uid: str) -> None:
        """The claim is decided anew: what was kept for it is free again."""
        if self.held.pop(uid, None) is not None:
            self.ledger.forget(uid)

    def drop_late_holds(self, now: float) -> list[str]:
        """No bind came for these Pods in time."""
        late = []
        for uid in list(self.held):
            booking = self.ledger.get(uid)
            if booking is None or (booking.deadline is not None and booking.deadline <= now):
                self.release_hold(uid)
                late.append(uid)
        return late

    def assume(self, claim: Claim, name: str) -> Placed | list[Refusal]:
        """Decide the claim's cards on that node and book them, in one step. Held until the API server speaks."""
        self.reserved.drop(claim.uid)
        kept = self.held.pop(claim.uid, None)
        booking = self.ledger.get(claim.uid)
        # Anybody can call prioritize: what it kept counts only where the Pod is exactly the one that was sent then.
        same = kept is not None and kept.grant.node == name and kept.claim == claim
        if kept is not None and booking is not None and same and self.ledger.still_fits(booking, claim):
            self.ledger.confirm(claim.uid, name, booking.occupant)  # ours already; now it may not be dropped any more
            self.assumed[claim.uid] = kept
            return kept
        if kept is not None:
            self.ledger.forget(claim.uid)
        row = self.board.row_of.get(name)
        if row is None or not self.board.present[row]:
            return [Refusal(name, None, Reason.NOT_READY, None, None, False)]
        grant = self.chooser.seat(claim, row)
        if grant is None:
            return self.chooser.refusals(claim, np.array([row]))
        booked = self.ledger.assume(claim, grant, NEVER)
        if isinstance(booked, list):
            return booked
        placed = self.assumed[claim.uid] = Placed(claim, grant)
        return placed

    def unassume(self, uid: str) -> None:
        """Forget the booking: the API server says that the Pod was not bound."""
        if self.assumed.pop(uid, None) is not None:
            self.ledger.forget(uid)

    def fits_without(self, claim: Claim, name: str, uids: Iterable[str]) -> bool:
        """Whether the node would take the claim if those Pods were gone. Nothing changes."""
        row = self.board.row_of.get(name)
        if row is None or not self.board.present[row]:
            return False
        gone = [booking for uid in uids if (booking := self.ledger.get(uid)) is not None and booking.node == name]
        for booking in gone:
            self.board.release(name, booking.occupant)
        try:
            return self.chooser.seat(claim, row) is not None
        finally:
            for booking in gone:
                self.board.take(name, booking.occupant)

    def is_tentative(self, uid: str) -> bool:
        """Whether what is booked for it is our decision only: the Pod is not on its node yet, and cannot be evicted."""
        return uid in self.assumed or uid in self.held or uid in self.reserved

    def placement(self, uid: str) -> Placed | None:
        """Where the Pod is, by the API server or by our decision; None without a node, or without a claim of ours."""
        return self.assumed.get(uid) or self.placed.get(uid)

    def placements(self) -> Iterable[Placed]:
        """The placements of all Pods of ours that have a node."""
        return (*self.placed.values(), *self.assumed.values())

    def nodes(self) -> Iterable[Node]:
        """All nodes that can take Pods, by name."""
        return sorted((node for node in self.board.nodes if node is not None), key=lambda node: node.name)


def _renumbered(grant: Grant, today: dict[str, int]) -> Grant:
    return structs.replace(
        grant,
        containers=tuple(
            structs.replace(
                container,
                shares=tuple(
                    structs.replace(share, card=today.get(share.uuid, share.card)) for share in container.shares
                ),
            )
            for container in grant.containers
        ),
    )


def _as_json(config: ConfigMapObject) -> dict[str, object]:
    return {"metadata": {"name": config.metadata.name, "namespace": config.metadata.namespace}, "data": config.data}
