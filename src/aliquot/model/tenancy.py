"""A tenant with what it holds and the process it began with: what the daemon of one machine keeps of every run."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.model.grant import Share
from aliquot.model.tenant import Allotment, Tenant


@dataclass(frozen=True, slots=True)
class Tenancy:
    """`shares` are what is booked, by the card's uuid; the index in them was right when they were booked."""

    tenant: Tenant
    shares: tuple[Share, ...]
    started: int | None  # of the tenant's root: when the kernel started it
    command: tuple[str, ...]
    created: float  # seconds since 1970
    log: str | None = None  # where the output of a detached one goes


def allotments_of(shares: tuple[Share, ...]) -> tuple[Allotment, ...]:
    """What the arbiter holds the tenant to. A card held whole has no limits."""
    return tuple(
        Allotment(share.uuid)
        if share.exclusive
        else Allotment(
            share.uuid,
            share.memory_mib << 20,
            share.core_milli if share.greedy_milli is None else share.greedy_milli,
        )
        for share in shares
    )
