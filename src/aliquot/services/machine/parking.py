"""`aliquot park`, `aliquot wake` and `aliquot policy oversubscribe`: memory that leaves the cards and comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from msgspec import UNSET

from aliquot.model.device import LEAST_FACTOR, MOST_FACTOR
from aliquot.model.refusal import Invalid
from aliquot.model.residency import Residency, Where
from aliquot.model.status.answers import MovedMemory, Send
from aliquot.model.status.requests import FACTOR_ALLOWED, MoveRequest
from aliquot.model.tenancy import Tenancy
from aliquot.services.daemon.control import Caller, RefusedError, invalid
from aliquot.services.daemon.requests import Operation
from aliquot.services.machine.queue import QueuedRequest
from aliquot.services.machine.tenants.machine import LocalMachine
from aliquot.wording.amounts import memory
from aliquot.wording.parking import reason_words

_LOOK = 0.02  # seconds between two looks at a move
_NEWCOMER = 2.0  # seconds until memory that a tenant has allocated is known: a round of the arbiter, and a busy machine

OwnerOnly = Callable[..., None]  # (caller, what, *users who may too); raises RefusedError


class Parking:
    """The operations of the control socket."""

    def __init__(self, machine: LocalMachine, owner_only: OwnerOnly) -> None:
        self._machine = machine
        self._owner_only = owner_only
        self.operations = {"park": Operation(MoveRequest, self._park), "wake": Operation(MoveRequest, self._wake)}

    # --- the factor --------------------------------------------------------------------------------------------

    async def set_factor(self, factor: object, which: object, caller: Caller) -> None:
        """Change the factor of the card with that number or UUID; None: of all cards. Both come from a stranger. Raises
        RefusedError and StoreError; then nothing has changed."""
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not LEAST_FACTOR <= factor <= MOST_FACTOR:
            raise invalid(Invalid("oversubscribe", factor, FACTOR_ALLOWED))
        if factor > LEAST_FACTOR and not self._machine.pool_mib:
            why = f"{LEAST_FACTOR} without a host pool: start the daemon with --host-pool, for example 64GiB"
            raise invalid(Invalid("oversubscribe", factor, why))
        named = [card for card in self._machine.cards if which is None or str(which) in (str(card.index), card.uuid)]
        if not named:
            there = ", ".join(dict.fromkeys(str(card.index) for card in self._machine.cards))
            raise invalid(Invalid("--card", which, f"use the number or the UUID of a card; there are {there}"))
        if any(card.oversubscribe != factor for card in named):
            self._owner_only(caller, "change the policy")
            await self._machine.oversubscribe(float(factor), [card.uuid for card in named])

    def factors(self) -> list[float]:
        """The factors of the cards."""
        return [card.oversubscribe for card in self._machine.cards]

    def notes(self) -> list[str]:
        """What a lower factor does not undo."""
        machine, notes = self._machine, []
        for row, node in enumerate(machine.nodes):
            for card in node.cards:
                booked = int(machine.ledger.board.used_memory[row, card.index])
                if booked > card.bookable_mib:
                    notes.append(
                        f"card {card.index} has {memory(booked)} booked, more than {memory(card.bookable_mib)}: "
                        "what runs there stays, new work waits until there is room"
                    )
        return notes

    def away(self) -> list[str]:
        """Names of the tenants whose memory is not all on a card."""
        gone = {
            standing.tenant
            for standing in self._machine.arbiter.standings()
            if standing.residency is not None and standing.residency.where is not Where.RESIDENT
        }
        return sorted(found.tenant.name for found in self._machine.tenancies.values() if found.id in gone)

    # --- by hand -----------------------------------------------------------------------------------------------

    async def _park(self, request: MoveRequest, caller: Caller, _send: Send) -> MovedMemory:
        return await self._move(request, caller, leave=True)

    async def _wake(self, request: MoveRequest, caller: Caller, _send: Send) -> MovedMemory:
        return await self._move(request, caller, leave=False)

    async def _move(self, request: MoveRequest, caller: Caller, *, leave: bool) -> MovedMemory:
        """Answers when the memory is where it should be."""
        verb = "park" if leave else "wake"
        found = self._machine.find(request.name)
        if isinstance(found, QueuedRequest):
            self._owner_only(caller, f"{verb} {found.name}", found.uid)
            raise RefusedError("failed", text=f"{found.name} waits for room: it has no memory on a card yet")
        tenant = found.tenant
        self._owner_only(caller, f"{verb} {tenant.name}", tenant.uid)
        if not tenant.parkable:
            said = "cannot be parked" if leave else "is not parked, and cannot be"
            raise RefusedError("failed", text=f"{tenant.name} {said}: {_why_never(found)}")
        if leave and not self._machine.pool_mib:
            raise RefusedError(
                "failed", text=f"{tenant.name} cannot be parked: the daemon has no host pool; start it with --host-pool"
            )
        # A script may park what it has just started: its memory is seen a moment later.
        seen_by = time.monotonic() + _NEWCOMER
        while not self._machine.arbiter.residencies(tenant.id) and time.monotonic() < seen_by:
            await asyncio.sleep(_LOOK)
        moves = _moves(self._machine.arbiter.residencies(tenant.id))
        why = self._machine.arbiter.request_move(tenant.id, leave=leave)
        if why is not None:
            there = self._machine.arbiter.residencies(tenant.id)
            said = "cannot leave" if leave else "cannot return" if there else "is not parked"
            raise RefusedError("failed", text=f"{tenant.name} {said}: {why}")
        deadline = time.monotonic() + request.timeout
        wanted, returned = Where.PARKED if leave else Where.RESIDENT, False
        while not _is_there(moved := self._machine.arbiter.residencies(tenant.id), wanted):
            # A run that works calls its memory back at once, maybe between two looks.
            returned = leave and _is_there(moved, Where.RESIDENT) and _moves(moved) > moves
            if returned:
                break
            if tenant.id not in self._machine.tenancies:
                raise RefusedError("failed", text=f"{tenant.name} has ended")
            if time.monotonic() >= deadline:
                raise RefusedError("failed", text=f"{tenant.name} has not {_past(leave)} yet{_why_now(moved)}")
            await asyncio.sleep(_LOOK)
        return MovedMemory(
            tenant.name,
            resident_bytes=sum(residency.resident for residency in moved),
            parked_bytes=sum(residency.parked for residency in moved),
            returned=True if returned else UNSET,
        )


def _moves(moved: list[Residency]) -> int:
    return sum(residency.moves for residency in moved)


def _is_there(moved: list[Residency], wanted: Where) -> bool:
    """A tenant that has no movable memory on a card is where it should be."""
    return all(residency.where is wanted for residency in moved)


def _past(leave: bool) -> str:
    return "left the card" if leave else "returned"


def _why_now(moved: list[Residency]) -> str:
    reasons = {residency.why for residency in moved}
    words = [reason_words(reason) for reason in sorted(reason for reason in reasons if reason is not None)]
    return f": {'; '.join(words)}" if words else ""


def _why_never(tenancy: Tenancy) -> str:
    if tenancy.parkable:
        return "it has whole cards, which are not shared"
    if len(tenancy.shares) > 1:
        return "it has several cards, and memory leaves only tenants with one"
    return f"its class is {tenancy.app_class}, and it was started without --park"
