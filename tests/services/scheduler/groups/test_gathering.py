"""Binds of a group's members wait for each other: all are written, or none."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from aliquot.adapters.kubernetes.kube import Kube
from aliquot.dialects.wire.extender import Binding
from aliquot.services.scheduler.binder import Binder, Refused
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.groups.gathering import Gathering
from kit.clusters.podgroups import add_members, set_group
from kit.clusters.watchobjects import a_cluster, free, live_node
from kit.running.virtualclock import play
from kit.values.manifests import MEM, Json


class Writes:
    """An API server that takes every binding."""

    def __init__(self) -> None:
        self.bound: list[str] = []

    async def create(self, path: str, body: Json, **_: Any) -> None:
        self.bound.append(path.split("/")[-2])


def a_binder(cluster: Cluster, api: Writes) -> Binder:
    return Binder(
        cast(Kube, api),
        cluster,
        may_write=lambda: True,
        on_pod=lambda pod: None,
        now_ns=lambda: 1,
        gathering=Gathering(cluster),
    )


def a_group(needed: int, *names: str) -> Cluster:
    cluster = a_cluster(live_node("n1", 16, 16, 16))
    set_group(cluster, needed=needed)
    add_members(cluster, *names, limits={MEM: "9"})
    return cluster


def binding(name: str) -> Binding:
    return Binding(name, "ns", f"uid-{name}", "n1")


def test_binds_are_written_when_enough_members_have_come() -> None:
    async def scene() -> None:
        cluster, api = a_group(3, "a", "b", "c"), Writes()
        binder = a_binder(cluster, api)
        first = [asyncio.create_task(binder.bind(binding(name))) for name in "ab"]
        await asyncio.sleep(2.0)
        assert api.bound == []
        await asyncio.gather(binder.bind(binding("c")), *first)
        assert sorted(api.bound) == ["a", "b", "c"]

    play(scene())


def test_binds_that_wait_in_vain_are_refused_and_hold_nothing() -> None:
    async def scene() -> None:
        cluster, api = a_group(3, "a", "b", "c"), Writes()
        binder = a_binder(cluster, api)
        outcomes = await asyncio.gather(*(binder.bind(binding(name)) for name in "ab"), return_exceptions=True)
        assert api.bound == []
        assert [type(outcome) for outcome in outcomes] == [Refused, Refused]
        assert "PodGroup ns/g needs 3 members in their places at once: 2 came within 3 s, so none is bound" in str(
            outcomes[0]
        )
        assert [free(cluster, "n1", card) for card in range(3)] == [16, 16, 16]
        assert not cluster.held
        assert not cluster.assumed

    play(scene())


def test_a_member_that_is_deleted_while_it_waits_is_not_bound() -> None:
    async def scene() -> None:
        cluster, api = a_group(3, "a", "b", "c", "d"), Writes()
        binder = a_binder(cluster, api)
        waiting = [asyncio.create_task(binder.bind(binding(name))) for name in "ab"]
        await asyncio.sleep(1.0)
        cluster.drop_pod("ns/a")
        await asyncio.sleep(0.5)
        await asyncio.gather(binder.bind(binding("c")), binder.bind(binding("d")), waiting[1])
        with pytest.raises(Refused, match="it is gone"):
            await waiting[0]
        assert sorted(api.bound) == ["b", "c", "d"]

    play(scene())


def test_a_member_is_refused_where_the_agent_went_away_and_enough_others_came() -> None:
    async def scene() -> None:
        cluster, api = a_group(2, "a", "b"), Writes()
        cluster.set_node(live_node("n2", 16))
        binder = a_binder(cluster, api)
        waiting = asyncio.create_task(binder.bind(binding("a")))
        await asyncio.sleep(1.0)
        away = live_node("n1", 16, 16, 16)
        away.metadata.annotations = {**(away.metadata.annotations or {}), "aliquot.dev/agent": "away"}
        cluster.set_node(away)
        await binder.bind(Binding("b", "ns", "uid-b", "n2"))
        with pytest.raises(Refused, match="ns/a: the node agent of n1 went away"):
            await waiting
        assert api.bound == ["b"]
        assert cluster.assumed.keys() == {"uid-b"}

    play(scene())


def test_pods_of_no_group_are_bound_at_once() -> None:
    async def scene() -> None:
        cluster, api = a_cluster(live_node()), Writes()
        add_members(cluster, "a", group="nothing")
        began = asyncio.get_running_loop().time()
        await a_binder(cluster, api).bind(binding("a"))
        assert (api.bound, asyncio.get_running_loop().time()) == (["a"], began)

    play(scene())
