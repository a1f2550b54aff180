"""Whose memory leaves the card and whose returns: one decision at a time."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from aliquot.arbiter.residency import (
    SLACK,
    Leave,
    Memory,
    Obstacle,
    Occupant,
    Return,
    _obstacle,
    _ready_at,
    decide,
    most_room,
)
from aliquot.model.residency import Where
from kit.cards.occupants import GIB, H200, NORMAL, OFFLINE, ONLINE, offline, parked


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


def test_leaving_memory_is_promised_to_returning_tenants_first_then_to_the_asking_one() -> None:
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
def test_room_of_leaving_tenants_goes_to_returning_ones_first_then_to_the_asking_one(size: int, returns: bool) -> None:
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
        # (resident, on_card, frees, copies, needs)
        ({}, (70, 75, 70, 70, 30)),
        ({"where": Where.RETURNING}, (70, 75, 100, 100, 30)),
        ({"parked": 130}, (0, 5, 0, 0, 130)),
        ({"kept": 25}, (70, 75, 70, 45, 30)),
        ({"kept": 80}, (70, 75, 70, 0, 30)),
        ({"wants": 7}, (70, 75, 70, 70, 37)),
    ],
)
def test_figures_of_an_occupant(facts: dict[str, object], figures: tuple[int, ...]) -> None:
    one = replace(Occupant("a", OFFLINE, Where.RESIDENT, 100, parked=30, fixed=5), **facts)  # type: ignore[arg-type]
    assert (one.resident, one.on_card, one.frees, one.copies, one.needs) == figures


def test_seconds_of_a_swap() -> None:
    leaving = Occupant("a", OFFLINE, Where.RESIDENT, 40 * 10**9)
    coming = Occupant("b", OFFLINE, Where.PARKED, 20 * 10**9, parked=20 * 10**9)
    assert BYTES.seconds(leaving, coming) == 1.5


def test_most_room_is_what_would_be_free_if_all_left_that_may() -> None:
    there = [
        Occupant("a", NORMAL, Where.RESIDENT, 10, fixed=1),
        Occupant("b", OFFLINE, Where.RESIDENT, 20, fixed=2),
        Occupant("c", NORMAL, Where.RESIDENT, 30, fixed=3),
        Occupant("d", NORMAL, Where.RESIDENT, 40, fixed=4, park_after=1.0),
    ]
    assert [most_room(there, BYTES, name) for name in "abcd"] == [50, 30, 50, 10]


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
def test_as_little_memory_leaves_as_is_enough(wants: int, leaves: str) -> None:
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
def test_time_from_which_a_tenant_may_leave_for_another(leaving: Occupant, asking: Occupant, ready: float) -> None:
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
