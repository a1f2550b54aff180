"""One node, one Pod of a cluster, and why a Pod is where it is or waits. Computed on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from aliquot.dialects.dra import DIALECT
from aliquot.model import device
from aliquot.model.claim import AppClass, Claim, Usage
from aliquot.model.node import Node as ModelNode
from aliquot.model.status.dashboard import Card, FoundPod, Node, Pod, SearchResult, Tenant, WaitingPod
from aliquot.model.status.messages import Message, Refused, Wants
from aliquot.placement.demand import Demand, demand_of
from aliquot.placement.verdicts import FITS, verdict_of
from aliquot.services.scheduler.cluster import Cluster, Pending, Placed, booked_on
from aliquot.services.scheduler.dashboard import claimpods
from aliquot.services.scheduler.dashboard.claims import Claims
from aliquot.services.scheduler.dashboard.parts import epoch, pod_cards, tenant_of, unplaced_pod
from aliquot.services.scheduler.dashboard.refusals import group_lacks, invalid_nodes, no_fitting_node, refused_by_nodes
from aliquot.services.scheduler.groups.admission import known_shortfall
from aliquot.wording import messages

_FRESH = 10.0  # seconds that a reason is good for other Pods of its kind
_AT_ONCE = 4  # reasons computed for one list: each goes over all nodes
_MOST_KNOWN = 256


class Details:
    """The details of one cluster."""

    def __init__(self, cluster: Cluster, claims: Claims | None = None) -> None:
        self._cluster = cluster
        self.claims = Claims(cluster) if claims is None else claims
        self._reasons: dict[Demand, tuple[float, Message]] = {}  # by kind of Pod
        self._budget = (0.0, 0)  # for which list, and how many reasons were computed for it
        self._hurry = False  # whether the list before was incomplete
        self.behind = False  # whether the last list has reasons that are not computed yet

    # --- nodes -----------------------------------------------------------------------------------------------------

    def node(self, name: str) -> Node | None:
        """The node, its cards and their tenants."""
        cluster = self._cluster
        node = cluster.board.node(name)
        if node is None:
            return _node(name, self.trouble(name)) if name in cluster.reported.unusable else None
        tenants: dict[int, list[Tenant]] = {}
        for booking in cluster.ledger.on(name):
            placed = cluster.placement(booking.uid)
            if placed is None:  # it asked for no card
                continue
            for slot, use in booking.occupant.usage.items():
                tenants.setdefault(slot, []).append(tenant_of(placed.claim, use))
        claims = list(self.claims.on(name).held)
        for held in claims:
            for slot, use in held.usage.items():
                tenants.setdefault(slot, []).append(tenant_of(held.claim, use, held.users))
        used = booked_on(cluster.board, node, [held.usage for held in claims])
        cards = [_card(card, used[card.index], tenants.get(card.index, [])) for card in node.cards]
        return _node(name, self.trouble(name), node, cards, by_claims=name in cluster.reported.by_claims)

    def trouble(self, name: str) -> list[Message]:
        """What is wrong with the node."""
        cluster, node = self._cluster, self._cluster.board.node(name)
        out = 0 if node is None else sum(not card.usable for card in node.cards)
        return [
            *messages.invalid_node(cluster.reported.unusable.get(name, ())),
            *map(messages.closed, cluster.reported.closed.get(name, ())),
            *messages.other_plugins(cluster.reported.others.get(name, ())),
            *messages.cards_out(out),
            *(self.claims.on(name).unreadable if name in self.claims.troubled else ()),
        ]

    # --- Pods ------------------------------------------------------------------------------------------------------

    def pod(self, key: str) -> Pod | None:
        """Where the Pod is and why, or why it waits."""
        cluster = self._cluster
        uid = cluster.seen.get(key, "")
        pending = cluster.pending.get(uid)
        placed = cluster.placement(uid)
        if placed is not None:
            return self._placed(placed, "Binding" if uid in cluster.assumed else "Running")
        if pending is not None:
            return self._pending(pending)
        return claimpods.page(cluster, self.claims, key, uid)

    def _placed(self, placed: Placed, phase: str) -> Pod:
        claim, grant = placed.claim, placed.grant
        node = self._cluster.board.node(grant.node)
        pod = unplaced_pod(claim.key, claim)
        pod.phase, pod.node, pod.why = phase, grant.node, [*self._why(placed, node)]
        pod.cards = pod_cards(grant.usage(), node)
        return pod

    def _why(self, placed: Placed, node: ModelNode | None) -> Iterator[Message]:
        claim, grant = placed.claim, placed.grant
        yield messages.requests(messages.wants_of_claim(claim), claim.dialect)
        if node is None:
            yield messages.node_gone(grant.node)
            return
        yield messages.offers(node.name, [*node.offer_names])
        usage = grant.usage()
        if usage:
            yield messages.promised(pod_cards(usage, node), claim.app_class, node.isolation)
            yield messages.chosen_by(self._cluster.policy, claim)
        board, row = self._cluster.board, self._cluster.board.row_of[node.name]
        for slot in usage:
            yield messages.shared_with(slot, int(board.used_slices[row, slot]) - 1 if slot < board.width else 0)
        if usage and not any(use.exclusive for use in usage.values()):
            yield messages.policy(node.isolation)
        doubt = self._cluster.doubt(placed)
        if doubt is not None:
            yield messages.guessed(doubt)

    def _pending(self, pending: Pending) -> Pod:
        claim = pending.claim
        if not isinstance(claim, Claim):
            pod = unplaced_pod(pending.key, None)
            pod.why = [messages.invalid_pod(broken) for broken in claim]
        else:
            pod = unplaced_pod(claim.key, claim)
            lacks, fits = known_shortfall(self._cluster, pending.uid), self._fits_on(claim)
            pod.why = [
                messages.requests(messages.wants_of_claim(claim), claim.dialect),
                messages.TRIED if pending.refused else messages.NOT_TRIED,
                *([group_lacks(lacks)] if lacks else [messages.fits_on(fits)] if fits else []),
            ]
            pod.refusals = self.refusals(claim)
        pod.since = epoch(pending.created)
        return pod

    def refusals(self, claim: Claim) -> list[Refused]:
        """Why not, with how many nodes and one of them; the reason of most nodes first."""
        board = self._cluster.board
        codes = self._cluster.chooser.why_not(claim)
        rows = np.flatnonzero(board.present[: board.rows] & (codes != FITS))
        found, first, counts = np.unique(codes[rows], return_index=True, return_counts=True)
        groups = [
            refused_by_nodes(*verdict_of(code), claim, count, board.names[rows[at]])
            for code, at, count in zip(found.tolist(), first.tolist(), counts.tolist(), strict=True)
        ]
        if self._cluster.reported.unusable:
            groups.append(invalid_nodes(self._cluster.reported.unusable))
        return sorted(groups, key=lambda group: -group.nodes)

    def _fits_on(self, claim: Claim) -> str | None:
        board = self._cluster.board
        rows = self._cluster.chooser.first_fitting(claim, np.flatnonzero(board.present[: board.rows]), 1)
        return board.names[int(rows[0])] if len(rows) else None

    # --- waiting Pods ----------------------------------------------------------------------------------------------

    def waiting(self, pending: Pending, now: float) -> WaitingPod:
        """One line of the list of that moment."""
        claim = pending.claim if isinstance(pending.claim, Claim) else None
        return WaitingPod(
            key=pending.key,
            app_class=AppClass.NORMAL if claim is None else claim.app_class,
            dialect=None if claim is None else claim.dialect,
            since=epoch(pending.created),
            reason=self._reason(pending, now),
            wants=Wants("", []) if claim is None else messages.wants_of_claim(claim),
        )

    def _reason(self, pending: Pending, now: float) -> Message:
        claim = pending.claim
        if not isinstance(claim, Claim):
            return messages.invalid_pod(claim[0] if claim else None)
        if not pending.refused:
            return messages.NOT_TRIED
        lacks = known_shortfall(self._cluster, pending.uid)
        if lacks is not None:
            return group_lacks(lacks)
        kind = demand_of(claim)
        known = self._reasons.get(kind)
        if self._budget[0] != now:
            self._budget, self._hurry, self.behind = (now, 0), self.behind, False
        if known is not None and (self._hurry or 0 <= now - known[0] < _FRESH):  # Pods without any come first
            return known[1]
        spent = self._budget[1]
        if spent >= _AT_ONCE:
            self.behind = self.behind or known is None
            return known[1] if known is not None else messages.WORKING
        self._budget = (now, spent + 1)
        if len(self._reasons) >= _MOST_KNOWN:
            self._reasons.clear()
        fits = self._fits_on(claim)
        reason = no_fitting_node(self.refusals(claim)) if fits is None else messages.fits_on(fits)
        self._reasons[kind] = (now, reason)
        return reason

    # --- search ----------------------------------------------------------------------------------------------------

    def search(self, words: str, limit: int, names: Sequence[str]) -> SearchResult:
        """Nodes and Pods whose name contains the words."""
        wanted, cluster = words.lower(), self._cluster
        keys = (key for key in cluster.seen if wanted in key.lower())
        pods = (found for key in keys if (found := self._found(key, cluster.seen[key])) is not None)
        nodes = islice((name for name in names if wanted in name.lower()), limit)
        return SearchResult(nodes=[*nodes], pods=[*islice(pods, limit)])

    def _found(self, key: str, uid: str) -> FoundPod | None:
        cluster = self._cluster
        placed = cluster.placement(uid)
        if placed is not None:
            phase = "Binding" if uid in cluster.assumed else "Running"
            return FoundPod(key, placed.grant.node, placed.claim.app_class, phase)
        pending = cluster.pending.get(uid)
        if pending is None:
            return claimpods.found(cluster, self.claims, key, uid)
        app_class = pending.claim.app_class if isinstance(pending.claim, Claim) else AppClass.NORMAL
        return FoundPod(key, None, app_class, "Pending")


def _card(card: device.Card, used: Usage, tenants: list[Tenant]) -> Card:
    return Card(
        index=card.index,
        uuid=card.uuid,
        model=card.model,
        healthy=card.usable,
        why_out=_why_out(card),
        memory_mib=card.memory_mib,
        memory_booked_mib=used.memory_mib,
        memory_used_mib=None,
        core_booked=used.booked_milli / 10,
        greedy_booked=used.greedy_milli / 10,
        busy=None,
        exclusive=bool(used.exclusive),
        tenants=tenants,
    )


def _why_out(card: device.Card) -> Message | None:
    if card.usable:
        return None
    return messages.withheld(card.withheld) if card.healthy and card.withheld else messages.OUT


def _node(
    name: str,
    trouble: list[Message],
    node: ModelNode | None = None,
    cards: Sequence[Card] = (),
    *,
    by_claims: bool = False,
) -> Node:
    """`node` None: it breaks a rule."""
    return Node(
        name=name,
        offers=[] if node is None else [*node.offer_names, *([DIALECT] if by_claims else [])],
        policy="" if node is None else node.isolation.value,
        trouble=trouble,
        notes=[] if node is None else messages.assumed(node.notes),
        cards=[*cards],
    )
