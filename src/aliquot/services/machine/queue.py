"""Who waits for room, and who is next.

The first of the queue gets the first room that does for it. One further back may pass it, but takes nothing from it:
the first counts as being already on the cards that are nearest to having room for it, and whoever fits beside that
starts now. So small runs fill cards that a big one cannot use yet, and never keep it waiting for longer. (A first that
waits for a tenant that never leaves waits as long; nobody can know.)
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aliquot.model.claim import Claim, Slice
from aliquot.model.device import CORE_MILLI
from aliquot.model.grant import Grant
from aliquot.model.tenancy import Tenancy
from aliquot.placement.board import Board
from aliquot.placement.book import Ledger, occupant_of
from aliquot.placement.choose import Chooser
from aliquot.placement.seat import grant_on
from aliquot.services.machine.requests import Ask


@dataclass(eq=False, slots=True)
class Waiting:
    """One run that has no room yet. `tell` hands it what happens; `told` is what it was told last."""

    claim: Claim
    ask: Ask
    pid: int
    uid: int
    gid: int
    started: int
    since: float
    tell: Callable[[dict[str, Any]], None]
    log: str | None = None
    told: dict[str, Any] | None = field(default=None)
    seated: Callable[[Tenancy, Grant], None] | None = None  # of a Pod: it hears this instead of an answer

    @property
    def id(self) -> str:
        """The tenant it is going to be."""
        return self.claim.uid

    @property
    def name(self) -> str:
        """For people."""
        return self.claim.name


class Queue:
    """See the head of the file."""

    def __init__(self, ledger: Ledger, chooser: Chooser) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting)

    def add(self, entry: Waiting) -> None:
        """Behind those who waited before it: one that asks again after a restart gets its place back."""
        insort(self._waiting, entry, key=lambda each: each.since)

    def remove(self, entry: Waiting) -> bool:
        """It waits no longer. False when it did not."""
        if entry not in self._waiting:
            return False
        self._waiting.remove(entry)
        return True

    def next(self) -> tuple[Waiting, Grant] | None:
        """Who can start now, and where; books nothing, and leaves it in the queue."""
        if not self._waiting:
            return None
        first, *others = self._waiting
        grant = self._chooser.choose(first.claim)
        if grant is not None:
            return first, grant
        if not others:
            return None
        target = self._target(first.claim)
        self._ledger.confirm(first.id, target.node, occupant_of(first.claim, target))
        try:
            for entry in others:
                grant = self._chooser.choose(entry.claim)
                if grant is not None:
                    return entry, grant
        finally:
            self._ledger.forget(first.id)
        return None

    def standings(self) -> list[tuple[Waiting, dict[str, Any]]]:
        """Everyone's place, and why they wait: what each card lacks, or for whom room is kept."""
        told: dict[object, list[dict[str, Any]]] = {}  # those who ask for the same are told the same
        found = []
        for position, entry in enumerate(self._waiting, 1):
            shape = shape_of(entry.claim)
            if shape not in told:
                told[shape] = self._lacks(entry.claim)
            standing = {
                "name": entry.name,
                "position": position,
                "of": len(self._waiting),
                "kept_for": None if told[shape] else self._waiting[0].name,
                "refusals": told[shape],
            }
            found.append((entry, standing))
        return found

    def standing(self, entry: Waiting) -> dict[str, Any]:
        """The same of one."""
        return next(standing for each, standing in self.standings() if each is entry)

    def _lacks(self, claim: Claim) -> list[dict[str, Any]]:
        """Nothing, where some node has room for it: what others lack is then beside the point."""
        if self._chooser.choose(claim) is not None:
            return []
        several = len(self._ledger.board.row_of) > 1  # then a card's number alone says too little
        return [
            {"card": refusal.card, "reason": refusal.reason.value, "wanted": refusal.wanted, "had": refusal.had}
            | ({"node": refusal.node} if several else {})
            for refusal in self._chooser.refusals(claim)
        ]

    def _target(self, claim: Claim) -> Grant:
        """The cards that are nearest to having room for it: what it will probably get."""
        board = self._ledger.board
        rows = [row for row, node in enumerate(board.nodes) if node is not None and node.cards]
        return min((_nearest(board, row, claim) for row in rows), key=lambda found: found[0])[1]


def shape_of(claim: Claim) -> Claim:
    """The same for all who ask for the same."""
    return replace(claim, uid="", namespace="", name="", owner=None)


def _nearest(board: Board, row: int, claim: Claim) -> tuple[tuple[int, float], Grant]:
    """How far the node is from having room for the claim, and the cards of it that are nearest."""
    node = board.nodes[row]
    slots = [card.index for card in node.cards] if node is not None else []
    chosen: list[list[int]] = []
    never, lacks = 0, 0.0
    for part in claim.containers:
        count = len(slots) if part.count is None else part.count
        known = chosen[0] if claim.together and chosen else []  # containers that stay together are on the same cards
        ranked = sorted((*_lacking(board, row, slot, part.slice), slot) for slot in slots if not known or slot in known)
        found = ranked[:count]
        never += sum(each for each, _, _ in found) + count - len(found)
        lacks += sum(each for _, each, _ in found)
        chosen.append([slot for _, _, slot in found])
    return (never, lacks), grant_on(board, row, claim, chosen)


def _lacking(board: Board, row: int, slot: int, part: Slice) -> tuple[bool, float]:
    """How far the card is from having room for one such slice; those that never have come last."""
    size = int(board.memory[row, slot])
    need = part.memory_on(size)
    never = need > size or not board.healthy[row, slot]
    if part.exclusive or board.exclusive[row, slot]:
        return bool(never), float(board.used_memory[row, slot] / max(size, 1) + board.used_slices[row, slot])
    lacks = [
        (need - board.room_memory[row, slot]) / max(size, 1),
        ((part.core_milli or 0) - board.room_core[row, slot]) / CORE_MILLI if part.core_milli else 0,
        ((part.greedy_milli or 0) - board.room_greedy[row, slot]) / CORE_MILLI if part.greedy_milli else 0,
    ]
    return bool(never), float(np.maximum(lacks, 0).sum())
