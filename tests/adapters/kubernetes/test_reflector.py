"""The reflector: whatever breaks on the way, the sink is told of each change once, in order, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.adapters.kubernetes import reflector as module
from aliquot.adapters.kubernetes.kube import Kube
from aliquot.adapters.kubernetes.reflector import Reflector, key_of
from kit.apiserver import PATH, ApiServer, half_an_answer, hang_up, status, text, until


class Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class Thing(msgspec.Struct):
    metadata: Meta
    size: int = 0


class Sink:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, str]] = []  # what, and of which
        self.known: dict[str, int] = {}
        self.versions: dict[str, list[int]] = {}
        self.drifts: list[int] = []
        self.in_list = False

    def listing(self) -> None:
        assert not self.in_list
        self.in_list = True

    def changed(self, item: Thing) -> None:
        self.reported.append(("changed", item.metadata.name))
        self.known[item.metadata.name] = item.size
        self.versions.setdefault(item.metadata.name, []).append(int(item.metadata.resource_version))

    def gone(self, key: str) -> None:
        self.reported.append(("gone", key))
        del self.known[key]

    def listed(self, drift: int) -> None:
        assert self.in_list
        self.in_list = False
        self.drifts.append(drift)

    def forget(self) -> None:
        """What was told so far is not what the test is about."""
        self.reported.clear()


class Rig:
    """A server, a reflector that follows it, and what the sink was told."""

    following: asyncio.Task[None]

    def __init__(self, server: ApiServer, kube: Kube, **more: Any) -> None:
        self.server, self.sink = server, Sink()
        self.reflector: Reflector[Thing] = Reflector(kube, PATH, Thing, self.sink, chance=lambda: 0.0, **more)

    async def synced(self) -> None:
        await self.reflector.synced.wait()
        await until(lambda: self.server.watching)

    async def same(self) -> None:
        """Until the sink knows what the server has."""
        await until(lambda: self.sink.known == sizes(self.server))


def sizes(server: ApiServer) -> dict[str, int]:
    return {name: item.get("size", 0) for name, item in server.items.items()}


def play(
    scene: Callable[[Rig], Awaitable[None]],
    *,
    before: Callable[[ApiServer], object] = lambda server: None,
    seconds: float = 20.0,
) -> None:
    """Run the scene with a reflector that follows a server; `before` it begins, the server is as that makes it."""

    async def run() -> None:
        async with ApiServer() as server, server.kube() as kube:
            before(server)
            rig = Rig(server, kube)
            rig.following = asyncio.create_task(rig.reflector.run())
            try:
                await scene(rig)
            finally:
                rig.following.cancel()
                with suppress(asyncio.CancelledError):
                    await rig.following

    asyncio.run(asyncio.wait_for(run(), seconds))


def three(server: ApiServer) -> None:
    for name in "abc":
        server.put(name, size=1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.002)
    monkeypatch.setattr(module, "_LONGEST_PAUSE", 0.01)


# --- list and watch --------------------------------------------------------------------------------------------------


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


# --- what breaks -----------------------------------------------------------------------------------------------------


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
    assert module.next_page(raw) == token


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


# --- looking again ---------------------------------------------------------------------------------------------------


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


# --- what others heard -----------------------------------------------------------------------------------------------


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


# --- patience --------------------------------------------------------------------------------------------------------


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


def test_key_of_is_namespace_and_name() -> None:
    assert key_of(SimpleNamespace(metadata=Meta("n", ""))) == "n"
    assert key_of(SimpleNamespace(metadata=Meta("n", "ns"))) == "ns/n"


# --- whatever happens ------------------------------------------------------------------------------------------------

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
