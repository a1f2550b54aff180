"""Room kept for Pods whose victims are leaving: what is free of it now is booked for them, the rest as it comes free.

The caller decides what is kept and for how long (services/scheduler/preemption).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from aliquot.model.claim import Usage
from aliquot.placement.board import Board, Occupant
from aliquot.placement.book import Ledger


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """What a Pod will take of its node."""

    uid: str
    node: str
    occupant: Occupant
    priority: int


class Reservations:
    """The reservations on one ledger, in which each is a booking under its Pod's uid."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: dict[str, Reservation] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def on(self, node: str) -> list[Reservation]:
        """The reservations on one node, the most important first."""
        found = (reservation for reservation in self._kept.values() if reservation.node == node)
        return sorted(found, key=lambda reservation: -reservation.priority)

    def keep(self, reservation: Reservation) -> None:
        """Keep that room, in place of what is booked for the Pod."""
        self.drop(reservation.uid)
        self._ledger.forget(reservation.uid)
        self._kept[reservation.uid] = reservation
        self.renew(reservation.node)

    def drop(self, uid: str) -> None:
        """The room is free for others."""
        if self._kept.pop(uid, None) is not None:
            self._ledger.forget(uid)

    def renew(self, node: str) -> None:
        """Something was freed on the node: keep of it what Pods wait for."""
        there = self.on(node)
        for reservation in there:
            self._ledger.forget(reservation.uid)
        for reservation in there:
            if node in self._ledger.board.row_of:  # else it is gone, and had no booking but these
                occupant = free_part(self._ledger.board, node, reservation.occupant)
                self._ledger.confirm(reservation.uid, node, occupant)

    def renew_all(self) -> None:
        """Renew the reservations of every node."""
        for node in {reservation.node for reservation in self._kept.values()}:
            self.renew(node)

    def complete(self, uid: str) -> bool:
        """Whether all of the room is there: kube-scheduler may try the Pod."""
        reservation, booking = self._kept.get(uid), self._ledger.get(uid)
        if reservation is None or booking is None:
            return False
        return booking.occupant == replace(reservation.occupant, of_node=reservation.occupant.whole_node)

    @contextmanager
    def aside(self, uid: str) -> Iterator[None]:
        """What is kept for this Pod is free, for a decision about the Pod itself."""
        reservation, booking = self._kept.get(uid), self._ledger.get(uid)
        if reservation is None or booking is None:
            yield
            return
        board = self._ledger.board
        board.release(booking.node, booking.occupant)
        try:
            yield
        finally:
            board.take(booking.node, booking.occupant)


def free_part(board: Board, node: str, occupant: Occupant) -> Occupant:
    """As much of what the Pod will take as is free now. Kept for it: nothing is overbooked, no other Pod takes it."""
    row = board.row_of[node]
    usage = {
        slot: _free_usage(board, row, slot, use, occupant.parkable)
        for slot, use in occupant.usage.items()
        if slot < board.width and board.healthy[row, slot]
    }
    return Occupant(
        usage={slot: use for slot, use in usage.items() if use != Usage()},
        app_class=occupant.app_class,
        owner=occupant.owner,
        whole_node=occupant.whole_node and not board.pods[row] and not board.taken[row],
        cpu_milli=min(occupant.cpu_milli, max(0, int(board.room_cpu[row]))),
        memory_mib=min(occupant.memory_mib, max(0, int(board.room_host[row]))),
        of_node=occupant.whole_node,  # the node has no more users for it
        parkable=occupant.parkable,
    )


def _free_usage(board: Board, row: int, slot: int, use: Usage, parkable: bool) -> Usage:
    room = int(board.room_for(parkable, slice(row, row + 1))[0, slot])
    alone = not board.used_slices[row, slot]
    if (use.exclusive and not alone) or board.exclusive[row, slot]:
        # A tenant is still there: what is free beside it is kept, so that the card empties.
        return Usage(max(0, room), max(0, int(board.room_core[row, slot])), 0, int(board.room_slices[row, slot] > 0))
    return Usage(
        min(use.memory_mib, max(0, room)),
        min(use.core_milli, max(0, int(board.room_core[row, slot]))),
        min(use.greedy_milli, max(0, int(board.room_greedy[row, slot]))),
        min(use.slices, 1) if board.room_slices[row, slot] > 0 else 0,
        use.exclusive,
    )
