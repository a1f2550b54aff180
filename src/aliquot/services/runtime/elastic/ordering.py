"""Orders tenants to leave a card and to return, as arbiter/residency.py decides, and refuses room that cannot come."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from aliquot.adapters.gpu.page import Order, Why
from aliquot.arbiter.residency import (
    Decision,
    Futility,
    Leave,
    Memory,
    Obstacle,
    Occupant,
    decide,
)
from aliquot.model.residency import ParkReason, Where
from aliquot.services.runtime.cards.cardloop import CardLoop
from aliquot.services.runtime.elastic.moves import MOVING, OBSTACLES
from aliquot.services.runtime.elastic.permits import Permits
from aliquot.services.runtime.elastic.sightings import RECONNECTED, Sightings
from aliquot.services.runtime.processes.registration import Tenancy, context_name

_NO_PERMIT = 1.0  # seconds until a tenant is chosen again that got no permit because the mover did not answer

log = logging.getLogger(__name__)


class Ordering:
    """`asked`: tenants that are to leave (True) or to return, by hand. `memory`: of a card with these tenants; None: it
    is not known."""

    def __init__(
        self,
        lock: threading.RLock,
        tenancies: Mapping[str, Tenancy],
        loops: Mapping[str, CardLoop],
        sightings: Sightings,
        permits: Permits,
        asked: dict[str, bool],
        *,
        memory: Callable[[str, Mapping[str, Occupant]], Memory | None],
        began: float,
    ) -> None:
        self._lock, self._tenancies, self._loops = lock, tenancies, loops
        self._sightings, self._asked, self._permits = sightings, asked, permits
        self._memory, self._began = memory, began
        self._futility: dict[str, Futility] = {}  # by card

    def decide(self, uuid: str, occupants: dict[str, Occupant], now: float) -> bool:
        """Have tenants of the card leave and return; True: something moves or waits."""
        for name, occupant in occupants.items():
            self._drain(name, uuid, draining=occupant.where is Where.LEAVING)
        by_hand = self._by_hand(uuid, occupants)
        waits = any(occupant.wants is not None for occupant in occupants.values())
        moving = any(occupant.where in MOVING for occupant in occupants.values())
        if waits or by_hand:
            memory = self._memory(uuid, occupants)
            if memory is not None:
                decision = decide(list(occupants.values()), memory, now)
                asked = {order.tenant for order in by_hand}
                for order in [*by_hand, *decision.orders]:
                    leave = isinstance(order, Leave)
                    seen = self._sightings.seen[order.tenant, uuid]
                    if now < max(seen.retry_at, seen.errand.ask_at, seen.hearing.ask_at if leave else 0.0):
                        continue
                    if leave:
                        # A tenant that was ordered to leave before has the permit already.
                        if not seen.errand.leave and not self._permits.give((order.tenant, uuid)):
                            seen.retry_at = now + _NO_PERMIT
                            continue
                        self._note_reason(uuid, occupants, order.tenant, asked)
                    if order.tenant in asked:
                        self._asked.pop(order.tenant, None)
                    self._perform(order.tenant, uuid, leave=leave, now=now)
                self._note_obstacles(uuid, decision.waiting or {})
                self._refuse_room(uuid, list(occupants.values()), memory, decision, now)
        return waits or moving or bool(by_hand)

    def _note_reason(self, uuid: str, occupants: dict[str, Occupant], tenant: str, asked: set[str]) -> None:
        waiting = [occupant for occupant in occupants.values() if occupant.wants is not None]
        mine = occupants[tenant]
        if tenant in asked:
            reason = ParkReason.ASKED
        elif any(occupant.rank < mine.rank for occupant in waiting):
            reason = ParkReason.ROOM
        else:
            reason = ParkReason.TURN if mine.park_after is None else ParkReason.IDLE
        self._sightings.seen[tenant, uuid].reason = reason

    def _by_hand(self, uuid: str, occupants: dict[str, Occupant]) -> list[Leave]:
        orders = []
        for name, leave in list(self._asked.items()):
            occupant = occupants.get(name)
            if occupant is None or (leave and occupant.where is Where.RETURNING):  # once it is back
                continue
            if leave and occupant.where is Where.RESIDENT and occupant.resident:
                orders.append(Leave(name))
            elif leave or (occupant.where is Where.RESIDENT and not occupant.parked):
                self._asked.pop(name, None)
        return orders

    def _perform(self, tenant: str, uuid: str, *, leave: bool, now: float) -> None:
        with self._lock:
            tenancy = self._tenancies.get(tenant)
            seen = self._sightings.seen.get((tenant, uuid))
            if tenancy is None or seen is None or tenancy.page.fileno() < 0:
                return
            at = tenancy.page.index[uuid]
            if leave:
                self._drain(tenant, uuid, draining=True)
            for slot in [process.slot for process in tenancy.processes if process.slot is not None]:
                move = tenancy.page.move(slot, at)
                order = Order.LEAVE if leave else Order.RETURN
                if (move.movable if leave else move.parked) and (move.order != order or move.why):
                    tenancy.page.order(slot, at, order)
            seen.why, seen.moved = Why.NOTHING, now
            seen.errand.begin(leave, now)
        log.debug("move_ordered", extra={"data": {"tenant": tenant, "card": uuid, "leave": leave}})

    def _refuse_room(
        self, uuid: str, occupants: list[Occupant], memory: Memory, decision: Decision, now: float
    ) -> None:
        """Let allocations fail for which nothing can make room: programs expect that, and go on."""
        if now - self._began < RECONNECTED:  # tenants that could leave may not have connected yet
            return
        with self._lock:
            asking = {
                (occupant.tenant, process.slot, room): (tenancy.page, at)
                for occupant in occupants
                if occupant.wants and (tenancy := self._tenancies.get(occupant.tenant)) is not None
                if tenancy.page.fileno() >= 0 and (at := tenancy.page.index.get(uuid)) is not None
                for process in tenancy.processes
                if process.slot is not None and (room := tenancy.page.move(process.slot, at).room)
            }
            futility = self._futility.setdefault(uuid, Futility())
            for judged in futility.judge(asking, occupants, memory, decision, now):
                page, at = asking[judged]
                if page.move(judged[1], at).room == judged[2]:
                    page.refuse_room(judged[1], at)

    def _drain(self, tenant: str, uuid: str, *, draining: bool) -> None:
        """A tenant that leaves has to finish what it submitted: it is not paused meanwhile."""
        seen = self._sightings.seen.get((tenant, uuid))
        if seen is None or seen.draining == draining:
            return
        seen.draining = draining
        with self._lock:
            tenancy = self._tenancies.get(tenant)
            names = [] if tenancy is None else [context_name(process) for process in tenancy.processes]
        for name in names:
            self._loops[uuid].drain(name, draining)

    def _note_obstacles(self, uuid: str, waiting: Mapping[str, Obstacle]) -> None:
        for tenant, obstacle in waiting.items():
            seen = self._sightings.seen.get((tenant, uuid))
            if seen is not None and seen.where is Where.PARKED:
                seen.reason = OBSTACLES[obstacle]
