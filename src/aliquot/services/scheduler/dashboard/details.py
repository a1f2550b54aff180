"""One node, one Pod of a cluster, and why a Pod is where it is or waits. Worked out when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import numpy as np

from aliquot.model.claim import Claim, Usage
from aliquot.model.device import Card
from aliquot.model.node import Isolation, Node, Offer
from aliquot.model.refusal import Invalid
from aliquot.placement.demand import Demand, demand_of
from aliquot.placement.verdicts import FITS, verdict_of
from aliquot.services.dashboard.contract import Json
from aliquot.services.scheduler.cluster import Cluster, Pending, Placed
from aliquot.wording.refusals import short_reason
from aliquot.wording.requests import wants

_FRESH = 10.0  # seconds that a reason is good for other Pods of its kind
_AT_ONCE = 4  # reasons worked out for one list: each goes over all nodes
_MOST_KNOWN = 256
_MOST_TOLD = 3  # of the reasons, in one sentence

_PREFERS = {
    "binpack": "binpack: of the nodes and cards with room, the fullest",
    "spread": "spread: of the nodes and cards with room, the emptiest",
    "fgd": "fgd: where least of what is free is spoiled for the Pods still to come",
    "dense": "dense: where the remainders of the cards stay worth most to the Pods still to come",
}
_WHY_OUT = "its node says that it is sick, a ConfigMap takes it out, or the node's agent is away"
_PROMISES = {
    Isolation.BEST_EFFORT: "best-effort: who has work shares the card evenly",
    Isolation.FIXED_SHARE: "fixed-share: each has its quota of the compute and no more",
    Isolation.BURST_SHARE: "burst-share: each has its quota at least, and what the others leave",
}


class Details:
    """Of one cluster. `known_reason` is why Pods of a kind wait, where somebody has worked that out already."""

    def __init__(self, cluster: Cluster, known_reason: Callable[[Claim], str | None]) -> None:
        self._cluster, self._known_reason = cluster, known_reason
        self._reasons: dict[Demand, tuple[float, str]] = {}
        self._budget = (0.0, 0)  # for which list, and how many reasons were worked out for it
        self._hurry = False  # whether the list before was not whole
        self.behind = False  # whether the last list has reasons in it that are not worked out yet

    # --- nodes -----------------------------------------------------------------------------------------------------

    def node(self, name: str) -> Json | None:
        """The node, its cards and who is on them."""
        cluster = self._cluster
        node = cluster.board.node(name)
        if node is None:
            return self._broken(name)
        tenants: dict[int, list[Json]] = {}
        for booking in cluster.ledger.on(name):
            placed = cluster.placed.get(booking.uid) or cluster.assumed.get(booking.uid)
            if placed is None:  # it asked for no card
                continue
            for slot, use in booking.occupant.usage.items():
                tenants.setdefault(slot, []).append(_tenant(placed.claim, use))
        return {
            "name": name,
            "offers": [offer.value for offer in Offer if offer in node.offers],
            "policy": node.isolation.value,
            "release_delay_seconds": None,
            "trouble": self.trouble(name),
            "notes": [*node.notes],
            "cards": [self._card(name, card, tenants.get(card.index, [])) for card in node.cards],
            "timeline": None,
        }

    def _broken(self, name: str) -> Json | None:
        if name not in self._cluster.unusable:
            return None
        return {
            "name": name,
            "offers": [],
            "policy": "",
            "release_delay_seconds": None,
            "trouble": self.trouble(name),
            "notes": [],
            "cards": [],
            "timeline": None,
        }

    def _card(self, name: str, card: Card, tenants: list[Json]) -> Json:
        board = self._cluster.board
        at = (board.row_of[name], card.index)
        return {
            "index": card.index,
            "uuid": card.uuid,
            "model": card.model,
            "healthy": card.healthy,
            "why_out": None if card.healthy else _WHY_OUT,
            "memory_mib": card.memory_mib,
            "memory_booked_mib": int(board.used_memory[at]),
            "memory_used_mib": None,
            "core_booked": int(board.used_core[at]) / 10,
            "greedy_booked": int(board.used_greedy[at]) / 10,
            "busy": None,
            "exclusive": bool(board.exclusive[at]),
            "tenants": tenants,
        }

    def trouble(self, name: str) -> list[str]:
        """What is wrong with the node, in a word each."""
        cluster, node = self._cluster, self._cluster.board.node(name)
        out = 0 if node is None else sum(not card.healthy for card in node.cards)
        return [
            *(each.sentence() for each in cluster.unusable.get(name, ())),
            *cluster.closed.get(name, ()),
            *([f"{out} card{'s' * (out > 1)} out"] if out else []),
        ]

    # --- Pods ------------------------------------------------------------------------------------------------------

    def pod(self, key: str) -> Json | None:
        """Where it is and why, or why it waits."""
        cluster = self._cluster
        uid = cluster.seen.get(key, "")
        waits = cluster.pending.get(uid)
        placed = cluster.placed.get(uid) or cluster.assumed.get(uid)
        if placed is not None:
            return self._placed(placed, "Binding" if uid in cluster.assumed else "Running")
        return None if waits is None else self._pending(waits)

    def _placed(self, placed: Placed, phase: str) -> Json:
        claim, grant = placed.claim, placed.grant
        node = self._cluster.board.node(grant.node)
        uuids = {card.index: card.uuid for card in node.cards} if node else {}
        return {
            **_about(claim),
            "phase": phase,
            "node": grant.node,
            "cards": [
                {"index": slot, "uuid": uuids.get(slot, ""), "memory_mib": use.memory_mib, **_compute(use)}
                for slot, use in grant.usage().items()
            ],
            "since": None,
            "why": [*self._why(placed, node)],
            "refusals": [],
        }

    def _why(self, placed: Placed, node: Node | None) -> Iterator[str]:
        claim, grant = placed.claim, placed.grant
        yield f"It asks for {wants(claim)}, in the words of {claim.dialect}."
        if node is None:
            yield f"{grant.node} is gone; what it holds there counts until Kubernetes says that it is gone too."
            return
        offers = ", ".join(offer.value for offer in Offer if offer in node.offers)
        yield f"{node.name} offers {offers or 'nothing of ours any more'}."
        if grant.usage():
            yield f"Chosen by {_PREFERS[self._cluster.policy]}."
        board, row = self._cluster.board, self._cluster.board.row_of[node.name]
        for slot in grant.usage():
            others = int(board.used_slices[row, slot]) - 1 if slot < board.width else 0
            sharing = f"{others} other{'s share' if others > 1 else ' shares'} it" if others > 0 else "nobody shares it"
            yield f"Card {slot}: {sharing}."
        if len(grant.usage()) and not any(use.exclusive for use in grant.usage().values()):
            yield f"There, {_PROMISES[node.isolation]}."
        doubt = self._cluster.doubt(placed)
        if doubt is not None:
            yield f"Its cards are a guess: {doubt}."

    def _pending(self, pod: Pending) -> Json:
        claim = pod.claim
        if not isinstance(claim, Claim):
            return {
                **_about_broken(pod),
                "why": [f"It breaks a rule: {each.sentence()}" for each in claim],
                "refusals": [],
            }
        groups = self.refusals(claim)
        fits = self._fits_on(claim)
        tried = "has tried it and found no node" if pod.refused else "has not tried it yet"
        why = [f"It asks for {wants(claim)}, in the words of {claim.dialect}.", f"kube-scheduler {tried}."]
        why += [f"Its GPU would fit on {fits}: kube-scheduler has another reason, or tries it soon."] if fits else []
        return {
            **_about(claim),
            "phase": "Pending",
            "node": None,
            "cards": [],
            "since": _epoch(pod.created),
            "why": why,
            "refusals": groups,
        }

    def refusals(self, claim: Claim) -> list[Json]:
        """Why not, with how many nodes say so and one of them; most first."""
        board = self._cluster.board
        codes = self._cluster.chooser.why_not(claim)
        rows = np.flatnonzero(board.present[: board.rows] & (codes != FITS))
        found, first, counts = np.unique(codes[rows], return_index=True, return_counts=True)
        groups = [
            {"reason": short_reason(*verdict_of(code), claim), "nodes": count, "example": board.names[rows[at]]}
            for code, at, count in zip(found.tolist(), first.tolist(), counts.tolist(), strict=True)
        ]
        broken = self._cluster.unusable
        if broken:
            groups.append({"reason": "the node breaks a rule", "nodes": len(broken), "example": min(broken)})
        return sorted(groups, key=lambda each: -int(each["nodes"]))

    def _fits_on(self, claim: Claim) -> str | None:
        board = self._cluster.board
        rows = self._cluster.chooser.first_fitting(claim, np.flatnonzero(board.present[: board.rows]), 1)
        return board.names[int(rows[0])] if len(rows) else None

    # --- those who wait --------------------------------------------------------------------------------------------

    def waiting(self, pod: Pending, now: float) -> Json:
        """One line of the list made at that time."""
        claim = pod.claim if isinstance(pod.claim, Claim) else None
        return {
            "key": pod.key,
            "class": "normal" if claim is None else claim.app_class.value,
            "dialect": None if claim is None else claim.dialect,
            "since": _epoch(pod.created),
            "reason": self._reason(pod, now),
            "wants": "" if claim is None else wants(claim),
        }

    def _reason(self, pod: Pending, now: float) -> str:
        claim = pod.claim
        if not isinstance(claim, Claim):
            return f"breaks a rule: {_first(claim)}"
        if not pod.refused:
            return "kube-scheduler has not tried it yet"
        told = self._known_reason(claim)
        if told is not None:
            return told
        demand = demand_of(claim)
        known = self._reasons.get(demand)
        if self._budget[0] != now:
            self._budget, self._hurry, self.behind = (now, 0), self.behind, False
        if known is not None and (self._hurry or 0 <= now - known[0] < _FRESH):  # those without any come first
            return known[1]
        spent = self._budget[1]
        if spent >= _AT_ONCE:
            self.behind = self.behind or known is None
            return known[1] if known is not None else "is being looked at"
        self._budget = (now, spent + 1)
        if len(self._reasons) >= _MOST_KNOWN:
            self._reasons.clear()
        sentence = self._sentence(claim)
        self._reasons[demand] = (now, sentence)
        return sentence

    def _sentence(self, claim: Claim) -> str:
        fits = self._fits_on(claim)
        if fits is not None:
            return f"its GPU would fit on {fits}: kube-scheduler has another reason, or tries it soon"
        groups = self.refusals(claim)
        if not groups:
            return "there is no node"
        nodes = sum(int(group["nodes"]) for group in groups)
        parts = [f"{group['nodes']:,}: {group['reason']}" for group in groups[:_MOST_TOLD]]
        more = [f"{len(groups) - _MOST_TOLD} more reasons"] if len(groups) > _MOST_TOLD else []
        return f"fits none of {nodes:,} node{'s' * (nodes != 1)}: {'; '.join(parts + more)}"

    # --- looking for one -------------------------------------------------------------------------------------------

    def search(self, words: str, limit: int, names: Sequence[str]) -> Json:
        """Nodes and Pods of ours whose name contains the words."""
        wanted, cluster = words.lower(), self._cluster
        keys = (key for key in cluster.seen if wanted in key.lower())
        pods = (found for key in keys if (found := self._found(key, cluster.seen[key])) is not None)
        return {
            "nodes": [*islice((name for name in names if wanted in name.lower()), limit)],
            "pods": [*islice(pods, limit)],
        }

    def _found(self, key: str, uid: str) -> Json | None:
        cluster = self._cluster
        placed = cluster.placed.get(uid) or cluster.assumed.get(uid)
        if placed is not None:
            phase = "Binding" if uid in cluster.assumed else "Running"
            return {"key": key, "node": placed.grant.node, "class": placed.claim.app_class.value, "phase": phase}
        waits = cluster.pending.get(uid)
        if waits is None:
            return None
        app_class = waits.claim.app_class.value if isinstance(waits.claim, Claim) else "normal"
        return {"key": key, "node": None, "class": app_class, "phase": "Pending"}


def _about(claim: Claim) -> Json:
    kind, _, rest = (claim.owner or "").partition("/")
    return {
        "key": claim.key,
        "kind": "pod",
        "class": claim.app_class.value,
        "dialect": claim.dialect,
        "containers": [{"name": container.name, "command": []} for container in claim.containers],
        "owner": f"{kind}/{rest.partition('/')[2]}" if claim.owner else None,
    }


def _about_broken(pod: Pending) -> Json:
    return {
        "key": pod.key,
        "kind": "pod",
        "class": "normal",
        "dialect": None,
        "phase": "Pending",
        "node": None,
        "cards": [],
        "containers": [],
        "owner": None,
        "since": _epoch(pod.created),
    }


def _tenant(claim: Claim, use: Usage) -> Json:
    return {
        "key": claim.key,
        "class": claim.app_class.value,
        "dialect": claim.dialect,
        "memory_mib": use.memory_mib,
        "memory_used_mib": None,
        **_compute(use),
        "share": None,
        "state": None,
        "preemptions": None,
        "paused_seconds": None,
    }


def _compute(use: Usage) -> dict[str, Any]:
    """Compute that was asked for, whichever kind; none: none was."""
    core = use.greedy_milli or use.core_milli
    return {"core": core / 10 if core else None, "greedy": use.greedy_milli > 0, "exclusive": bool(use.exclusive)}


def _epoch(stamp: str | None) -> float | None:
    """The API server's own words for a time; what is none of them nobody can know."""
    try:
        return None if stamp is None else datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None


def _first(broken: Sequence[Invalid]) -> str:
    return broken[0].sentence() if broken else "which is not known"
