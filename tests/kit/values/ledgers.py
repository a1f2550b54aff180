"""Ledgers of one node, and grants of its cards."""

from __future__ import annotations

from aliquot.model.claim import Claim, Role
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node
from aliquot.placement.book import Ledger
from kit.values.builders import EVERY_OFFER, GIB, a_board, a_node


def ledger_of(*memory_gib: int) -> Ledger:
    return Ledger(a_board(a_node("n1", *memory_gib)))


def grant_of(claim: Claim, card: int = 0, node: str = "n1") -> Grant:
    share = Share(card, claim.containers[0].slice.memory_mib, exclusive=claim.containers[0].slice.exclusive)
    return Grant(claim.uid, node, (ContainerGrant("main", 0, Role.MAIN, (share,)),))


def free_gib(ledger: Ledger, card: int = 0) -> int:
    return int(ledger.board.room_memory[0, card]) // GIB


def late_bookings(ledger: Ledger, now: float) -> set[str]:
    return {booking.uid for booking in ledger if booking.deadline is not None and booking.deadline <= now}


def one_card(size: int = 16384, factor: float = 1.0, max_slices: int | None = None, pool: int = 0) -> Ledger:
    card = Card(0, size, "GPU-0", max_slices=max_slices, oversubscribe=factor)
    return Ledger(a_board(Node("n1", (card,), EVERY_OFFER, cpu_milli=1000, memory_mib=1024, pool_mib=pool)))
