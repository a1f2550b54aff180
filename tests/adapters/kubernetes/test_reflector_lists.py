"""Lists of the reflector: pages, lists again, and what differs from what was known."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aliquot.adapters.kubernetes import reflector as module
from aliquot.adapters.kubernetes.paging import next_page
from kit.clusters.apiserver import ApiServer, half_an_answer, hang_up, status, text
from kit.clusters.reflection import Rig, play, sizes, three
from kit.running.waiting import until

pytestmark = pytest.mark.usefixtures("quick_reflector")


def test_a_list_is_read_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)

    async def scene(rig: Rig) -> None:
        await rig.synced()
        assert sorted(rig.sink.known) == list("abcde")
        lists = rig.server.asked(watch=False)
        assert [(items.query["limit"], "continue" in items.query) for items in lists] == [
            ("2", False),
            ("2", True),
            ("2", True),
        ]
        assert [call.query["resourceVersion"] for call in rig.server.asked(watch=True)] == ["105"]

    def before(server: ApiServer) -> None:
        for name in "abcde":
            server.put(name)

    play(scene, before=before)


@pytest.mark.parametrize("in_stream", [True, False], ids=["as an event", "as the answer"])
def test_after_410_reflector_lists_and_reports_only_differences(in_stream: bool) -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.server.expired_in_stream = in_stream
        rig.sink.forget()
        rig.server.cut()
        rig.server.put("a", size=5, quietly=True)
        rig.server.remove("b", quietly=True)
        rig.server.put("d", quietly=True)
        rig.server.compact()
        await rig.same()
        assert rig.sink.reported == [("changed", "a"), ("changed", "d"), ("gone", "b")]
        assert (rig.reflector.relists, rig.reflector.drift, rig.sink.drifts) == (1, 3, [0, 3])
        await until(lambda: rig.server.watching)
        rig.server.put("e")
        await rig.same()

    play(scene, before=three)


@pytest.mark.parametrize(
    ("raw", "token"),
    [
        (b'{"kind":"PodList","metadata":{"resourceVersion":"7","continue":"abc"},"items":[{"spec":{}}]}', "abc"),
        (b'{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"continue":"abc"}}]}', ""),
        (b'{"items":[],"metadata":{"continue":"abc"}}', ""),
        (b'{"metadata":{"continue":7},"items":[]}', ""),
        (b'{"metadata":', ""),
        (b"", ""),
    ],
    ids=["another page", "the last", "another order", "another type", "half", "empty"],
)
def test_the_next_page_is_known_from_the_beginning_of_this_one(raw: bytes, token: str) -> None:
    assert next_page(raw) == token


def test_a_relist_is_read_in_smaller_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NEXT_PAGE", 1)

    async def scene(rig: Rig) -> None:
        await rig.synced()
        await rig.reflector.relist()
        assert [call.query["limit"] for call in rig.server.asked(watch=False)] == ["1000", "1", "1", "1"]
        assert rig.sink.drifts == [0, 0]

    play(scene, before=three)


def test_a_list_that_expires_between_two_pages_is_begun_anew_and_reports_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)

    def before(server: ApiServer) -> None:
        three(server)
        server.faults.extend([server.listed, status(410, "Expired", "the continue token is too old")])

    async def scene(rig: Rig) -> None:
        await rig.synced()
        assert rig.sink.reported == [("changed", name) for name in "abc"]

    play(scene, before=before)


@pytest.mark.parametrize("items", ["[]", '[{"metadata": {"name": "a", "resourceVersion": "1"}}]'])
def test_a_list_whose_pages_name_each_other_is_given_up_and_repeated(
    items: str, caplog: pytest.LogCaptureFixture
) -> None:
    endless = text(200, f'{{"metadata":{{"resourceVersion":"1","continue":"again"}},"items":{items}}}')

    def before(server: ApiServer) -> None:
        three(server)
        server.faults.extend([endless] * 3)

    async def scene(rig: Rig) -> None:
        await rig.synced()
        assert rig.sink.reported == [("changed", name) for name in "abc"]
        assert len(rig.server.asked(watch=False)) <= 6

    play(scene, before=before)
    assert any("page 2 refers back to a page that was read already" in str(vars(each)) for each in caplog.records)


@pytest.mark.parametrize(
    "fault",
    [hang_up, half_an_answer, status(500), status(401), text(502, "<html>"), text(200, "{"), text(200, "[]")],
    ids=["hangs up", "half an answer", "500", "401", "a proxy", "broken", "another form"],
)
def test_a_list_that_fails_reports_nothing_and_is_repeated(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)

    def before(server: ApiServer) -> None:
        three(server)
        server.faults.extend([fault, server.listed, fault])

    async def scene(rig: Rig) -> None:
        await rig.synced()
        assert rig.sink.reported == [("changed", name) for name in "abc"]
        assert rig.sink.drifts == [0]

    play(scene, before=before)


def test_an_object_recreated_during_an_outage_is_reported_as_changed() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.sink.forget()
        rig.server.remove("a", quietly=True)
        rig.server.put("a", quietly=True, size=9)
        await rig.reflector.relist()
        assert rig.sink.reported == [("changed", "a")]
        assert rig.sink.known["a"] == 9

    play(scene, before=three)


def test_a_relist_reports_and_counts_drift() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.sink.forget()
        await rig.reflector.relist()
        assert (rig.sink.reported, rig.reflector.relists, rig.reflector.drift) == ([], 1, 0)
        rig.server.put("a", size=4, quietly=True)
        rig.server.remove("c", quietly=True)
        await rig.reflector.relist()
        assert rig.sink.reported == [("changed", "a"), ("gone", "c")]
        assert (rig.reflector.relists, rig.reflector.drift) == (2, 2)
        rig.server.put("e")
        await rig.same()

    play(scene, before=three)


def test_a_relist_is_done_only_after_a_list_that_began_after_it_was_asked_for() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        late = asyncio.Event()
        rig.server.faults.append(rig.server.late(late))
        first = asyncio.create_task(rig.reflector.relist())
        await until(lambda: len(rig.server.asked(watch=False)) == 2)
        rig.server.put("d", quietly=True)  # the list under way does not know of it
        second = asyncio.create_task(rig.reflector.relist())
        late.set()
        await first
        await second
        assert rig.sink.known == sizes(rig.server)

    play(scene, before=three, seconds=5.0)


def test_concurrent_relists_share_one_list() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        await asyncio.gather(*(rig.reflector.relist() for _ in range(10)))
        assert len(rig.server.asked(watch=False)) == 2

    play(scene, before=three)


def test_a_relist_waits_out_a_server_that_is_down() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.server.faults.extend([hang_up, status(500), half_an_answer])
        rig.server.put("d", quietly=True)
        await rig.reflector.relist()
        assert rig.sink.known == sizes(rig.server)

    play(scene, before=three)


def test_report_all_again_reports_everything_and_counts_no_drift() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.sink.forget()
        rig.reflector.report_all_again()
        await rig.reflector.relist()
        assert rig.sink.reported == [("changed", name) for name in "abc"]
        assert rig.reflector.drift == 0
        await rig.reflector.relist()
        assert len(rig.sink.reported) == 3

    play(scene, before=three)


def test_report_all_again_holds_while_a_list_is_under_way() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.sink.forget()
        late = asyncio.Event()
        rig.server.faults.append(rig.server.late(late))
        first = asyncio.create_task(rig.reflector.relist())
        await until(lambda: len(rig.server.asked(watch=False)) == 2)
        rig.reflector.report_all_again()
        second = asyncio.create_task(rig.reflector.relist())
        late.set()
        await asyncio.gather(first, second)
        assert {name for _, name in rig.sink.reported} == set("abc")

    play(scene, before=three, seconds=5.0)
