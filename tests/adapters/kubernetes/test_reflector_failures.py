"""The reflector with servers and sinks that fail: it is patient, and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.adapters.kubernetes import reflector as module
from kit.clusters.apiserver import ApiServer, half_an_answer, hang_up, status, text
from kit.clusters.reflection import Rig, play, sizes, three
from kit.running.waiting import until

pytestmark = pytest.mark.usefixtures("quick_reflector")


@pytest.mark.parametrize(
    "hostile",
    [
        lambda server: server.watch_faults.extend([text(200, "")] * 1000),
        lambda server: server.watch_faults.extend([status(410, "Expired", "too old")] * 1000),
        lambda server: server.watch_faults.extend([text(200, '{"type":"ERROR","object":{"code":410}}\n')] * 1000),
        lambda server: server.watch_faults.extend([status(403, "Forbidden", "no watch")] * 1000),
        lambda server: server.faults.extend([hang_up] * 1000),
        lambda server: server.faults.extend([status(500)] * 1000),
    ],
    ids=[
        "every watch ends at once",
        "always 410",
        "always 410 in the stream",
        "no watch",
        "nobody there",
        "always 500",
    ],
)
@pytest.mark.parametrize("wanted", [False, True], ids=["", "a list is wanted"])
def test_a_server_that_always_fails_is_not_asked_in_a_tight_loop(
    hostile: Callable[[ApiServer], object], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.05)
    monkeypatch.setattr(module, "_LONGEST_PAUSE", 15.0)

    async def scene(rig: Rig) -> None:
        asked = asyncio.create_task(rig.reflector.relist()) if wanted else None
        await asyncio.sleep(0.4)
        # Pauses of 25, 50, 100 and 200 ms; each try is a list and a watch at most.
        assert len(rig.server.calls) <= 14
        if asked is not None:
            asked.cancel()

    play(scene, before=hostile)


def test_a_server_that_goes_away_after_a_long_watch_is_not_listed_in_a_tight_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.server.put("d")
        await rig.same()
        monkeypatch.setattr(module, "_FIRST_PAUSE", 0.05)
        monkeypatch.setattr(module, "_LONGEST_PAUSE", 15.0)
        rig.server.faults.extend([hang_up] * 1000)
        rig.server.calls.clear()
        asked = asyncio.create_task(rig.reflector.relist())
        await asyncio.sleep(0.4)
        assert len(rig.server.calls) <= 14  # each try may be two calls, as above
        asked.cancel()

    play(scene, before=three)


@pytest.mark.parametrize("fault", [None, status(403, "Forbidden", "no list")], ids=["listed", "forbidden"])
def test_answered_is_set_by_a_list_or_a_refusal(fault: Any) -> None:
    async def scene(rig: Rig) -> None:
        await asyncio.wait_for(rig.reflector.answered.wait(), 5.0)
        assert rig.reflector.synced.is_set() == (fault is None)

    play(scene, before=lambda server: server.faults.extend([hang_up] + [fault] * 1000 if fault else []))


@pytest.mark.parametrize("at", ["changed", "gone"])
def test_the_next_list_reports_what_a_sink_failed_at(at: str) -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.server.put("b", size=2, quietly=True)
        rig.server.put("z", quietly=True)
        for name in "ac":
            rig.server.remove(name, quietly=True)
        report, failing = getattr(rig.sink, at), True

        def fail_once(what: Any) -> None:
            nonlocal failing
            if failing:
                failing = False
                raise RuntimeError("broken")
            report(what)

        setattr(rig.sink, at, fail_once)
        asked = asyncio.create_task(rig.reflector.relist())
        with pytest.raises(RuntimeError, match="broken"):
            await rig.following
        assert not rig.sink.in_list
        rig.following = asyncio.create_task(rig.reflector.run())
        await asked
        assert rig.sink.known == sizes(rig.server) == {"b": 2, "z": 0}

    play(scene, before=three)


def test_reflector_is_cancelled_even_while_a_relist_is_wanted() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        asked = asyncio.create_task(rig.reflector.relist())
        await asyncio.sleep(0)
        rig.following.cancel()
        done, _ = await asyncio.wait([rig.following], timeout=5.0)
        assert done
        asked.cancel()

    play(scene, before=three)


names = st.sampled_from("abcd")


steps = st.one_of(
    st.tuples(st.just("put"), names, st.booleans()),
    st.tuples(st.just("put"), names, st.just(False)),
    st.tuples(st.just("remove"), names, st.just(False)),
    st.tuples(st.just("remove"), names, st.booleans()),
    st.tuples(st.sampled_from(["cut", "end", "compact", "bookmark", "garbage", "rest", "relist"])),
    st.tuples(st.just("fail"), st.sampled_from([hang_up, half_an_answer, status(500), status(410), text(200, "{")])),
)


def _do(server: ApiServer, step: tuple[Any, ...], at: int) -> None:
    match step:
        case ("put", name, quietly):
            server.put(name, size=at, quietly=quietly)
        case ("remove", name, quietly) if name in server.items:
            server.remove(name, quietly=quietly)
        case ("cut",):
            server.cut()
        case ("end",):
            server.end_watches()
        case ("compact",):
            server.compact()
        case ("bookmark",):
            server.bookmark()
        case ("garbage",):
            server.say(b"\xff{\n")
        case ("fail", fault):
            server.faults.append(fault)
            server.watch_faults.append(fault)


@settings(max_examples=40)
@given(st.lists(steps, max_size=25))
def test_reflector_converges_whatever_happens(story: list[tuple[Any, ...]]) -> None:
    async def scene(rig: Rig) -> None:
        waiting = []
        for at, step in enumerate(story, 1):
            _do(rig.server, step, at)
            if step == ("relist",):
                waiting.append(asyncio.create_task(rig.reflector.relist()))
            if step == ("rest",):
                await asyncio.sleep(0.003)
        rig.server.faults.clear()
        rig.server.watch_faults.clear()
        await asyncio.gather(*waiting)
        await rig.reflector.relist()
        assert rig.sink.known == sizes(rig.server)
        for versions in rig.sink.versions.values():
            assert versions == sorted(set(versions)), "each once, and in order"
        await until(lambda: rig.server.watching)
        rig.server.put("last", size=99)
        await rig.same()

    play(scene, before=three)
