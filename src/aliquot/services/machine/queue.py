"""The queue for cards: first come, first served, with backfill.

The head of the queue gets the first slice that fits. A later request may overtake it without delaying it: the head is
booked on the cards that are closest to having room for it, and whatever fits beside that booking starts now. So small
runs fill cards that a big one cannot use yet. (If the head waits for a tenant that never ends, it waits as long.)
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from aliquot.model.claim import CardFilter, Claim, Slice
from aliquot.model.device import CORE_MILLI
from aliquot.model.grant import Grant
from aliquot.model.status.answers import Send
from aliquot.model.status.machine import QueuePosition, RefusalStatus
from aliquot.placement.board import Board
from aliquot.placement.book import Ledger, occupant_of
from aliquot.placement.choose import Chooser
from aliquot.placement.seat import grant_on
from aliquot.services.machine.requests import RunRequest

_SHORT = 32  # requests in a queue whose reasons are computed whenever they are shown


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """A run that waits for its slice. `notify` receives every answer."""

    claim: Claim
    request: RunRequest
    pid: int
    uid: int
    gid: int
    started: int
    since: float  # on the machine's monotonic clock: neither order nor waiting time depend on the wall clock
    notify: Send
    log: str | None = None
    last_position: QueuePosition | None = field(default=None)  # sent last
    queued: bool = False

    @property
    def id(self) -> str:
        """The id of its tenant, once it starts."""
        return self.claim.uid

    @property
    def name(self) -> str:
        """The name that users see."""
        return self.claim.name


class Queue:
    """See the module docstring."""

    def __init__(self, ledger: Ledger, chooser: Chooser) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._waiting: list[QueuedRequest] = []
        self.preferred: Callable[[QueuedRequest], tuple[str, ...]] = lambda entry: ()  # cards to try first

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(self._waiting)

    def add(self, entry: QueuedRequest) -> None:
        """In order of arrival: a request that comes back after a restart keeps its place."""
        insort(self._waiting, entry, key=lambda entry: entry.since)
        entry.queued = True

    def remove(self, entry: QueuedRequest) -> bool:
        """False if it was not queued."""
        if not entry.queued:
            return False
        self._waiting.remove(entry)
        entry.queued = False
        return True

    def next(self, only: QueuedRequest | None = None) -> tuple[QueuedRequest, Grant] | None:
        """The request that can start now, and its grant. Books nothing and leaves it in the queue.

        `only`: it came last, and none of the others can start.
        """
        if not self._waiting:
            return None
        first, *others = self._waiting
        grant = self._choose(first) if only in (None, first) else None
        if grant is not None:
            return first, grant
        others = others if only is None else [entry for entry in others if entry is only]
        if not others:
            return None
        target = self._target(first.claim)
        self._ledger.confirm(first.id, target.node, occupant_of(first.claim, target))
        try:
            for entry in others:
                grant = self._choose(entry)
                if grant is not None:
                    return entry, grant
        finally:
            self._ledger.forget(first.id)
        return None

    def _choose(self, entry: QueuedRequest) -> Grant | None:
        claim, cards = entry.claim, self.preferred(entry)
        if cards:
            claim = replace(claim, cards=replace(claim.cards or CardFilter(), uuids=cards))
        grant = self._chooser.choose(claim)
        if grant is None and cards:
            grant = self._chooser.choose(entry.claim)
        return grant

    def positions(self) -> Iterator[tuple[QueuedRequest, QueuePosition]]:
        """Each request's position and reason: what each card lacks, or for whom the free slice is reserved.

        The caller may pause between two of them: a thousand requests of different shapes take half a second.
        """
        refusals: dict[object, list[RefusalStatus]] = {}  # computed once per shape
        waiting = list(self._waiting)
        for position, entry in enumerate(waiting, 1):
            if not entry.queued:
                continue
            shape = request_shape(entry.claim)
            if shape not in refusals:
                refusals[shape] = self._refusals(entry.claim)
            yield entry, _position(entry, position, waiting, refusals[shape])

    def position_of(self, entry: QueuedRequest) -> QueuePosition:
        """The position and reason of one request."""
        return _position(entry, self._waiting.index(entry) + 1, self._waiting, self._refusals(entry.claim))

    def last_position(self, entry: QueuedRequest) -> QueuePosition:
        """The position and reason that were sent last. In a long queue a new request has no reason for an instant."""
        if entry.last_position is not None:
            return entry.last_position
        if len(self._waiting) <= _SHORT:
            return self.position_of(entry)
        return _position(entry, self._waiting.index(entry) + 1, self._waiting, None)

    def _refusals(self, claim: Claim) -> list[RefusalStatus]:
        """Empty if some node has room for it: what the others lack does not matter then."""
        if self._chooser.choose(claim) is not None:
            return []
        several = len(self._ledger.board.row_of) > 1  # then the card index alone is ambiguous
        return [
            RefusalStatus(
                refusal.card, refusal.reason, refusal.wanted, refusal.had, node=refusal.node if several else UNSET
            )
            for refusal in self._chooser.refusals(claim)
        ]

    def _target(self, claim: Claim) -> Grant:
        """The cards closest to having room for the claim: probably its future grant."""
        board = self._ledger.board
        rows = [row for row, node in enumerate(board.nodes) if node is not None and node.cards]
        return min((_nearest(board, row, claim) for row in rows), key=lambda found: found[0])[1]


def _position(
    entry: QueuedRequest, position: int, waiting: list[QueuedRequest], refusals: list[RefusalStatus] | None
) -> QueuePosition:
    return QueuePosition(
        name=entry.name,
        position=position,
        of=len(waiting),
        kept_for=waiting[0].name if refusals == [] else None,
        refusals=refusals or [],
    )


def request_shape(claim: Claim) -> Claim:
    """Equal for claims that request the same."""
    return replace(claim, uid="", namespace="", name="", owner=None)


def _nearest(board: Board, row: int, claim: Claim) -> tuple[tuple[int, float], Grant]:
    """The node's distance from having room for the claim, and its closest cards."""
    node = board.nodes[row]
    slots = [card.index for card in node.cards] if node is not None else []
    chosen: list[list[int]] = []
    never, lacks = 0, 0.0
    for part in claim.containers:
        count = len(slots) if part.count is None else part.count
        known = chosen[0] if claim.together and chosen else []  # `together`: all containers share the same cards
        ranked = sorted(
            (*_lacking(board, row, slot, part.slice, claim.parkable), slot)
            for slot in slots
            if not known or slot in known
        )
        found = ranked[:count]
        never += sum(impossible for impossible, _, _ in found) + count - len(found)
        lacks += sum(missing for _, missing, _ in found)
        chosen.append([slot for _, _, slot in found])
    return (never, lacks), grant_on(board, row, claim, chosen)


def _lacking(board: Board, row: int, slot: int, part: Slice, parkable: bool) -> tuple[bool, float]:
    """The card's distance from having room for the slice; cards that never will sort last."""
    size = int(board.memory[row, slot])
    need = part.memory_on(size)
    never = need > size or not board.healthy[row, slot]
    if part.exclusive or board.exclusive[row, slot]:
        return bool(never), float(board.used_memory[row, slot] / max(size, 1) + board.used_slices[row, slot])
    lacks = [
        (need - board.room_for(parkable, slice(row, row + 1))[0, slot]) / max(size, 1),
        ((part.core_milli or 0) - board.room_core[row, slot]) / CORE_MILLI if part.core_milli else 0,
        ((part.greedy_milli or 0) - board.room_greedy[row, slot]) / CORE_MILLI if part.greedy_milli else 0,
    ]
    return bool(never), float(np.maximum(lacks, 0).sum())
