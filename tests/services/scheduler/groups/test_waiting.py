"""Waiting groups: an event says what they have and what they lack, and they are retried when they have room."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import cast

from aliquot.adapters.kubernetes.kube import Kube
from aliquot.dialects.wire.events import ObjectRef
from aliquot.dialects.wire.extender import parse_args
from aliquot.services.scheduler.groups.waiting import WaitingGroups
from aliquot.services.scheduler.pendingpods import PendingPods
from aliquot.services.scheduler.verbs import filter_answer
from kit.clusters.podgroups import add_members, set_group
from kit.clusters.watchobjects import a_cluster, live_node, live_pod
from kit.running.virtualclock import play_beside
from kit.values.manifests import MEM, Json


class Rig:
    """Two nodes, one of them full, and a group of two that kube-scheduler has given up."""

    def __init__(self) -> None:
        self.cluster = a_cluster(live_node("n1"), live_node("n2"))
        self.cluster.set_pod(live_pod("full", {MEM: "16"}, on="n2", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}))
        self.retried: list[str] = []
        self.events: list[tuple[str, str, str]] = []
        self.known = True
        self.pending = PendingPods(
            cast(Kube, self),
            self.cluster,
            self,
            leading=lambda: True,
            clock=asyncio.get_running_loop().time,
            stamp=lambda: "now",
            groups_known=lambda: self.known,
        )
        self.running = asyncio.create_task(self.pending.run())

    async def patch(self, path: str, body: Json) -> None:
        self.retried.append(path.rpartition("/")[2])

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None:
        self.events.append((about.name, reason, message))


def waits(scene: Callable[[Rig], Awaitable[None]]) -> None:
    play_beside(Rig, scene)


def test_a_waiting_group_says_what_it_has_and_what_it_lacks() -> None:
    async def scene(rig: Rig) -> None:
        set_group(rig.cluster, needed=2)
        add_members(rig.cluster, "a", "b", limits={MEM: "9"}, refused=True)
        await asyncio.sleep(1.0)
        text = (
            "PodGroup ns/g needs 2 members in their places at once: has 1 that would fit now, lacks room for 1 more"
            " (9 GiB). ns/b fits none of 2 nodes. 2 are busy: GPU memory: needs 9 GiB per card, at most 7 GiB free"
            " (2 cards)"
        )
        assert sorted(rig.events) == [("a", "WaitingForGPU", text), ("b", "WaitingForGPU", text)]
        assert rig.retried == []

    waits(scene)


def test_members_of_a_group_are_retried_when_all_of_it_has_room() -> None:
    async def scene(rig: Rig) -> None:
        set_group(rig.cluster, needed=2)
        add_members(rig.cluster, "a", "b", limits={MEM: "9"}, refused=True)
        await asyncio.sleep(5.0)
        assert rig.retried == []
        rig.cluster.drop_pod("ns/full")
        await asyncio.sleep(5.0)
        assert sorted(rig.retried) == ["a", "b"]

    waits(scene)


def test_groups_that_wait_are_planned_again_only_when_something_has_changed() -> None:
    cluster = a_cluster(live_node("n1"))
    for group in "x", "y":
        set_group(cluster, group, 2)
        add_members(cluster, f"{group}1", f"{group}2", limits={MEM: "9"}, group=group, refused=True)
    waiting = WaitingGroups(cluster, known=lambda: True, clock=lambda: 0.0)
    waiting.look(cluster.pending)
    assert waiting.ready(0.0) == []
    waiting.sentence("uid-x1", 1.0)
    before = cluster.board.clock
    assert waiting.ready(2.0) == []
    assert cluster.board.clock == before  # no plan was tried
    cluster.set_node(live_node("n2"))
    assert waiting.ready(4.0) == ["uid-x1", "uid-x2", "uid-y1", "uid-y2"]


def test_a_group_that_is_retried_is_planned_anew() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"))
    cluster.set_pod(live_pod("full", {MEM: "16"}, on="n2", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}))
    set_group(cluster, needed=2)
    pods = add_members(cluster, "a", "b", limits={MEM: "9"}, refused=True)
    waiting = WaitingGroups(cluster, known=lambda: True, clock=lambda: 0.0)
    waiting.look(cluster.pending)
    question = parse_args(json.dumps({"Pod": pods[0], "NodeNames": ["n1", "n2"]}).encode())

    def fits(now: float) -> bool:
        return bool(json.loads(filter_answer(cluster, question, now=now, keep=True)[0])["NodeNames"])

    assert not fits(10.0)
    cluster.drop_pod("ns/full")
    assert waiting.ready(10.1) == ["uid-a", "uid-b"]
    assert fits(10.2)  # otherwise nothing would change any more, and nothing would retry it


def test_members_of_a_group_are_retried_when_the_last_one_is_created() -> None:
    async def scene(rig: Rig) -> None:
        set_group(rig.cluster, needed=2)
        add_members(rig.cluster, "a", limits={MEM: "4"}, refused=True)
        await asyncio.sleep(5.0)
        assert rig.retried == []
        add_members(rig.cluster, "b", limits={MEM: "4"})
        await asyncio.sleep(5.0)
        assert rig.retried == ["a"]

    waits(scene)


def test_a_pod_that_names_a_group_that_is_not_there_gets_one_event() -> None:
    async def scene(rig: Rig) -> None:
        rig.known = False
        add_members(rig.cluster, "a", limits={MEM: "4"})
        await asyncio.sleep(5.0)
        assert rig.events == []
        rig.known = True
        await asyncio.sleep(60.0)
        text = (
            'metadata.labels["scheduler.tensorstack.dev/group-name"]: there is no PodGroup "g" in this namespace: the'
            " Pod is scheduled by itself"
        )
        assert rig.events == [("a", "NoPodGroup", text)]

    waits(scene)
