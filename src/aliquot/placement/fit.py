"""Which nodes and cards would do, and every reason why the others would not.

`fits` is the fast answer for a decision; `shortages` is the slow one for a person; `short_of` is the answer for one
card, where a search or a booking looks at it. They must agree (tests/placement/test_fit.py checks it): a node
has a shortage exactly when the claim does not fit it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aliquot.model.claim import Slice, Usage
from aliquot.model.device import CORE_MILLI
from aliquot.model.node import Offer
from aliquot.model.refusal import Reason, Refusal
from aliquot.placement.board import OTHERS_BIT, TOGETHER_BIT, Board, Bools, Ints, offer_bit
from aliquot.placement.demand import Demand, Part
from aliquot.placement.rooms import elastic_rooms, spare


def fits(board: Board, demand: Demand, rows: Ints | slice) -> tuple[Bools, Bools]:
    """(nodes that fit, cards that fit the demand's first part) of those rows; for an inexact demand, may fit."""
    nodes = fitting_nodes(board, demand, rows)
    if not demand.parts:
        return nodes, np.zeros((len(nodes), board.width), bool)
    first, *others = _unlike(demand)
    cards = fitting_cards(board, first, demand, rows)
    nodes &= enough(cards, first.count)
    if not demand.exact:
        nodes &= _room_in_all(board, demand, rows)
    for part in others:
        if not nodes.any():
            break
        nodes &= enough(fitting_cards(board, part, demand, rows), part.count)
    return nodes, cards


def _unlike(demand: Demand) -> Sequence[Part]:
    """Each kind of part once, in the order in which they first occur: many containers of a Pod are alike, and by itself
    a part fits whatever its role is."""
    if demand.exact:
        return demand.parts
    kinds: dict[tuple[Slice, int, int], Part] = {}
    for part in demand.parts:
        kinds.setdefault((part.slice, part.count, part.tenants), part)
    return [*kinds.values()]


def _room_in_all(board: Board, demand: Demand, rows: Ints | slice) -> Bools:
    """Is there as much left on all cards together as the parts need at once? Spares most of the search in seat.py."""
    memory = np.maximum(board.room_for(demand.parkable, rows), 0).sum(axis=1)
    core = np.maximum(board.room_core[rows], 0).sum(axis=1)
    return (memory >= demand.at_once.memory_mib) & (core >= demand.at_once.core_milli)


def fitting_nodes(board: Board, demand: Demand, rows: Ints | slice) -> Bools:
    """Apart from cards: does the node have the offer, the CPU, the memory, and no Pods if a whole node is wanted?"""
    nodes = (board.offers[rows] & offer_bit(demand.offer)) != 0
    nodes &= board.present[rows]
    nodes &= board.taken[rows] == 0
    if demand.together:
        nodes &= (board.offers[rows] & TOGETHER_BIT) != 0
    if demand.cpu_milli:
        nodes &= board.room_cpu[rows] >= demand.cpu_milli
    if demand.memory_mib:
        nodes &= board.room_host[rows] >= demand.memory_mib
    if demand.whole_node:
        every = (board.memory[rows] == 0) | (board.room_memory[rows] >= 0) & (board.used_slices[rows] == 0)
        nodes &= (board.pods[rows] == 0) & (board.cards[rows] > 0) & every.all(axis=1)
    return nodes


def fitting_cards(board: Board, part: Part, demand: Demand, rows: Ints | slice) -> Bools:
    """The cards with room for one slice of the part."""
    need = memory_need(board, part.slice, rows)
    cards: Bools = board.room_for(demand.parkable, rows) >= need
    if board.elastic:
        cards &= _pool_share(board, part, rows) >= need
    if part.slice.core_milli:
        cards &= board.room_core[rows] >= part.slice.core_milli
    if part.slice.greedy_milli:
        cards &= board.room_greedy[rows] >= part.slice.greedy_milli
    if part.slice.exclusive:
        cards &= board.used_slices[rows] == 0
    elif part.tenants:
        cards &= board.room_slices[rows] >= part.tenants
    else:
        cards &= board.exclusive[rows] == 0
    right = _right_cards(board, demand, rows)
    if right is not None:
        cards &= right
    return cards


def _pool_share(board: Board, part: Part, rows: Ints | slice) -> Ints:
    """[row, slot]: MiB for a slice of a part of several cards: each has as large a share of the pool as the others, so
    that all of them have room together, whichever cards are chosen."""
    return spare(board, rows) + (board.pool_left[rows] // part.count)[:, None]


def memory_need(board: Board, part: Slice, rows: Ints | slice) -> Ints | int:
    """MiB of each card that the slice would take; one number where it is the same for all."""
    if not part.memory_percent:
        return part.memory_mib
    need = board.memory[rows] * part.memory_percent // 100 + part.memory_mib
    return need.astype(np.int64, copy=False)


def spare_cards(board: Board, demand: Demand, rows: Ints | slice) -> Bools:
    """The cards that have the memory of the demand's first part unbooked."""
    found: Bools = spare(board, rows) >= memory_need(board, demand.parts[0].slice, rows)
    return found


def enough(cards: Bools, count: int) -> Bools:
    """Per node: are that many of its cards marked?"""
    if count == 1:
        return np.logical_or.reduce(cards, axis=1)
    return cards.sum(axis=1) >= count


def _right_cards(board: Board, demand: Demand, rows: Ints | slice) -> Bools | None:
    """The cards that the demand may have by model and UUID; None: all."""
    models, cards = demand.models, demand.cards
    if models is None and cards is None:
        return None
    named = [
        (models is None or name in models) and (cards is None or cards.allows_model(name)) for name in board.models
    ]
    right: Bools = np.array(named, bool)[board.model[rows]]
    if cards is not None and (cards.uuids or cards.not_uuids):
        allows_card, width = cards.card_rule(), right.shape[1]
        barred = [  # all at once: numpy takes long for each element of its own
            at * width + card.index
            for at, row in enumerate(np.arange(board.rows)[rows].tolist())
            if (node := board.nodes[row]) is not None
            for card in node.cards
            if not allows_card(card.uuid)
        ]
        np.put(right, barred, False)
    return right


# --- why not ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shortage:
    """One reason at many places, as columns. `slots` is None for reasons about whole nodes."""

    reason: Reason
    rows: Ints
    slots: Ints | None
    wanted: Ints
    had: Ints
    never: Bools

    def refusals(self, board: Board) -> Iterator[Refusal]:
        """One by one."""
        slots = self.slots.tolist() if self.slots is not None else [None] * len(self.rows)
        for row, slot, wanted, had, never in zip(
            self.rows.tolist(), slots, self.wanted.tolist(), self.had.tolist(), self.never.tolist(), strict=True
        ):
            yield Refusal(board.names[row], slot, self.reason, wanted, had, never)


def shortages(board: Board, demand: Demand, rows: Ints) -> list[Shortage]:
    """Every shortage on every one of the rows that does not fit. A row that fits has none."""
    nodes, _ = fits(board, demand, rows)
    rows = rows[~nodes]
    found = [*_about_nodes(board, demand, rows)]
    served = rows[(board.offers[rows] & offer_bit(demand.offer)) != 0]
    for part in _unlike(demand):
        lacking = ~enough(fitting_cards(board, part, demand, served), part.count)
        if lacking.any():
            found += _about_cards(board, part, demand, served[lacking])
    return [shortage for shortage in (found if demand.exact else _once(found)) if len(shortage.rows)]


def _once(found: list[Shortage]) -> Iterator[Shortage]:
    """Drop shortages that several parts report for the same place."""
    reported: set[tuple[Reason, int, int, int]] = set()
    for shortage in found:
        rows, wanted = shortage.rows, shortage.wanted
        slots = [-1] * len(rows) if shortage.slots is None else shortage.slots.tolist()
        places = [(shortage.reason, *place) for place in zip(rows.tolist(), slots, wanted.tolist(), strict=True)]
        new = np.array([place not in reported for place in places], bool)
        reported.update(places)
        at = None if shortage.slots is None else shortage.slots[new]
        yield Shortage(shortage.reason, rows[new], at, wanted[new], shortage.had[new], shortage.never[new])


def _about_nodes(board: Board, demand: Demand, rows: Ints) -> Iterator[Shortage]:
    def node_shortage(reason: Reason, short: Bools, wanted: int, had: Ints | int, never: Bools | bool) -> Shortage:
        at = rows[short]
        return Shortage(
            reason, at, None, np.full(len(at), wanted), np.broadcast_to(had, len(rows))[short],
            np.broadcast_to(never, len(rows))[short],
        )  # fmt: skip

    serves = (board.offers[rows] & offer_bit(demand.offer)) != 0
    others = board.offers[rows] == OTHERS_BIT
    yield node_shortage(Reason.OTHER_PLUGIN, others, 1, 0, True)
    of_qgpu = {Offer.QGPU_MIXED: Reason.MIXED, Offer.T9K_EXCLUSIVE: Reason.QGPU_NODE}.get(demand.offer)
    if of_qgpu is not None:
        plain = (board.offers[rows] & offer_bit(Offer.QGPU)) != 0
        yield node_shortage(of_qgpu, ~serves & plain, 1, 0, True)
        yield node_shortage(Reason.MODE, ~serves & ~plain & ~others, 1, 0, True)
    else:
        yield node_shortage(Reason.MODE, ~serves & ~others, 1, 0, True)
    if demand.together:
        yield node_shortage(Reason.TOGETHER, serves & ((board.offers[rows] & TOGETHER_BIT) == 0), 1, 0, True)
    yield node_shortage(Reason.WHOLE_NODE, serves & (board.taken[rows] > 0), 0, board.taken[rows], False)
    if demand.whole_node:
        quiet = board.taken[rows] == 0
        yield node_shortage(Reason.WHOLE_NODE, serves & quiet & (board.pods[rows] > 0), 0, board.pods[rows], False)
        there = (board.memory[rows] > 0).sum(axis=1)
        sick = board.cards[rows] < np.maximum(there, 1)
        withheld = board.withheld[rows].sum(axis=1)
        yield node_shortage(Reason.WITHHELD, serves & quiet & (withheld > 0), 0, withheld, False)
        sick &= withheld == 0
        yield node_shortage(Reason.HEALTH, serves & quiet & sick, 0, there - board.cards[rows], there == 0)
        busy = ((board.used_slices[rows] > 0) & (board.memory[rows] > 0)).any(axis=1) & (board.pods[rows] == 0)
        yield node_shortage(Reason.WHOLE_NODE, serves & quiet & busy, 0, 1, False)
    for reason, wanted, room, total in (
        (Reason.CPU, demand.cpu_milli, board.room_cpu, board.cpu),
        (Reason.HOST_MEMORY, demand.memory_mib, board.room_host, board.host_memory),
    ):
        if wanted:
            never = total[rows] < wanted
            had = np.where(never, total[rows], np.maximum(room[rows], 0))
            yield node_shortage(reason, serves & (room[rows] < wanted), wanted, had, never)


def _about_cards(board: Board, part: Part, demand: Demand, rows: Ints) -> Iterator[Shortage]:
    """Of rows with too few cards for the part: per card every dimension that is short; and per node, that they are few,
    where one is not enough or there is none."""
    there = board.memory[rows] > 0
    free = board.taken[rows][:, None] == 0  # the cards of a node that is taken whole are not the reason
    wanted_cards = _right_cards(board, demand, rows)
    right = np.ones_like(there) if wanted_cards is None else wanted_cards
    could = there & right & _would_do(board, part, rows)

    def short(reason: Reason, cards: Bools, wanted: Ints | int, had: Ints | int, never: Bools | bool) -> Shortage:
        at, slots = np.nonzero(cards)
        return Shortage(
            reason, rows[at], slots, np.broadcast_to(wanted, cards.shape)[cards],
            np.maximum(np.broadcast_to(had, cards.shape)[cards], 0), np.broadcast_to(never, cards.shape)[cards],
        )  # fmt: skip

    healthy = board.healthy[rows]
    withheld = board.withheld[rows]
    yield short(Reason.WITHHELD, there & free & withheld, 1, 0, ~could)
    yield short(Reason.HEALTH, there & free & ~healthy & ~withheld, 1, 0, ~could)
    yield short(Reason.MODEL, there & free & ~right, 1, 0, True)
    # Held exclusively, or shared but wanted exclusively: what else the card lacks does not matter then.
    others = board.used_slices[rows] if part.slice.exclusive else board.exclusive[rows]
    asked = there & free & right & healthy
    yield short(Reason.EXCLUSIVE, asked & (others > 0), 0, others, ~could)
    asked &= others == 0
    tenants = 0 if part.slice.exclusive else part.tenants
    need, memory_room = memory_need(board, part.slice, rows), board.room_for(demand.parkable, rows)
    if board.elastic:
        without_pool = _without_pool(board, demand, rows)
        room = np.minimum(memory_room, _pool_share(board, part, rows))
        pool = asked & (room < need) & (without_pool >= need)
        beyond = need - spare(board, rows)
        yield short(Reason.HOST_POOL, pool, beyond, board.pool_left[rows][:, None] // part.count, False)
        memory_room = np.where(pool, need, memory_room)
    for reason, wanted, room, most in (
        (Reason.MEMORY, need, memory_room, board.memory[rows]),
        (Reason.CORE, part.slice.core_milli or 0, board.room_core[rows], CORE_MILLI),
        (Reason.GREEDY, part.slice.greedy_milli or 0, board.room_greedy[rows], CORE_MILLI),
        (Reason.SLICES, tenants, board.room_slices[rows], board.max_slices[rows]),
    ):
        if reason is Reason.MEMORY or np.any(wanted):
            never = most < np.asarray(wanted)  # then what an empty card has says more than what is free
            yield short(reason, asked & (room < wanted), wanted, np.where(never, most, room), never)
    cards = fitting_cards(board, part, demand, rows).sum(axis=1)
    few = ((part.count > 1) | ~there.any(axis=1)) & free[:, 0]
    when_empty = could.sum(axis=1)
    never = when_empty < part.count
    had = np.where(never, when_empty, cards)[few]
    yield Shortage(Reason.CARDS, rows[few], None, np.full(len(had), part.count), had, never[few])


def _without_pool(board: Board, demand: Demand, rows: Ints) -> Ints:
    """[row, slot]: the room for memory if the pool had no limit."""
    fixed, parkable = elastic_rooms(board, rows, pooled=False)
    return parkable if demand.parkable else fixed


def _would_do(board: Board, part: Part, rows: Ints) -> Bools:
    """Cards that would do if they were healthy and empty."""
    cards: Bools = board.memory[rows] >= memory_need(board, part.slice, rows)
    cards &= (part.slice.core_milli or 0) <= CORE_MILLI
    if not part.slice.exclusive:
        cards &= board.max_slices[rows] >= part.tenants
    return cards


# --- one card ----------------------------------------------------------------------------------------------------


def short_of(
    board: Board, row: int, slot: int, use: Usage, *, limited: bool, parkable: bool = False
) -> list[tuple[Reason, int, int]]:
    """(reason, wanted, had) of everything the card lacks for that usage. `limited`: heed how many may share it;
    `parkable`: the memory may leave the card."""
    if slot >= board.width or not board.healthy[row, slot] or not board.memory[row, slot]:
        withheld = slot < board.width and board.withheld[row, slot]
        return [(Reason.WITHHELD if withheld else Reason.HEALTH, 1, 0)]
    others = int(board.used_slices[row, slot] if use.exclusive else board.exclusive[row, slot])
    if others or (use.exclusive and use.slices > 1):
        return [(Reason.EXCLUSIVE, 0, max(others, 1))]
    room = int(board.room_memory[row, slot])
    if parkable and not use.exclusive:
        room += int(board.extra[row, slot])
    found = [(Reason.MEMORY, use.memory_mib, room)] if room < use.memory_mib else []
    slices = min(use.slices, 1) if limited and not use.exclusive else 0
    # What is not wanted is not short, even where others took more of it than there is.
    found += [
        (reason, wanted, int(column[row, slot]))
        for reason, wanted, column in (
            (Reason.CORE, use.core_milli, board.room_core),
            (Reason.GREEDY, use.greedy_milli, board.room_greedy),
            (Reason.SLICES, slices, board.room_slices),
        )
        if wanted and column[row, slot] < wanted
    ]
    return found
