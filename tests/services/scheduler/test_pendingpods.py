"""Pods that wait: tried again when a node has come to fit them, and not otherwise; told why in one sentence."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from aliquot.adapters.kubernetes.kube import ApiError, Kube
from aliquot.dialects.wire.events import ObjectRef
from aliquot.services.scheduler import pendingpods as module
from aliquot.services.scheduler.pendingpods import Waiting
from kit.manifests import MEM, QGPU_MEMORY, Json
from kit.virtualclock import play
from kit.watchobjects import a_cluster, live_node, live_pod

ON_CARD_0 = {"ALIYUN_COM_GPU_MEM_IDX": "0"}


class Rig:
    """A node that is full, and what was touched and told, each with its time."""

    def __init__(self) -> None:
        self.cluster = a_cluster(live_node())
        self.touched: list[tuple[float, str]] = []
        self.told: list[tuple[float, str, str]] = []
        self.bodies: list[Json] = []
        self.leading = True
        self.refuse: Exception | None = None
        self.loop = asyncio.get_running_loop()
        self.waiting = Waiting(
            cast(Kube, self),
            self.cluster,
            self,
            leading=lambda: self.leading,
            clock=self.loop.time,
            stamp=lambda: "now",
        )
        self.running = asyncio.create_task(self.waiting.run())
        self.fill()

    def fill(self, node: str = "n1", name: str = "full") -> None:
        self.cluster.set_pod(live_pod(name, {MEM: "16"}, on=node, annotations=ON_CARD_0))

    def free(self, name: str = "full") -> None:
        self.cluster.drop_pod(f"ns/{name}")

    def give_up(self, *names: str, limits: Json | None = None) -> None:
        """kube-scheduler has tried these and found no node."""
        for name in names:
            self.cluster.set_pod(live_pod(name, limits, refused=True))

    async def patch(self, path: str, body: Json) -> None:
        self.touched.append((self.loop.time(), path.rpartition("/")[2]))
        self.bodies.append(body)
        assert path.startswith("/api/v1/namespaces/ns/pods/")
        if self.refuse is not None:
            raise self.refuse

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None:
        assert (about.kind, about.namespace, about.uid) == ("Pod", "ns", f"uid-{about.name}")
        assert (reason, type, action) == ("WaitingForGPU", "Warning", "Scheduling")
        self.told.append((self.loop.time(), about.name, message))

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.touched]


def waits(scene: Callable[[Rig], Awaitable[None]]) -> None:
    async def run() -> None:
        rig = Rig()
        await scene(rig)
        assert not rig.running.done()
        rig.running.cancel()

    play(run())


# --- tried again -----------------------------------------------------------------------------------------------------


def test_pods_are_touched_within_a_moment_when_cards_are_freed_and_once() -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a", "b")
        await asyncio.sleep(5.0)
        assert rig.names == []
        freed = rig.loop.time()
        rig.free()
        await asyncio.sleep(60.0)
        assert rig.names == ["a", "b"]
        assert max(at for at, _ in rig.touched) - freed <= 0.2
        assert rig.bodies[0] == {"metadata": {"uid": "uid-a", "annotations": {"aliquot.dev/retried": "now"}}}
        assert rig.waiting.touched == 2

    waits(scene)


@pytest.mark.parametrize(
    "happens",
    [
        lambda rig: rig.cluster.set_node(live_node("n2")),
        lambda rig: rig.cluster.set_node(live_node("n1", 16, 16)),
        lambda rig: rig.free(),
    ],
    ids=["a node", "a card", "room on a card"],
)
def test_a_pod_is_touched_when_there_comes(happens: Callable[[Rig], None]) -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a")
        await asyncio.sleep(1.0)
        happens(rig)
        await asyncio.sleep(1.0)
        assert rig.names == ["a"]

    waits(scene)


@pytest.mark.parametrize(
    "happens",
    [
        lambda rig: rig.cluster.set_node(live_node("n2", 2)),
        lambda rig: rig.cluster.set_pod(live_pod("other", {"cpu": "1"}, on="n1")),
        lambda rig: rig.cluster.drop_node("n1"),
        lambda rig: rig.cluster.set_pod(live_pod("new", {MEM: "4"})),
        lambda rig: rig.give_up("small", limits={MEM: "32"}),
    ],
    ids=["a node too small", "another Pod", "less", "a Pod not tried yet", "another Pod that fits nowhere"],
)
def test_a_pod_is_not_touched_when_there_comes(happens: Callable[[Rig], None]) -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a")
        await asyncio.sleep(1.0)
        happens(rig)
        await asyncio.sleep(60.0)
        assert rig.names == []

    waits(scene)


def test_only_pods_that_come_to_fit_are_touched() -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("fits")
        rig.give_up("large", limits={MEM: "32"})
        rig.give_up("other", limits={QGPU_MEMORY: "4"})
        rig.give_up("broken", limits={MEM: "5Gi"})
        await asyncio.sleep(1.0)
        rig.cluster.set_node(live_node("n2", 16, labels={"gpushare": "true"}))
        await asyncio.sleep(1.0)
        assert rig.names == ["fits"]

    waits(scene)


def test_a_pod_given_up_although_a_node_fits_is_touched_once() -> None:
    """kube-scheduler asked a moment before we heard that there is room."""

    async def scene(rig: Rig) -> None:
        rig.free()
        await asyncio.sleep(1.0)
        rig.give_up("a")
        await asyncio.sleep(5.0)
        rig.give_up("b")
        await asyncio.sleep(60.0)
        assert rig.names == ["a", "b"]

    waits(scene)


def test_a_pod_is_touched_no_more_often_than_once_a_second() -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a")
        for _ in range(20):
            await asyncio.sleep(0.15)
            rig.free()
            await asyncio.sleep(0.15)
            rig.fill()
        times = [at for at, _ in rig.touched]
        assert len(times) >= 4
        assert all(later - earlier >= 1.0 for earlier, later in itertools.pairwise(times))

    waits(scene)


def test_many_pods_are_touched_a_few_at_a_time_and_all_in_the_end() -> None:
    async def scene(rig: Rig) -> None:
        names = [f"p{at}" for at in range(100)]
        rig.give_up(*names)
        await asyncio.sleep(1.0)
        rig.free()
        await asyncio.sleep(0.25)
        assert 20 <= len(rig.touched) <= 60
        await asyncio.sleep(2.0)
        assert rig.names == names

    waits(scene)


def test_a_pod_that_is_gone_or_placed_before_its_turn_is_left_alone() -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up(*(f"p{at}" for at in range(60)))
        await asyncio.sleep(1.0)
        rig.free()
        await asyncio.sleep(0.15)
        rig.cluster.drop_pod("ns/p59")
        rig.cluster.set_pod(live_pod("p58", on="n1", annotations=ON_CARD_0))
        await asyncio.sleep(5.0)
        assert set(rig.names).isdisjoint({"p58", "p59"})

    waits(scene)


def test_one_that_does_not_lead_touches_and_tells_nothing_and_catches_up_when_it_does() -> None:
    async def scene(rig: Rig) -> None:
        rig.leading = False
        rig.give_up("a")
        rig.free()
        await asyncio.sleep(20.0)
        assert (rig.touched, rig.told) == ([], [])
        rig.leading = True
        await asyncio.sleep(1.0)
        assert rig.names == ["a"]

    waits(scene)


@pytest.mark.parametrize("error", [ApiError(404, "NotFound", "gone"), ApiError(500, "", "down")], ids=str)
def test_a_touch_that_fails_harms_nothing(error: Exception) -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a", "b")
        rig.refuse = error
        await asyncio.sleep(1.0)
        rig.free()
        await asyncio.sleep(5.0)
        assert sorted(rig.names) == ["a", "b"]
        assert rig.waiting.touched == 0

    waits(scene)


def test_holds_that_nobody_came_for_are_dropped() -> None:
    async def scene(rig: Rig) -> None:
        rig.free()
        rig.leading = False
        pod = live_pod()
        claim: Any = rig.cluster.read(pod)
        _, best = rig.cluster.rank(claim, ["n1"])
        assert best is not None
        rig.cluster.hold(claim, best, rig.loop.time() + 2.0)
        await asyncio.sleep(1.5)
        assert rig.cluster.held
        await asyncio.sleep(1.0)
        assert not rig.cluster.held

    waits(scene)


# --- told why --------------------------------------------------------------------------------------------------------


def test_a_pod_is_told_why_it_waits_and_again_after_a_while() -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a")
        await asyncio.sleep(40.0)
        sentence = "fits none of 1 node: 1 is busy (GPU memory: 4 GiB wanted, at most 0 GiB free on 1 card)"
        assert [(name, said) for _, name, said in rig.told] == [("a", sentence)] * 3
        times = [at for at, _, _ in rig.told]
        assert all(later - earlier >= 15.0 for earlier, later in itertools.pairwise(times))

    waits(scene)


def test_the_sentence_follows_what_happens() -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a")
        await asyncio.sleep(1.0)
        rig.cluster.set_node(live_node("n2", 2))
        await asyncio.sleep(20.0)
        assert rig.told[-1][2].startswith("fits none of 2 nodes: 1 is busy")

    waits(scene)


def test_a_pod_that_breaks_a_rule_is_told_which() -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a", limits={MEM: "5Gi"})
        await asyncio.sleep(1.0)
        assert [said for _, _, said in rig.told] == [
            'spec.containers[0].resources.limits["aliyun.com/gpu-mem"]: "5Gi" is not allowed: whole GiB, at least 1,'
            ' without a unit (it must be a plain whole number, without the suffix "Gi")'
        ]

    waits(scene)


def test_a_pod_that_does_not_wait_for_a_card_is_told_nothing() -> None:
    """A taint or an affinity keeps it away: kube-scheduler says so itself."""

    async def scene(rig: Rig) -> None:
        rig.free()
        rig.give_up("a")
        await asyncio.sleep(40.0)
        assert rig.told == []

    waits(scene)


def test_pods_that_were_not_given_up_are_told_nothing() -> None:
    async def scene(rig: Rig) -> None:
        rig.cluster.set_pod(live_pod("a"))
        await asyncio.sleep(20.0)
        assert rig.told == []

    waits(scene)


def test_sentences_that_must_be_worked_out_are_a_few_at_a_time() -> None:
    async def scene(rig: Rig) -> None:
        for gib in range(1, 13):
            rig.give_up(f"p{gib}", limits={MEM: str(gib)})
        await asyncio.sleep(0.15)
        assert len(rig.told) == 5
        await asyncio.sleep(1.0)
        assert len(rig.told) == 12

    waits(scene)


def test_sentences_that_take_long_to_work_out_leave_time_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    def slow(*_: object) -> str:
        nonlocal now
        now += 0.2
        return "because"

    monkeypatch.setattr(module, "one_sentence", slow)
    told: list[str] = []

    class Noting:
        def emit(self, about: ObjectRef, *_: object, **__: object) -> None:
            told.append(about.name)

    cluster = a_cluster(live_node("n1", 1))
    waiting = Waiting(cast(Kube, None), cluster, Noting(), leading=bool, clock=lambda: now, stamp=str)
    for gib in range(2, 6):
        cluster.set_pod(live_pod(f"p{gib}", {MEM: str(gib)}, refused=True))
    waiting._tell(cluster.pending, now)
    assert told == ["p2"]
    now += 1.9
    waiting._tell(cluster.pending, now)
    assert told == ["p2"]
    now += 0.2
    waiting._tell(cluster.pending, now)
    assert told == ["p2", "p3"]


def test_what_happens_elsewhere_does_not_make_the_sentence_be_worked_out_for_each_pod_of_a_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worked_out = 0

    def count(*_: object) -> str:
        nonlocal worked_out
        worked_out += 1
        return "because"

    monkeypatch.setattr(module, "one_sentence", count)

    async def scene(rig: Rig) -> None:
        for at in range(30):
            rig.give_up(f"p{at}")
            rig.cluster.set_pod(live_pod(f"plain{at}", {"cpu": "1"}, on="n1"))
            await asyncio.sleep(0.2)
        assert (len(rig.told), worked_out) == (30, 1)

    waits(scene)


def test_pods_of_one_kind_share_a_sentence() -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up(*(f"p{at}" for at in range(50)))
        await asyncio.sleep(0.15)
        assert len({said for _, _, said in rig.told}) == 1
        assert len(rig.told) == 50

    waits(scene)
