"""Whose memory is on the card, in virtual time: moves take time, and everything that is asked for happens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.arbiter.residency import (
    ASK_AGAIN_MOST,
    RETRY_MOST,
    SLACK,
    STARVES,
    UNHEARD,
    Errand,
    Hearing,
    Leave,
    Memory,
    Obstacle,
    Occupant,
    Return,
    _obstacle,
    _ready_at,
    decide,
    most_room,
    pause_after,
)
from aliquot.model.claim import AppClass
from aliquot.model.residency import Where

GIB = 1 << 30
ONLINE, OFFLINE, NORMAL = AppClass.ONLINE, AppClass.OFFLINE, AppClass.NORMAL
H200 = Memory(card=139 * GIB, pool=200 * GIB)


def offline(name: str, gib: float, where: Where = Where.RESIDENT, **more: object) -> Occupant:
    return replace(Occupant(name, OFFLINE, where, round(gib * GIB)), **more)  # type: ignore[arg-type]


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


def parked(name: str, gib: float) -> Occupant:
    return offline(name, gib, Where.PARKED, parked=round(gib * GIB))


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


def test_online_allocation_takes_room_from_as_few_offline_tenants_as_possible() -> None:
    there = [
        offline(name, gib, last_active=5.5, since=4.0) for name, gib in (("small", 20), ("large", 60), ("middle", 50))
    ]
    asks = Occupant("on", ONLINE, Where.RESIDENT, 0, wants=40 * GIB, wants_since=5.0)
    found = decide([*there, asks], H200, 5.0)
    assert found.orders == (Leave("middle"),)  # one is enough, and it is the smallest that is
    after = [replace(there[2], where=Where.LEAVING), *there[:2], asks]
    assert decide(after, H200, 5.1).orders == ()
    gone = [replace(there[2], where=Where.PARKED, parked=50 * GIB, wants=0, wants_since=5.0), *there[:2], asks]
    assert decide(gone, H200, 5.5).orders == ()  # the room is kept for the allocation, and not given back


def test_room_for_online_work_is_not_taken_by_offline_work_that_waits_longer() -> None:
    asks = Occupant("on", ONLINE, Where.RESIDENT, 0, wants=100 * GIB, wants_since=50.0)
    waits = replace(parked("off", 60), wants=0, wants_since=0.0)
    found = decide([asks, waits, offline("there", 30)], H200, 51.0)
    assert found.orders == ()
    assert found.waiting == {"off": Obstacle.TURN} or Return("off") not in found.orders


def test_tenant_that_is_parked_when_idle_leaves_only_then() -> None:
    sleeper = Occupant("llm", ONLINE, Where.RESIDENT, 100 * GIB, park_after=30.0, last_active=10.0)
    asks = Occupant("n", NORMAL, Where.RESIDENT, 0, wants=60 * GIB, wants_since=20.0)
    early = decide([sleeper, asks], H200, 20.0)
    assert (early.orders, early.deadline) == ((), 40.0)
    assert early.waiting == {"n": Obstacle.TURN}
    assert decide([sleeper, asks], H200, 40.0).orders == (Leave("llm"),)
    never = replace(sleeper, park_after=None)
    assert decide([never, asks], H200, 1e6).waiting == {"n": Obstacle.NOT_PARKABLE}


def test_full_pool_refuses_to_park_and_says_so() -> None:
    asks = Occupant("on", ONLINE, Where.RESIDENT, 0, wants=100 * GIB)
    found = decide([asks, offline("off", 60)], replace(H200, pool=50 * GIB), 0.0)
    assert (found.orders, found.waiting) == ((), {"on": Obstacle.POOL})
    too_large = decide([replace(asks, wants=140 * GIB), offline("off", 60)], H200, 0.0)
    assert too_large.waiting == {"on": Obstacle.TOO_LARGE}


def test_memory_that_holds_nothing_needs_no_room_in_the_pool() -> None:
    """It makes room on the card all the same."""
    asks = Occupant("on", ONLINE, Where.RESIDENT, 0, wants=100 * GIB)
    off = offline("off", 60, kept=20 * GIB)
    assert decide([asks, off], replace(H200, pool=40 * GIB), 0.0).orders == (Leave("off"),)
    assert decide([asks, off], replace(H200, pool=39 * GIB), 0.0).waiting == {"on": Obstacle.POOL}
    leaving = replace(off, where=Where.LEAVING)
    more = replace(asks, wants=130 * GIB)
    assert decide([more, leaving, offline("a", 60)], replace(H200, pool=100 * GIB), 0.0).orders == (Leave("a"),)


def test_tenants_that_fill_the_card_together_do_not_block_each_other() -> None:
    """Each has a part of what it needs, and waits for more."""
    there = [offline(f"t{at}", 45, wants=GIB, wants_since=float(at), last_active=3.0, since=0.0) for at in range(3)]
    found = decide(there, replace(H200, card=135 * GIB), 3.0)
    assert len(found.orders) == 1
    assert found.orders[0] in (Leave("t1"), Leave("t2"))
    assert decide(there[::-1], replace(H200, card=135 * GIB), 3.0).orders == found.orders


def test_one_returns_while_another_leaves_if_there_is_a_little_room() -> None:
    waits = replace(parked("back", 60), wants=0, wants_since=0.0)
    there = [offline(name, 60, since=0.0, last_active=99.0) for name in "ab"]
    memory = replace(H200, pool=62 * GIB)
    assert decide([*there, waits], memory, 100.0).orders == (Leave("a"), Return("back"))
    tight = replace(memory, card=120 * GIB, pool=60 * GIB)
    assert decide([*there, waits], tight, 100.0).waiting == {"back": Obstacle.POOL}


def test_tenant_that_returns_gives_way_to_online_work() -> None:
    returning = replace(parked("off", 60), where=Where.RETURNING, parked=30 * GIB, wants=0)
    asks = Occupant("on", ONLINE, Where.RESIDENT, 0, wants=50 * GIB)
    assert decide([returning, asks], replace(H200, card=70 * GIB), 0.0).orders == (Leave("off"),)


def test_tenant_that_does_not_hear_is_passed_over_and_asked_again_less_and_less_often() -> None:
    """`deaf` is the first choice, because it is the smaller one: it is stopped, for 20 minutes."""
    deaf, other = offline("deaf", 40), offline("other", 60)
    online = Occupant("online", ONLINE, Where.RESIDENT, 0, wants=60 * GIB)
    hearing, asked, now, ordered, left_at = Hearing(), [], 0.0, False, None
    while now < 1200:
        if hearing.note(pending=ordered, works=False, now=now):
            ordered = False
        there = [replace(deaf, retry_at=hearing.ask_at), other, online]
        for order in decide(there, replace(H200, card=141 * GIB), now).orders:
            if order.tenant == "deaf" and not ordered:
                asked.append(now)
                ordered = True
            elif order.tenant == "other" and left_at is None:
                left_at = now
        now += 0.5
    assert asked[0] == 0.0
    assert left_at is not None
    assert left_at <= UNHEARD + 1  # long before its allocation gives up
    gaps = [later - before for before, later in pairwise(asked)]
    assert len(asked) >= 4
    assert gaps == sorted(gaps)
    assert gaps[-1] <= ASK_AGAIN_MOST + UNHEARD + 1


def test_tenant_that_works_on_and_ignores_orders_does_not_keep_others_from_leaving() -> None:
    """`deaf` is the first choice, and launches something in every round."""
    deaf, other = offline("deaf", 40), offline("other", 60)
    online = Occupant("online", ONLINE, Where.RESIDENT, 0, wants=60 * GIB)
    hearing, now, ordered = Hearing(), 0.0, False
    while other.where is Where.RESIDENT:
        assert now <= UNHEARD + 1, "long before its allocation gives up"
        if hearing.note(pending=ordered, works=True, now=now):
            ordered = False
        there = [replace(deaf, retry_at=hearing.ask_at), other, online]
        for order in decide(there, replace(H200, card=141 * GIB), now).orders:
            if order.tenant == "deaf":
                ordered = True
            else:
                other = replace(other, where=Where.LEAVING)
        now += 0.5


def test_tenant_that_works_again_may_be_asked_at_once() -> None:
    hearing = Hearing()
    assert not hearing.note(pending=True, works=False, now=0.0)
    assert hearing.note(pending=True, works=False, now=UNHEARD + 0.1)
    assert hearing.ask_at > UNHEARD + 1
    assert not hearing.note(pending=False, works=True, now=UNHEARD + 1)
    assert hearing == Hearing()


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0.0, 20.0)), max_size=60))
def test_order_is_withdrawn_only_after_its_time_and_asking_always_comes_again(
    seen: list[tuple[bool, bool, float]],
) -> None:
    hearing, now, pending_for = Hearing(), 0.0, 0.0
    for pending, works, passes in seen:
        now += passes
        pending_for = pending_for + passes if pending and hearing.since is not None else 0.0
        withdrawn = hearing.note(pending=pending, works=works, now=now)
        assert withdrawn == (pending and pending_for > UNHEARD)
        assert hearing.ask_at <= now + ASK_AGAIN_MOST
        assert not withdrawn or hearing.ask_at > now


@given(st.integers(1, 10_000), st.floats(0.1, 60.0))
def test_pauses_between_tries_double_up_to_the_longest(failures: int, first: float) -> None:
    pause = pause_after(failures, first)
    assert first <= pause <= max(first, RETRY_MOST)
    assert pause_after(failures + 1, first) == min(2 * pause, max(first, RETRY_MOST))
    assert pause_after(1, first) == first


@pytest.mark.parametrize(("failures", "pause"), [(16, 2.0), (17, 4.0), (18, 4.0), (10_000, 4.0)])
def test_pause_doubles_sixteen_times_at_most(failures: int, pause: float) -> None:
    assert pause_after(failures, 2.0**-14) == pause


@pytest.mark.parametrize(
    ("free", "pool", "orders"),
    [
        (0, SLACK, (Leave("a"), Return("back"))),
        (SLACK // 2, SLACK // 2, (Leave("a"), Return("back"))),  # on the card or in the pool
        (SLACK, 0, (Leave("a"), Return("back"))),
        (SLACK // 2 - 1, SLACK // 2, ()),  # and the pool has no room for what leaves before one returns
        (0, SLACK - 1, ()),
    ],
)
def test_one_returns_while_another_leaves_with_just_enough_slack(
    free: int, pool: int, orders: tuple[Leave | Return, ...]
) -> None:
    waits = replace(parked("back", 60), wants=0, wants_since=0.0)
    there = offline("a", 60, since=0.0, last_active=99.0)
    memory = replace(H200, card=there.on_card + free, pool=60 * GIB + pool)
    assert decide([there, waits], memory, 100.0).orders == orders


def test_memory_that_leaves_is_promised_to_who_returns_first_and_the_rest_to_who_asks() -> None:
    leaving = offline("l", 60, Where.LEAVING)
    returning = replace(parked("r", 30), where=Where.RETURNING, parked=30 * GIB, wants=0)
    stays = offline("s", 40, since=0.0, last_active=99.0)
    memory = replace(H200, card=110 * GIB)

    def orders(gib: int) -> tuple[Leave | Return, ...]:
        asks = Occupant("on", ONLINE, Where.RESIDENT, 0, wants=gib * GIB, wants_since=99.0)
        return decide([leaving, returning, stays, asks], memory, 100.0).orders

    assert orders(35) == (), "40 GiB come without another order"
    assert orders(45) != ()


# --- exactly ---------------------------------------------------------------------------------------------------------

BYTES = Memory(card=100, pool=1 << 40)


@pytest.mark.parametrize(("size", "returns"), [(40, True), (41, False)])
def test_what_leaves_is_first_for_those_that_return_and_the_rest_for_who_asks(size: int, returns: bool) -> None:
    """80 leave for 60 that return, of which 20 have room already."""
    moving = [Occupant("a", OFFLINE, Where.LEAVING, 80), Occupant("b", OFFLINE, Where.RETURNING, 60, parked=60)]
    asking = Occupant("c", ONLINE, Where.PARKED, size, parked=size, wants=0)
    decision = decide([*moving, asking], BYTES, 0.0)
    assert decision.orders == ((Return("c"),) if returns else ())
    assert decision.waiting == ({} if returns else {"c": Obstacle.NOT_PARKABLE})


@pytest.mark.parametrize(("size", "leaves"), [(5, True), (4, False)])
def test_where_too_little_leaves_for_those_that_return_others_make_all_the_room(size: int, leaves: bool) -> None:
    there = [
        Occupant("a", OFFLINE, Where.LEAVING, 30),
        Occupant("b", OFFLINE, Where.RETURNING, 60, parked=60),
        Occupant("d", NORMAL, Where.RESIDENT, 0, fixed=50 - size),
        Occupant("e", OFFLINE, Where.RESIDENT, size),
    ]
    asking = Occupant("c", ONLINE, Where.PARKED, 5, parked=5, wants=0)
    decision = decide([*there, asking], BYTES, 0.0)
    assert decision.orders == ((Leave("e"), Return("c")) if leaves else ())


@pytest.mark.parametrize(
    ("free", "where", "obstacle"),
    [
        (10, Where.PARKED, None),
        (9, Where.PARKED, Obstacle.NOT_PARKABLE),
        (10, Where.RESIDENT, None),
        (9, Where.RESIDENT, Obstacle.NOT_PARKABLE),
    ],
)
def test_room_is_enough_to_the_last_byte(free: int, where: Where, obstacle: Obstacle | None) -> None:
    away = 10 if where is Where.PARKED else 0
    asking = Occupant("a", NORMAL, where, away, parked=away, wants=10 - away)
    decision = decide([asking, Occupant("b", NORMAL, Where.RESIDENT, 100 - free)], BYTES, 0.0)
    assert decision.waiting == ({} if obstacle is None else {"a": obstacle})
    assert decision.orders == ((Return("a"),) if away and obstacle is None else ())


@pytest.mark.parametrize(("fixed", "too_large"), [(90, False), (91, True)])
def test_what_would_not_fit_beside_what_always_stays_is_too_large(fixed: int, too_large: bool) -> None:
    there = [Occupant("a", NORMAL, Where.RESIDENT, 0, fixed=fixed), Occupant("b", NORMAL, Where.RESIDENT, 5)]
    decision = decide([*there, Occupant("c", NORMAL, Where.RESIDENT, 0, wants=10)], BYTES, 0.0)
    assert decision.waiting == {"c": Obstacle.TOO_LARGE if too_large else Obstacle.NOT_PARKABLE}


@pytest.mark.parametrize(
    ("facts", "figures"),
    [
        # (resident, on_card, frees, slow_parked, slow_frees, pooled, copies, needs)
        ({}, (70, 75, 70, 0, 0, 30, 70, 30)),
        ({"where": Where.RETURNING}, (70, 75, 100, 0, 0, 30, 100, 30)),
        ({"parked": 130}, (0, 5, 0, 0, 0, 130, 0, 130)),
        ({"slow": 20}, (70, 75, 70, 0, 20, 30, 50, 30)),
        ({"slow": 20, "slow_away": True}, (70, 75, 70, 20, 0, 10, 70, 30)),
        ({"slow": 20, "slow_away": True, "where": Where.RETURNING}, (70, 75, 100, 20, 20, 10, 80, 30)),
        ({"kept": 25}, (70, 75, 70, 0, 0, 30, 45, 30)),
        ({"kept": 80}, (70, 75, 70, 0, 0, 30, 0, 30)),
        ({"wants": 7}, (70, 75, 70, 0, 0, 30, 70, 37)),
    ],
)
def test_figures_of_an_occupant(facts: dict[str, object], figures: tuple[int, ...]) -> None:
    one = replace(Occupant("a", OFFLINE, Where.RESIDENT, 100, parked=30, fixed=5), **facts)  # type: ignore[arg-type]
    found = (one.resident, one.on_card, one.frees, one.slow_parked, one.slow_frees, one.pooled, one.copies, one.needs)
    assert found == figures


def test_seconds_of_a_swap() -> None:
    leaving = Occupant("a", OFFLINE, Where.RESIDENT, 60 * 10**9, slow=20 * 10**9)
    coming = Occupant("b", OFFLINE, Where.PARKED, 30 * 10**9, parked=30 * 10**9, slow=10 * 10**9, slow_away=True)
    assert BYTES.seconds(leaving, coming) == 1.0 + 10.0 + 0.5 + 2.0


def test_most_room_is_what_would_be_free_if_all_left_that_may() -> None:
    there = [
        Occupant("a", NORMAL, Where.RESIDENT, 10, fixed=1),
        Occupant("b", OFFLINE, Where.RESIDENT, 20, fixed=2),
        Occupant("c", NORMAL, Where.RESIDENT, 30, fixed=3),
        Occupant("d", NORMAL, Where.RESIDENT, 40, fixed=4, park_after=1.0),
    ]
    assert [most_room(there, BYTES, name) for name in "abcd"] == [50, 30, 50, 10]


def test_errand_ends_when_nothing_is_under_way_or_when_it_takes_too_long() -> None:
    errand = Errand()
    errand.note(under_way=True, takes=0.0, now=5.0)  # not ordered: what its page says is nothing to us
    assert (errand.is_on, errand.ask_at, errand.overdue) == (False, -inf, 0)
    errand.begin(True, 10.0)
    errand.begin(True, 12.0)  # told again: it began when it was told first
    assert (errand.is_on, errand.since) == (True, 10.0)
    errand.begin(False, 13.0)
    assert (errand.leave, errand.since) == (False, 13.0)
    errand.note(under_way=True, takes=3.0, now=16.0)
    assert errand.is_on
    errand.note(under_way=False, takes=3.0, now=16.0)
    assert (errand.is_on, errand.overdue, errand.ask_at) == (False, 0, -inf)


def test_tenant_whose_errands_take_too_long_is_asked_less_and_less_often_until_one_ends() -> None:
    errand, pauses = Errand(), []
    for at in range(20):
        errand.begin(True, 1000.0 * at)
        errand.note(under_way=True, takes=3.0, now=1000.0 * at + 4.0)
        assert not errand.is_on
        pauses.append(errand.ask_at - 1000.0 * at - 4.0)
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0] + [300.0] * 15
    assert errand.overdue == 16
    errand.begin(True, 0.0)
    errand.note(under_way=False, takes=3.0, now=1.0)
    assert errand.overdue == 0


def test_order_is_withdrawn_after_more_than_its_time_and_asked_again_twice_as_late() -> None:
    hearing = Hearing()
    assert [hearing.note(pending=True, works=True, now=now) for now in (10.0, 15.0, 15.5)] == [False, False, True]
    assert (hearing.ask_at, hearing.unheard) == (25.5, 1)
    assert [hearing.note(pending=True, works=False, now=now) for now in (30.0, 36.0)] == [False, True]
    assert (hearing.ask_at, hearing.unheard) == (56.0, 2)
    assert hearing.note(pending=False, works=False, now=37.0) is False
    assert (hearing.ask_at, hearing.unheard) == (56.0, 2)
    assert hearing.note(pending=False, works=True, now=38.0) is False
    assert (hearing.ask_at, hearing.unheard) == (-inf, 0)


def test_room_that_is_too_little_for_the_first_is_kept_for_it() -> None:
    first = Occupant("a", ONLINE, Where.RESIDENT, 0, wants=10)
    second = Occupant("b", OFFLINE, Where.PARKED, 1, parked=1, wants=0)
    decision = decide([Occupant("x", NORMAL, Where.RESIDENT, 99), first, second], BYTES, 0.0)
    assert decision.orders == ()
    assert decision.waiting == dict.fromkeys("ab", Obstacle.NOT_PARKABLE)


@pytest.mark.parametrize(("size", "returns"), [(10, True), (11, False)])
def test_second_that_asks_has_what_the_first_leaves_of_what_comes(size: int, returns: bool) -> None:
    there = [Occupant("x", NORMAL, Where.RESIDENT, 79), Occupant("y", OFFLINE, Where.LEAVING, 20)]
    first = Occupant("a", ONLINE, Where.PARKED, 11, parked=11, wants=0, wants_since=1.0)  # 1 is free, 10 come
    second = Occupant("b", ONLINE, Where.PARKED, size, parked=size, wants=0, wants_since=2.0)
    orders = decide([*there, second, first], BYTES, 3.0).orders
    assert orders == ((Return("a"), Return("b")) if returns else (Return("a"),))


@pytest.mark.parametrize(("wants", "leaves"), [(6, "q"), (7, "p"), (10, "p"), (11, "pq"), (16, "pq"), (17, "")])
def test_as_little_leaves_as_is_enough(wants: int, leaves: str) -> None:
    there = [
        Occupant("p", OFFLINE, Where.RESIDENT, 10),
        Occupant("q", OFFLINE, Where.RESIDENT, 6),
        Occupant("x", NORMAL, Where.RESIDENT, 84),
    ]
    decision = decide([*there, Occupant("a", ONLINE, Where.RESIDENT, 0, wants=wants)], BYTES, 0.0)
    assert decision.orders == tuple(map(Leave, leaves))


ASKS = Occupant("asks", OFFLINE, Where.PARKED, 0, wants=0, wants_since=1000.0)


@pytest.mark.parametrize(
    ("leaving", "asking", "ready"),
    [
        # Offline for offline: 10 s for moving are a tenth of the time after a turn of 90 s,
        (offline("a", 10, since=100.0, last_active=1000.0), ASKS, 190.0),
        (offline("a", 0.1, since=100.0, last_active=1000.0), ASKS, 102.0),  # and no turn is shorter than 2 s;
        (offline("a", 10, since=100.0, last_active=120.0), ASKS, 121.0),  # sooner where it was idle for a second,
        (offline("a", 10, since=100.0, last_active=110.0, park_after=0.5), ASKS, 110.5),  # or as long as it said,
        (offline("a", 10, since=100.0, last_active=110.0, park_after=5.0), ASKS, 111.0),
        # or where the other one would have waited for 50 s when it is back; but not before its shortest turn is over,
        (offline("a", 10, since=100.0, last_active=1000.0), replace(ASKS, wants_since=110.0), 150.0),
        (offline("a", 10, since=100.0, last_active=1000.0), replace(ASKS, wants_since=50.0), 102.0),
        # nor before it may be asked again.
        (offline("a", 10, since=100.0, last_active=120.0, retry_at=500.0), ASKS, 500.0),
        # At once for those before it, and where it waits for room itself.
        (offline("a", 10, since=100.0, last_active=120.0), replace(ASKS, app_class=NORMAL), -inf),
        (offline("a", 10, since=100.0, retry_at=500.0), replace(ASKS, app_class=ONLINE), 500.0),
        (offline("a", 10, since=100.0, last_active=120.0, wants=1, wants_since=2000.0), ASKS, -inf),
        # Others when they were idle for as long as they said.
        (offline("a", 10, app_class=NORMAL, last_active=110.0, park_after=5.0), ASKS, 115.0),
        (offline("a", 10, app_class=NORMAL, last_active=110.0, park_after=5.0, retry_at=500.0), ASKS, 500.0),
        (offline("a", 10, app_class=NORMAL, last_active=110.0), ASKS, inf),
        (offline("a", 10, app_class=ONLINE, last_active=110.0, park_after=5.0), replace(ASKS, app_class=ONLINE), 115.0),
    ],
)
def test_when_one_may_leave_for_another(leaving: Occupant, asking: Occupant, ready: float) -> None:
    memory = Memory(card=100 * GIB, pool=100 * GIB, bandwidth=float(GIB))
    assert _ready_at(leaving, asking, [leaving], memory) == pytest.approx(ready)


@pytest.mark.parametrize(
    ("there", "ready", "lacking", "obstacle"),
    [
        (["a"], [], 11, Obstacle.NOT_PARKABLE),
        (["a"], [], 10, Obstacle.TURN),
        (["a", "b"], ["a"], 11, Obstacle.TURN),
        (["a", "b"], ["a"], 10, Obstacle.POOL),
        (["a", "b"], ["a", "b"], 20, Obstacle.POOL),
        ([], [], 1, Obstacle.NOT_PARKABLE),
    ],
)
def test_obstacle_is_what_may_never_leave_then_what_may_not_now_then_the_pool(
    there: list[str], ready: list[str], lacking: int, obstacle: Obstacle
) -> None:
    names = {name: Occupant(name, OFFLINE, Where.RESIDENT, 10) for name in "ab"}
    assert _obstacle([names[name] for name in there], [names[name] for name in ready], lacking) is obstacle


@pytest.mark.parametrize(("second", "orders"), [(10, (Leave("a"),)), (11, (Leave("a"), Leave("b")))])
def test_what_leaves_beyond_what_the_first_needs_is_for_the_second(
    second: int, orders: tuple[Leave | Return, ...]
) -> None:
    """For 50 bytes 60 leave: of these 10 are left for the next."""
    there = [Occupant("a", OFFLINE, Where.RESIDENT, 60), Occupant("b", OFFLINE, Where.RESIDENT, 40)]
    asking = [Occupant(name, ONLINE, Where.RESIDENT, 0, wants=size) for name, size in (("x", 50), ("y", second))]
    assert decide([*there, *asking], Memory(card=100, pool=1000), 100.0).orders == orders
