"""A pace: a burst at once, then so many per second. Looks in turns: each owner has so much time. Work done for many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator

import pytest

from aliquot.services.daemon.pace import Pace, Together, Turns, in_steps


def test_pace_allows_a_burst_and_then_waits() -> None:
    pace = Pace(per_second=10, burst=3)
    assert [pace.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert pace.wait(0.0) == pytest.approx(0.1)


def test_pace_refills_with_time_up_to_the_burst() -> None:
    pace = Pace(per_second=10, burst=2)
    for _ in range(2):
        pace.take(0.0)
    assert pace.take(0.1)
    assert [pace.take(100.0) for _ in range(3)] == [True, True, False]


def test_pace_ignores_a_clock_that_was_set_back() -> None:
    pace = Pace(per_second=1, burst=1)
    assert pace.take(100.0)
    assert not pace.take(50.0)
    assert pace.take(51.0)


def _spend(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def _looked_at(turns: Turns, owners: dict[str, str], slow: Collection[str]) -> list[str]:
    """What had time in one look; what is slow takes longer than its owner has."""
    found = []
    for thing, seconds in turns.look(owners):
        if seconds:
            found.append(thing)
            _spend(0.01 if thing in slow else 0.0)
    return found


def test_turns_give_each_owner_so_much_time_and_go_on_with_what_was_left() -> None:
    owners = {"a": "mallory", "b": "mallory", "c": "mallory", "d": "alice"}
    turns = Turns(0.005)
    looks = [_looked_at(turns, owners, "abc") for _ in range(4)]
    assert looks == [["a", "d"], ["b", "d"], ["c", "d"], ["a", "d"]]


def test_turns_begin_with_what_is_new() -> None:
    owners = {f"old-{at}": "mallory" for at in range(5)}
    turns = Turns(0.005)
    assert _looked_at(turns, owners, owners) == ["old-0"]
    assert _looked_at(turns, owners, owners) == ["old-1"]
    assert _looked_at(turns, {"old-0": "mallory", "old-1": "mallory", "new": "mallory"}, owners) == ["new", "old-0"]


def test_work_that_many_ask_for_together_is_done_once_for_all_who_asked_before_it_began() -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(len(done))
        await asyncio.sleep(0.02)

    async def act() -> None:
        together = Together(work)
        first = asyncio.create_task(together())
        while not done:
            await asyncio.sleep(0)
        await asyncio.gather(*(together() for _ in range(50)))
        assert first.done()

    asyncio.run(act())
    assert done == [0, 1]


def test_work_that_fails_or_is_cancelled_is_done_again_for_the_next_who_asks() -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(len(done))
        await asyncio.sleep(0)
        if len(done) == 1:
            raise OSError("once")

    async def act(together: Together) -> None:
        with pytest.raises(OSError, match="once"):
            await together()
        asyncio.ensure_future(together()).cancel()
        late = asyncio.create_task(together())
        await asyncio.sleep(0)
        late.cancel()

    together = Together(work)
    asyncio.run(act(together))
    asyncio.run(together())
    assert len(done) >= 2


def test_others_have_their_turn_between_steps() -> None:
    turns = 0

    def steps() -> Iterator[int]:
        for at in range(6):
            _spend(0.006)
            yield at

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def act() -> None:
        counting = asyncio.create_task(count())
        assert await in_steps(steps()) == [*range(6)]
        counting.cancel()

    asyncio.run(act())
    assert turns >= 3


def test_turns_give_one_thing_only_a_part_of_the_time_of_its_owner() -> None:
    """Who looks at it may hold a lock meanwhile."""
    assert dict(Turns(0.02).look({"a": "mallory", "b": "alice"})) == {"a": 0.005, "b": 0.005}
