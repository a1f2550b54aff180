"""The reflector: whatever breaks on the way, the sink gets each change once, in order, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from aliquot.adapters.kubernetes.reflector import key_of
from kit.clusters.apiserver import ApiServer, hang_up, status, text
from kit.clusters.reflection import Meta, Rig, Thing, play, sizes, three
from kit.running.waiting import until
from kit.values.deepjson import MANAGED, with_deep_fields

pytestmark = pytest.mark.usefixtures("quick_reflector")


def test_reflector_reports_the_list_and_then_each_change_once_in_order() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.server.put("d")
        rig.server.put("a", size=2)
        rig.server.remove("b")
        rig.server.put("b", size=3)
        await until(lambda: len(rig.sink.reported) >= 7)
        assert rig.sink.reported == [
            *(("changed", name) for name in "abc"),
            ("changed", "d"),
            ("changed", "a"),
            ("gone", "b"),
            ("changed", "b"),
        ]
        assert rig.sink.drifts == [0]
        assert (rig.reflector.relists, rig.reflector.drift) == (0, 0)

    play(scene, before=three)


def test_an_empty_collection_is_a_collection() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        assert (rig.sink.reported, rig.sink.drifts) == ([], [0])

    play(scene)


def test_reflector_reports_nothing_before_the_after_event() -> None:
    async def scene() -> None:
        async with ApiServer() as server, server.kube() as kube:
            three(server)
            first = asyncio.Event()
            rig = Rig(server, kube, after=first)
            following = asyncio.create_task(rig.reflector.run())
            await until(lambda: server.asked(watch=False))
            await asyncio.sleep(0.02)
            assert rig.sink.reported == []
            first.set()
            await rig.synced()
            assert len(rig.sink.reported) == 3
            following.cancel()

    asyncio.run(scene())


def test_watch_lines_in_pieces_are_put_together() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.sink.forget()
        rig.server.put("d", quietly=True, size=4)
        line = json.dumps({"type": "ADDED", "object": rig.server.items["d"]}).encode() + b"\n"
        for at in range(0, len(line), 7):
            rig.server.say(line[at : at + 7])
            await asyncio.sleep(0.001)
        await rig.same()
        assert rig.sink.reported == [("changed", "d")]

    play(scene, before=three)


def test_many_changes_in_one_chunk_are_all_reported() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        for at in range(200):
            rig.server.put(f"x{at}")
        await rig.same()
        assert [name for _, name in rig.sink.reported] == [f"x{at}" for at in range(200)]

    play(scene)


@pytest.mark.parametrize(
    "breaks",
    [
        lambda server: server.cut(),
        lambda server: server.end_watches(),
        lambda server: server.say(b"not json\n"),
        lambda server: server.say(b"\xff\xfe\n"),
        lambda server: server.say(b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}\n'),
        lambda server: server.say(b'{"type":"ADDED","object":{}}\n'),
        lambda server: server.say(b'{"type":"ERROR","object":{"code":500,"message":"etcd is gone"}}\n'),
        lambda server: server.say(b'{"type":"ADDED","object":{"metadata":{"na') or server.cut(),
    ],
    ids=[
        "the connection is cut",
        "the server ends it",
        "a broken line",
        "a line that is no text",
        "a name that is no text",
        "an object that is none",
        "the server says that it failed",
        "half a line",
    ],
)
def test_a_watch_resumes_where_it_stood_and_reports_nothing_twice_when(breaks: Callable[[ApiServer], object]) -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.server.put("d")
        await rig.same()
        rig.sink.forget()
        breaks(rig.server)
        await until(lambda: len(rig.server.asked(watch=True)) == 2)
        rig.server.put("a", size=7)
        rig.server.remove("c")
        await rig.same()
        assert rig.sink.reported == [("changed", "a"), ("gone", "c")]
        assert len(rig.server.asked(watch=False)) == 1
        assert rig.server.asked(watch=True)[-1].query["resourceVersion"] == "104"

    play(scene, before=three)


@pytest.mark.parametrize("fault", [hang_up, status(500), status(429), text(502, "<html>bad gateway</html>")])
def test_a_watch_that_is_refused_is_asked_for_again(fault: Any) -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.server.watch_faults.extend([fault] * 3)
        rig.server.cut()
        rig.server.put("d")
        await rig.same()
        assert len(rig.server.asked(watch=False)) == 1

    play(scene, before=three)


def test_bookmarks_move_the_place_to_resume_at() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.server.version += 50  # writes elsewhere in the cluster
        rig.server.bookmark()
        await until(lambda: rig.reflector._version == str(rig.server.version))
        rig.server.compact()
        rig.server.cut()
        rig.server.put("d")
        await rig.same()
        assert len(rig.server.asked(watch=False)) == 1

    play(scene, before=three)


def thing(name: str, version: int, size: int = 0) -> Thing:
    return Thing(Meta(name, "", str(version)), size)


def test_observe_reports_newer_objects_once() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.sink.forget()
        rig.reflector.observe(thing("a", 110, size=5))
        rig.reflector.observe(thing("a", 101, size=1))  # older than what is known
        rig.reflector.observe(thing("b", 102, size=1))  # known
        assert rig.sink.reported == [("changed", "a")]
        rig.server.version = 109
        rig.server.put("a", size=5)  # the watch tells the same
        rig.server.put("a", size=6)
        await until(lambda: rig.sink.known["a"] == 6)
        assert rig.sink.reported == [("changed", "a"), ("changed", "a")]

    play(scene, before=three)


def test_observe_does_not_bring_back_deleted_objects() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        rig.server.remove("a")
        await rig.same()
        rig.sink.forget()
        rig.reflector.observe(thing("a", 101, size=1))
        assert rig.sink.reported == []

    play(scene, before=three)


def test_observe_is_not_undone_by_a_list_under_way() -> None:
    async def scene(rig: Rig) -> None:
        await rig.synced()
        late = asyncio.Event()
        rig.server.faults.append(rig.server.late(late))
        asked = asyncio.create_task(rig.reflector.relist())
        await until(lambda: len(rig.server.asked(watch=False)) == 2)
        rig.server.put("a", size=8, quietly=True)
        rig.server.put("d", size=8, quietly=True)
        for name in "ad":
            rig.reflector.observe(thing(name, int(rig.server.items[name]["metadata"]["resourceVersion"]), size=8))
        rig.sink.forget()
        late.set()
        await asked
        assert rig.sink.reported == []
        assert rig.sink.known == sizes(rig.server)

    play(scene, before=three)


def test_key_of_is_namespace_and_name() -> None:
    assert key_of(SimpleNamespace(metadata=Meta("n", ""))) == "n"
    assert key_of(SimpleNamespace(metadata=Meta("n", "ns"))) == "ns/n"


@pytest.mark.parametrize("levels", [850, 950, 1100, 9000])
def test_object_that_is_nested_very_deep_hides_no_other(levels: int) -> None:
    """Whoever may patch a Pod can write that into its managedFields."""

    def item(name: str, version: int, size: int) -> Any:
        metadata = {"name": name, "resourceVersion": str(version), "managedFields": MANAGED}
        return {"metadata": metadata, "size": size}

    async def scene(rig: Rig) -> None:
        await rig.synced()
        assert rig.sink.reported == [("changed", name) for name in ("a", "deep", "b", "c")]
        event = {"type": "MODIFIED", "object": item("deep", 8, 6)}
        rig.server.say(with_deep_fields(event, levels) + b"\n")
        await until(lambda: rig.sink.known["deep"] == 6)
        assert rig.reflector.relists == 0

    def before(server: ApiServer) -> None:
        three(server)
        first, *others = server.items.values()
        listed = [first, item("deep", 1, 5), *others]
        page = {"metadata": {"resourceVersion": str(server.version)}, "items": listed}
        server.faults.append(text(200, with_deep_fields(page, levels).decode()))

    play(scene, before=before)
