"""Whose memory is on the card, in virtual time: moves take time, and everything that is asked for happens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.arbiter.residency import STARVES, Leave, Memory, Occupant, Return, decide
from aliquot.model.residency import Where
from kit.cards.occupants import GIB, H200, offline, parked


@dataclass
class World:
    """Tenants whose moves take as long as they have bytes, piece by piece; offline ones always have work."""

    memory: Memory
    tenants: dict[str, Occupant]
    now: float = 0.0
    moves: int = 0
    moving: float = 0.0
    resident: dict[str, float] = field(default_factory=dict)
    longest_away: dict[str, float] = field(default_factory=dict)

    def run(self, seconds: float, step: float = 0.05) -> None:
        end = self.now + seconds
        while self.now < end:
            self._move(round(self.memory.bandwidth * step), step)
            for name, tenant in self.tenants.items():
                if tenant.where is Where.RESIDENT:
                    self.resident[name] = self.resident.get(name, 0.0) + step
                    self.tenants[name] = replace(tenant, last_active=self.now)
                elif tenant.where is Where.PARKED and tenant.wants is None:
                    self.tenants[name] = tenant = replace(tenant, wants=0, wants_since=self.now)
                if tenant.where is not Where.RESIDENT:
                    away = self.now - tenant.wants_since
                    self.longest_away[name] = max(self.longest_away.get(name, 0.0), away)
            for order in decide(list(self.tenants.values()), self.memory, self.now).orders:
                self._begin(order)
            self.now += step

    def _begin(self, order: Leave | Return) -> None:
        tenant = self.tenants[order.tenant]
        self.moves += 1
        if isinstance(order, Leave):
            assert tenant.where is Where.RESIDENT
            changed = replace(tenant, where=Where.LEAVING, wants=0, wants_since=self.now, since=self.now)
        else:
            assert tenant.where is Where.PARKED
            changed = replace(tenant, where=Where.RETURNING, since=self.now)
        self.tenants[order.tenant] = changed

    def _move(self, most: int, step: float) -> None:
        """One step of every move, as far as there is room. The card and the pool never hold more than they can."""
        for name, tenant in self.tenants.items():
            if tenant.where is Where.LEAVING:
                room = self.memory.pool - sum(other.parked for other in self.tenants.values())
                tenant = replace(tenant, parked=tenant.parked + min(most, tenant.resident, room))
                if not tenant.resident:
                    tenant = replace(tenant, where=Where.PARKED, since=self.now)
            elif tenant.where is Where.RETURNING:
                room = self.memory.card - sum(other.on_card for other in self.tenants.values())
                tenant = replace(tenant, parked=tenant.parked - min(most, tenant.parked, room))
                if not tenant.parked:
                    tenant = replace(tenant, where=Where.RESIDENT, wants=None, since=self.now)
            self.moving += step if tenant.where in (Where.LEAVING, Where.RETURNING) else 0
            self.tenants[name] = tenant
        assert sum(tenant.on_card for tenant in self.tenants.values()) <= self.memory.card
        assert sum(tenant.parked for tenant in self.tenants.values()) <= self.memory.pool


def test_three_tenants_on_a_card_for_two_take_turns_and_none_starves() -> None:
    names = ("a", "b", "c")
    tenants = {"a": offline("a", 60), "b": offline("b", 60), "c": parked("c", 60)}
    world = World(replace(H200, pool=64 * GIB), tenants)  # one of them, and little more, fits in the pool
    world.run(600)
    shares = [world.resident[name] / 600 for name in names]
    assert min(shares) >= 0.55  # of 2/3
    assert max(world.longest_away.values()) <= STARVES + 5
    assert world.moving / 600 <= 0.12 * 2  # out and in overlap the other tenant's work: a tenth of each one's turn


@settings(max_examples=30)
@given(st.lists(st.integers(5, 60), min_size=2, max_size=6), st.integers(60, 139), st.sampled_from([0, 512 << 20]))
def test_no_tenant_starves_and_the_card_is_never_overbooked(sizes: list[int], card: int, context: int) -> None:
    """Contexts stay on the card; placement books so that each tenant fits beside those of the others."""
    memory = Memory(card=card * GIB + context * len(sizes), pool=400 * GIB)
    there = {f"t{at}": replace(parked(f"t{at}", size), fixed=context) for at, size in enumerate(sizes)}
    world = World(memory, there)
    world.run(400)
    fits = sum(sizes) <= card
    for name in world.tenants:
        assert world.resident.get(name, 0.0) >= (390 if fits else 10), name
    if fits:
        assert world.moves == len(sizes)
