"""Who holds what: assume, confirm, forget. Keyed by Pod UID, so that every call is idempotent.

    assume   we decided, the API server has not said so yet; refused when the cards are no longer free. The caller
             gives up assumptions whose deadline has passed
    confirm  the API server says so: taken as it is, even where it overbooks a card (what runs, runs)
    forget   the Pod is gone from the API server; a Pod that is only terminating still holds its cards

The board is changed only here, by `take` and `release` in pairs: what is booked and what the board shows never part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from aliquot.model.claim import AppClass, Claim
from aliquot.model.device import CONTEXT_MIB, CORE_MILLI, reserve_mib
from aliquot.model.grant import Grant
from aliquot.model.node import LIMITED_SHARING
from aliquot.model.refusal import Reason, Refusal
from aliquot.placement.board import Board, Occupant
from aliquot.placement.fit import short_of
from aliquot.placement.rooms import beyond_cards, booked_pool


class Booking(msgspec.Struct, frozen=True, gc=False):
    """One Pod's place. `deadline` is None once confirmed."""

    uid: str
    node: str
    occupant: Occupant
    deadline: float | None = None


def occupant_of(claim: Claim, grant: Grant) -> Occupant:
    """What the Pod takes of its node."""
    return Occupant(
        usage=grant.usage(),
        app_class=claim.app_class,
        owner=claim.owner,
        whole_node=grant.whole_node,
        cpu_milli=claim.cpu_milli,
        memory_mib=claim.memory_mib,
        parkable=claim.parkable,
        group=claim.group_key,
    )


class Ledger:
    """The bookings of one board."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.classes: Counter[AppClass] = Counter()  # how many that have cards are of each
        self._bookings: dict[str, Booking] = {}
        self._by_node: dict[str, dict[str, Booking]] = {}

    def __len__(self) -> int:
        return len(self._bookings)

    def __iter__(self) -> Iterator[Booking]:
        return iter(self._bookings.values())

    def get(self, uid: str) -> Booking | None:
        """The Pod's booking, if it has one."""
        return self._bookings.get(uid)

    def on(self, node: str) -> Iterable[Booking]:
        """The bookings on one node, in order."""
        return self._by_node.get(node, {}).values()

    def assume(self, claim: Claim, grant: Grant, deadline: float) -> Booking | list[Refusal]:
        """Hold the grant until the deadline. Returns the Pod's present booking if it has one."""
        present = self._bookings.get(claim.uid)
        if present is not None:
            return present
        occupant = occupant_of(claim, grant)
        refusals = self._no_room(grant.node, occupant, limited=claim.offer in LIMITED_SHARING)
        if refusals:
            return refusals
        return self._enter(Booking(claim.uid, grant.node, occupant, deadline))

    def confirm(self, uid: str, node: str, occupant: Occupant) -> Booking:
        """The API server has the Pod there; replaces what was booked for it."""
        present = self._bookings.get(uid)
        booking = Booking(uid, node, occupant)
        if present is not None:
            if present.node == node and present.occupant == occupant:
                self._bookings[uid] = self._by_node[node][uid] = booking
                return booking
            self.forget(uid)
        return self._enter(booking)

    def forget(self, uid: str) -> bool:
        """The Pod is gone. False when nothing was booked for it."""
        booking = self._bookings.pop(uid, None)
        if booking is None:
            return False
        there = self._by_node[booking.node]
        del there[uid]
        if not there:
            del self._by_node[booking.node]
        if booking.occupant.usage:
            self.classes[booking.occupant.app_class] -= 1
        self.board.release(booking.node, booking.occupant)
        return True

    def still_fits(self, booking: Booking, claim: Claim) -> bool:
        """Whether the claim's cards are still good, and this booking of them fits beside the others."""
        board = self.board
        row = board.row_of.get(booking.node)
        if row is None or not board.present[row] or board.room_cpu[row] < 0 or board.room_host[row] < 0:
            return False
        if board.taken[row] and not (booking.occupant.whole_node and board.taken[row] == board.pods[row] == 1):
            return False
        if row in board.elastic and booked_pool(board, np.array([row]))[0] > board.pool[row]:
            return False
        limited = claim.offer in LIMITED_SHARING
        return all(
            slot < board.width
            and bool(board.healthy[row, slot])
            and board.used_memory[row, slot] <= board.limit[row, slot]
            and self._can_be_resident(row, slot)
            and board.used_core[row, slot] <= CORE_MILLI
            and board.used_greedy[row, slot] <= CORE_MILLI
            and (
                not limited or board.exclusive[row, slot] or board.used_slices[row, slot] <= board.max_slices[row, slot]
            )
            and (not board.exclusive[row, slot] or board.used_slices[row, slot] == 1)
            for slot in booking.occupant.usage
        )

    def _can_be_resident(self, row: int, slot: int) -> bool:
        """Whether each that may be parked fits on the card beside what stays there, or all of them together do."""
        board = self.board
        memory, used = int(board.memory[row, slot]), int(board.used_memory[row, slot])
        stays = used - int(board.used_parkable[row, slot]) + int(board.contexts[row, slot]) + reserve_mib(memory)
        largest = int(board.largest[row, slot])
        return used <= memory or stays + largest - min(largest, CONTEXT_MIB) <= memory

    def _enter(self, booking: Booking) -> Booking:
        self.board.take(booking.node, booking.occupant)
        there = self._by_node.get(booking.node)
        if there is None:
            there = self._by_node[booking.node] = {}
        self._bookings[booking.uid] = there[booking.uid] = booking
        if booking.occupant.usage:
            self.classes[booking.occupant.app_class] += 1
        return booking

    def _no_room(self, node: str, occupant: Occupant, *, limited: bool) -> list[Refusal]:
        """Why the occupant cannot be added: the last check before the cards are held."""
        board = self.board
        row = board.row_of.get(node)
        if row is None or not board.present[row]:
            return [Refusal(node, None, Reason.NOT_READY, None, None, False)]
        if board.taken[row] or (occupant.whole_node and board.pods[row]):
            return [Refusal(node, None, Reason.WHOLE_NODE, 0, int(board.pods[row]), False)]
        found = [
            Refusal(node, slot, reason, wanted, had, False)
            for slot, use in occupant.usage.items()
            for reason, wanted, had in short_of(board, row, slot, use, limited=limited, parkable=occupant.parkable)
        ]
        if not found and row in board.elastic:
            beyond = beyond_cards(board, row, {slot: use.memory_mib for slot, use in occupant.usage.items()})
            if beyond > board.pool_left[row]:
                found.append(Refusal(node, None, Reason.HOST_POOL, beyond, int(board.pool_left[row]), False))
        for reason, wanted, room in (
            (Reason.CPU, occupant.cpu_milli, int(board.room_cpu[row])),
            (Reason.HOST_MEMORY, occupant.memory_mib, int(board.room_host[row])),
        ):
            if wanted and wanted > room:
                found.append(Refusal(node, None, reason, wanted, room, False))
        return found
