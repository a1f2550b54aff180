"""Tenants with memory on a card or away from it, for tests of residency."""

from __future__ import annotations

from dataclasses import replace

from aliquot.arbiter.residency import Memory, Occupant
from aliquot.model.claim import AppClass
from aliquot.model.residency import Where

GIB = 1 << 30
ONLINE, OFFLINE, NORMAL = AppClass.ONLINE, AppClass.OFFLINE, AppClass.NORMAL
H200 = Memory(card=139 * GIB, pool=200 * GIB)


def offline(name: str, gib: float, where: Where = Where.RESIDENT, **more: object) -> Occupant:
    return replace(Occupant(name, OFFLINE, where, round(gib * GIB)), **more)  # type: ignore[arg-type]


def parked(name: str, gib: float) -> Occupant:
    return offline(name, gib, Where.PARKED, parked=round(gib * GIB))
