"""Pending Pods: retried when a node starts to fit them, and not otherwise; an event gives the reason."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from aliquot.adapters.kubernetes.kube import ApiError, Kube
from aliquot.dialects.wire.events import ObjectRef
from aliquot.services.scheduler import pendingpods as module
from aliquot.services.scheduler.pendingpods import PendingPods, parts_of
from kit.clusters.watchobjects import a_cluster, live_node, live_pod
from kit.running.virtualclock import play_beside
from kit.values.manifests import MEM, QGPU_MEMORY, Json

ON_CARD_0 = {"ALIYUN_COM_GPU_MEM_IDX": "0"}


class Rig:
    """A full node, and the retries and events with their times."""

    def __init__(self) -> None:
        self.cluster = a_cluster(live_node())
        self.retried: list[tuple[float, str]] = []
        self.events: list[tuple[float, str, str]] = []
        self.bodies: list[Json] = []
        self.leading = True
        self.refuse: Exception | None = None
        self.loop = asyncio.get_running_loop()
        self.pending = PendingPods(
            cast(Kube, self),
            self.cluster,
            self,
            leading=lambda: self.leading,
            clock=self.loop.time,
            stamp=lambda: "now",
        )
        self.running = asyncio.create_task(self.pending.run())
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
        self.retried.append((self.loop.time(), path.rpartition("/")[2]))
        self.bodies.append(body)
        assert path.startswith("/api/v1/namespaces/ns/pods/")
        if self.refuse is not None:
            raise self.refuse

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None:
        assert (about.kind, about.namespace, about.uid) == ("Pod", "ns", f"uid-{about.name}")
        assert (reason, type, action) == ("WaitingForGPU", "Warning", "Scheduling")
        self.events.append((self.loop.time(), about.name, message))

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.retried]


def waits(scene: Callable[[Rig], Awaitable[None]]) -> None:
    play_beside(Rig, scene)


# --- tried again -----------------------------------------------------------------------------------------------------


def test_pending_pods_are_retried_once_when_cards_are_freed() -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a", "b")
        await asyncio.sleep(5.0)
        assert rig.names == []
        freed = rig.loop.time()
        rig.free()
        await asyncio.sleep(60.0)
        assert rig.names == ["a", "b"]
        assert max(at for at, _ in rig.retried) - freed <= 0.2
        assert rig.bodies[0] == {"metadata": {"uid": "uid-a", "annotations": {"aliquot.dev/retried": "now"}}}
        assert rig.pending.retried == 2

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
def test_pending_pod_is_retried_after(happens: Callable[[Rig], None]) -> None:
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
def test_pending_pod_is_not_retried_after(happens: Callable[[Rig], None]) -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a")
        await asyncio.sleep(1.0)
        happens(rig)
        await asyncio.sleep(60.0)
        assert rig.names == []

    waits(scene)


def test_only_fitting_pending_pods_are_retried() -> None:
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


def test_pod_refused_by_stale_board_is_retried_once() -> None:
    """kube-scheduler asked a moment before our watch reported the room."""

    async def scene(rig: Rig) -> None:
        rig.free()
        await asyncio.sleep(1.0)
        rig.give_up("a")
        await asyncio.sleep(5.0)
        rig.give_up("b")
        await asyncio.sleep(60.0)
        assert rig.names == ["a", "b"]

    waits(scene)


def test_pod_that_stays_pending_is_retried_less_and_less_often() -> None:
    """Room comes and goes ten times a second, and kube-scheduler never takes it: the API server hardly notices."""

    async def flicker(rig: Rig, seconds: float) -> None:
        end = rig.loop.time() + seconds
        while rig.loop.time() < end:
            await asyncio.sleep(0.15)
            rig.free()
            await asyncio.sleep(0.15)
            rig.fill()

    async def scene(rig: Rig) -> None:
        rig.give_up("a")
        await flicker(rig, 300.0)
        times = [at for at, _ in rig.retried]
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert pauses[0] >= 1.0
        assert 20 <= len(times) <= 25
        assert max(pauses) <= 16.0
        assert all(later >= earlier - 0.5 for earlier, later in itertools.pairwise(pauses))
        await asyncio.sleep(90.0)  # nothing happens: it starts anew
        before = len(rig.retried)
        await flicker(rig, 4.0)
        assert len(rig.retried) - before == 3

    waits(scene)


def test_pod_is_retried_once_per_part_of_a_large_cluster() -> None:
    """kube-scheduler looks at 100 of 250 nodes at a time: one attempt may miss the node that fits."""

    async def scene(rig: Rig) -> None:
        for at in range(249):
            rig.cluster.set_node(live_node(f"small-{at}", 2))
        rig.give_up("a")
        await asyncio.sleep(5.0)
        assert rig.names == []
        rig.free()
        await asyncio.sleep(60.0)
        assert rig.names == ["a"] * 3
        assert rig.retried[-1][0] - rig.retried[0][0] <= 3.0

    waits(scene)


def test_remaining_retries_end_when_the_room_is_taken() -> None:
    async def scene(rig: Rig) -> None:
        for at in range(249):
            rig.cluster.set_node(live_node(f"small-{at}", 2))
        rig.give_up("a")
        rig.free()
        await asyncio.sleep(0.5)
        rig.fill()
        await asyncio.sleep(60.0)
        assert rig.names == ["a"]

    waits(scene)


@pytest.mark.parametrize(("nodes", "parts"), [(0, 1), (1, 1), (100, 1), (101, 2), (250, 3), (1000, 3), (15_000, 20)])
def test_parts_are_those_of_kube_scheduler(nodes: int, parts: int) -> None:
    assert parts_of(nodes) == parts


def test_many_pending_pods_are_retried_in_batches() -> None:
    async def scene(rig: Rig) -> None:
        names = [f"p{at}" for at in range(100)]
        rig.give_up(*names)
        await asyncio.sleep(1.0)
        rig.free()
        await asyncio.sleep(0.25)
        assert 20 <= len(rig.retried) <= 60
        await asyncio.sleep(2.0)
        assert rig.names == names

    waits(scene)


def test_deleted_or_placed_pod_is_not_retried() -> None:
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


def test_follower_neither_retries_nor_reports_pending_pods() -> None:
    async def scene(rig: Rig) -> None:
        rig.leading = False
        rig.give_up("a")
        rig.free()
        await asyncio.sleep(20.0)
        assert (rig.retried, rig.events) == ([], [])
        rig.leading = True
        await asyncio.sleep(1.0)
        assert rig.names == ["a"]

    waits(scene)


@pytest.mark.parametrize("error", [ApiError(404, "NotFound", "gone"), ApiError(500, "", "down")], ids=str)
def test_failed_retry_harms_nothing(error: Exception) -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a", "b")
        rig.refuse = error
        await asyncio.sleep(1.0)
        rig.free()
        await asyncio.sleep(5.0)
        assert sorted(rig.names) == ["a", "b"]
        assert rig.pending.retried == 0

    waits(scene)


def test_expired_holds_are_dropped() -> None:
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


# --- the reason -------------------------------------------------------------------------------------------------------


def test_pending_reason_event_is_repeated() -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a")
        await asyncio.sleep(40.0)
        sentence = "fits none of 1 node. 1 is busy: GPU memory: needs 4 GiB per card, at most 0 GiB free (1 card)"
        assert [(name, message) for _, name, message in rig.events] == [("a", sentence)] * 3
        times = [at for at, _, _ in rig.events]
        assert all(later - earlier >= 15.0 for earlier, later in itertools.pairwise(times))

    waits(scene)


def test_pending_reason_follows_the_board() -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a")
        await asyncio.sleep(1.0)
        rig.cluster.set_node(live_node("n2", 2))
        await asyncio.sleep(20.0)
        assert rig.events[-1][2].startswith("fits none of 2 nodes. 1 is busy")

    waits(scene)


def test_pending_reason_of_invalid_pod_names_the_rule() -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up("a", limits={MEM: "5Gi"})
        await asyncio.sleep(1.0)
        assert [message for _, _, message in rig.events] == [
            'spec.containers[0].resources.limits["aliyun.com/gpu-mem"]: "5Gi" is not allowed: whole GiB, at least 1,'
            ' without a unit (it must be a plain whole number, without the suffix "Gi")'
        ]

    waits(scene)


def test_pod_pending_for_other_reasons_gets_no_event() -> None:
    """A taint or an affinity keeps it away: kube-scheduler reports that itself."""

    async def scene(rig: Rig) -> None:
        rig.free()
        rig.give_up("a")
        await asyncio.sleep(40.0)
        assert rig.events == []

    waits(scene)


def test_pods_not_given_up_get_no_event() -> None:
    async def scene(rig: Rig) -> None:
        rig.cluster.set_pod(live_pod("a"))
        await asyncio.sleep(20.0)
        assert rig.events == []

    waits(scene)


def test_pending_reasons_are_computed_in_batches() -> None:
    async def scene(rig: Rig) -> None:
        for gib in range(1, 13):
            rig.give_up(f"p{gib}", limits={MEM: str(gib)})
        await asyncio.sleep(0.15)
        assert len(rig.events) == 5
        await asyncio.sleep(1.0)
        assert len(rig.events) == 12

    waits(scene)


def test_slow_pending_reasons_leave_time_for_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    def slow(*_: object) -> str:
        nonlocal now
        now += 0.2
        return "because"

    monkeypatch.setattr(module, "one_sentence", slow)
    events: list[str] = []

    class Noting:
        def emit(self, about: ObjectRef, *_: object, **__: object) -> None:
            events.append(about.name)

    cluster = a_cluster(live_node("n1", 1))
    pending_pods = PendingPods(cast(Kube, None), cluster, Noting(), leading=bool, clock=lambda: now, stamp=str)
    for gib in range(2, 6):
        cluster.set_pod(live_pod(f"p{gib}", {MEM: str(gib)}, refused=True))
    pending_pods._report(cluster.pending, now)
    assert events == ["p2"]
    now += 1.9
    pending_pods._report(cluster.pending, now)
    assert events == ["p2"]
    now += 0.2
    pending_pods._report(cluster.pending, now)
    assert events == ["p2", "p3"]


def test_pending_reason_cache_survives_unrelated_changes(
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
        assert (len(rig.events), worked_out) == (30, 1)

    waits(scene)


def test_pods_of_one_kind_share_a_pending_reason() -> None:
    async def scene(rig: Rig) -> None:
        rig.give_up(*(f"p{at}" for at in range(50)))
        await asyncio.sleep(0.15)
        assert len({message for _, _, message in rig.events}) == 1
        assert len(rig.events) == 50

    waits(scene)
