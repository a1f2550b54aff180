"""First lists that are reported as they come, and pages that are fetched ahead."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from aliquot.adapters.kubernetes import reflector as module
from aliquot.adapters.kubernetes.listing import request_pages
from aliquot.adapters.kubernetes.paging import EndlessError, PagesAhead
from kit.clusters.apiserver import PATH, ApiServer, hang_up, status
from kit.clusters.reflection import Meta, Rig, Thing, play, sizes
from kit.running.waiting import until

pytestmark = pytest.mark.usefixtures("quick_reflector")


def six(server: ApiServer) -> None:
    for name in "abcdef":
        server.put(name, size=1)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    monkeypatch.setattr(module, "_PART", 1)
    monkeypatch.setattr(module, "_AHEAD", 1)


async def held(server: ApiServer, request: Any) -> Any:
    await asyncio.sleep(0.2)
    return await server.listed(request)


def test_a_first_list_in_parts_is_reported_before_its_last_page_is_there() -> None:
    def before(server: ApiServer) -> None:
        six(server)
        server.faults.extend([server.listed, lambda request: held(server, request)])

    async def scene(rig: Rig) -> None:
        await until(lambda: rig.sink.known)
        assert len(rig.sink.known) <= 2
        assert rig.sink.in_list
        assert not rig.reflector.synced.is_set()
        await rig.synced()
        assert rig.sink.reported == [("changed", name) for name in "abcdef"]
        assert (rig.sink.drifts, rig.sink.broken) == ([0], 0)
        rig.server.put("g")
        await rig.same()

    play(scene, before=before, in_parts=True)


@pytest.mark.parametrize("fault", [hang_up, status(500), status(410, "Expired")], ids=["hangs up", "500", "410"])
def test_a_list_in_parts_that_breaks_off_is_repeated_and_reports_the_rest(fault: Any) -> None:
    def before(server: ApiServer) -> None:
        six(server)

        async def change(request: Any) -> Any:
            server.remove("a", quietly=True)
            server.put("b", size=2, quietly=True)
            return await fault(request)

        server.faults.extend([server.listed, change])

    async def scene(rig: Rig) -> None:
        await rig.synced()
        assert rig.sink.known == sizes(rig.server) == dict.fromkeys("cdef", 1) | {"b": 2}
        assert rig.sink.reported == [
            ("changed", "a"),
            ("changed", "b"),
            *(("changed", name) for name in "bcdef"),
            ("gone", "a"),
        ]
        assert (rig.sink.drifts, rig.sink.broken, rig.reflector.drift) == ([0], 1, 0)

    play(scene, before=before, in_parts=True)


def test_objects_are_decoded_part_by_part_so_that_few_are_in_memory_at_once() -> None:
    """What comes before an object that cannot be read is reported, and the next list goes on from there."""

    def before(server: ApiServer) -> None:
        server.put("a", size=1)
        server.put("b", size="much")

    async def scene(rig: Rig) -> None:
        await until(lambda: rig.sink.broken)
        assert rig.sink.reported == [("changed", "a")]
        assert not rig.reflector.synced.is_set()
        rig.server.put("b", size=2)
        await rig.synced()
        assert rig.sink.reported == [("changed", "a"), ("changed", "b")]

    play(scene, before=before, in_parts=True)


def test_what_is_observed_during_a_list_in_parts_is_not_undone() -> None:
    async def scene(rig: Rig) -> None:
        await until(lambda: rig.sink.known)
        rig.reflector.observe(Thing(Meta("f", "", "999"), 9))
        await rig.reflector.synced.wait()
        assert rig.sink.known["f"] == 9

    def before(server: ApiServer) -> None:
        six(server)
        server.faults.extend([server.listed, lambda request: held(server, request)])

    play(scene, before=before, in_parts=True)


def test_report_all_again_during_a_list_in_parts_reports_all_before_it_is_synced() -> None:
    async def scene(rig: Rig) -> None:
        await until(lambda: rig.sink.known)
        rig.reflector.report_all_again()
        before = [name for _, name in rig.sink.reported]
        await rig.reflector.synced.wait()
        assert sorted(name for _, name in rig.sink.reported) == sorted([*before, *"abcdef"])
        assert (rig.sink.drifts, rig.sink.broken, rig.reflector.drift) == ([0], 1, 0)

    def before(server: ApiServer) -> None:
        six(server)
        server.faults.extend([server.listed, lambda request: held(server, request)])

    play(scene, before=before, in_parts=True)


def test_pages_that_were_requested_before_are_the_first_list() -> None:
    asked = []

    async def ask(token: str) -> bytes:
        """Compact, as an API server writes: the next page is known before this one is decoded."""
        asked.append(token)
        at = int(token or 0)
        metadata = {"resourceVersion": "100", **({"continue": str(at + 1)} if at < 3 else {})}
        item = {"metadata": {"name": "abcd"[at], "resourceVersion": "7"}}
        return json.dumps({"metadata": metadata, "items": [item]}, separators=(",", ":")).encode()

    async def scene() -> None:
        async with ApiServer() as server, server.kube() as kube:
            first = PagesAhead(ask, PATH, most=2)
            await asyncio.sleep(0.05)
            assert asked == ["", "1"]  # no more than that is fetched before it is read
            rig = Rig(server, kube, in_parts=True, first=first)
            following = asyncio.create_task(rig.reflector.run())
            await rig.reflector.synced.wait()
            assert sorted(rig.sink.known) == list("abcd")
            assert asked == ["", "1", "2", "3"]
            assert server.asked(watch=False) == []
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scene(), 20))


class LivingPage(bytes):
    """Counts how many of them are in memory."""

    living = 0

    def __new__(cls, raw: bytes) -> LivingPage:
        cls.living += 1
        return super().__new__(cls, raw)

    def __del__(self) -> None:
        LivingPage.living -= 1


@pytest.mark.parametrize("in_parts", [True, False], ids=["as it comes", "as a whole"])
def test_a_page_is_not_kept_in_memory_while_the_next_one_is_awaited(
    in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each object of a page holds all of it: some megabytes."""
    kept: list[int] = []
    LivingPage.living = 0

    async def ask(token: str) -> bytes:
        await asyncio.sleep(0.1)  # what came is applied by then
        kept.append(LivingPage.living)
        at = int(token or 0)
        metadata = {"resourceVersion": "100", **({"continue": str(at + 1)} if at < 3 else {})}
        items = [{"metadata": {"name": f"{'abcd'[at]}{twin}", "resourceVersion": "7"}} for twin in range(2)]
        return LivingPage(json.dumps({"metadata": metadata, "items": items}, separators=(",", ":")).encode())

    async def scene() -> None:
        async with ApiServer() as server, server.kube() as kube:
            rig = Rig(server, kube, in_parts=in_parts)
            monkeypatch.setattr(rig.reflector, "_request_pages", lambda most=1: PagesAhead(ask, PATH))
            following = asyncio.create_task(rig.reflector.run())
            await rig.reflector.synced.wait()
            assert len(rig.sink.known) == 8
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scene(), 20))
    assert kept == [0, 0, 0, 0]


def test_request_pages_asks_the_api_server_for_pages_of_the_limit() -> None:
    async def scene() -> None:
        async with ApiServer() as server, server.kube() as kube:
            six(server)
            pages = request_pages(kube, PATH, {"fieldSelector": "x=y"}, limit=4)
            raw = await pages.take()
            assert raw is not None
            pages.follow(json.loads(raw)["metadata"]["continue"])
            assert await pages.take() is not None
            assert await pages.take() is None
            queries = [(call.query["limit"], call.query["fieldSelector"]) for call in server.asked(watch=False)]
            assert queries == [("4", "x=y")] * 2

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_pages_ahead_end_with_an_error_where_pages_name_each_other() -> None:
    async def ask(token: str) -> bytes:
        return b'{"metadata":{"continue":"x"},"items":[]}'

    async def scene() -> None:
        ahead = PagesAhead(ask, "/things")
        assert await ahead.take() == await ahead.take()
        with pytest.raises(EndlessError, match="no end"):
            await ahead.take()

    asyncio.run(asyncio.wait_for(scene(), 20))
