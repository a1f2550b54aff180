"""Who waits for room, and who is next.

The first of the queue gets the first room that does for it. One further back may pass it, but takes nothing from it:
the first counts as being already on the cards that are nearest to having room for it, and whoever fits beside that
starts now. So small runs fill cards that a big one cannot use yet, and never keep it waiting for longer. (A first that
waits for a tenant that never leaves waits as long; nobody can know.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aliquot.model.claim import Claim
from aliquot.model.device import CORE_MILLI
from aliquot.model.grant import Grant
from aliquot.placement.board import Board
from aliquot.placement.book import Ledger, occupant_of
from aliquot.placement.choose import Chooser
from aliquot.placement.seat import grant_on

from .asks import Ask


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
        """To the end of it."""
        self._waiting.append(entry)

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
            shape = (entry.claim.containers, entry.claim.app_class)
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
        return [
            {"card": each.card, "reason": each.reason.value, "wanted": each.wanted, "had": each.had}
            for each in self._chooser.refusals(claim)
        ]

    def _target(self, claim: Claim) -> Grant:
        """The cards that are nearest to having room for it: what it will probably get."""
        board = self._ledger.board
        part = claim.containers[0]
        slots = sorted(
            (card.index for node in board.nodes if node is not None for card in node.cards),
            key=lambda slot: _lacking(board, slot, claim),
        )
        return grant_on(board, 0, claim, [slots[: part.count]])


def _lacking(board: Board, slot: int, claim: Claim) -> tuple[bool, float]:
    """How far the card is from having room for one slice of the claim; those that never have come last."""
    part, size = claim.containers[0].slice, int(board.memory[0, slot])
    need = part.memory_on(size)
    never = need > size or not board.healthy[0, slot]
    if part.exclusive or board.exclusive[0, slot]:
        return never, float(board.used_memory[0, slot] / max(size, 1) + board.used_slices[0, slot])
    lacks = [
        (need - board.room_memory[0, slot]) / max(size, 1),
        ((part.core_milli or 0) - board.room_core[0, slot]) / CORE_MILLI if part.core_milli else 0,
        ((part.greedy_milli or 0) - board.room_greedy[0, slot]) / CORE_MILLI if part.greedy_milli else 0,
    ]
    return never, float(np.maximum(lacks, 0).sum())
