"""PodGroups of every API that the cluster serves are known before anything is answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from aiohttp import web

from aliquot.adapters.kubernetes.kube import Kube, Server
from aliquot.dialects.podgroups import COSCHEDULING, KUBERNETES, T9K
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.groups.following import PodGroups
from kit.clusters.anyserver import client_of
from kit.clusters.podgroups import group_json
from kit.clusters.watchobjects import a_cluster
from kit.values.manifests import Json


class Apis:
    """An API server with these APIs, by their versions; each has PodGroup g."""

    def __init__(self, *, status: int = 200) -> None:
        self.versions: dict[str, list[str]] = {KUBERNETES: ["v1"]}
        self.status = status
        self.ended = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        _, _, api, *rest = request.path.split("/")
        versions = self.versions.get(api)
        if versions is None:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        if not rest:
            return web.json_response({"versions": [{"version": version} for version in versions]})
        if len(rest) == 1:
            kinds = [] if rest[0] == "v1" else [{"name": "podgroups"}, {"name": "podgroups/status"}]
            return web.json_response({"resources": [{"name": "priorityclasses"}, *kinds]})
        if self.status != 200:
            return web.json_response({"kind": "Status", "code": self.status}, status=self.status)
        if request.query.get("watch"):
            await self.ended.wait()
        group: Json = group_json("g", 2, api)
        group["metadata"]["resourceVersion"] = "5"
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": [group]})

    async def known_by(self, cluster: Cluster, *, patience: float = 60, until: Callable[[], bool] = bool) -> None:
        """Returns when the groups are known, or cannot be; and with `until`, once that is true afterwards."""
        async with client_of(self.answer) as kube:
            listed = asyncio.Event()
            listed.set()
            groups = PodGroups(kube, cluster, listed, patience=patience)
            running = asyncio.create_task(groups.run())
            try:
                async with asyncio.timeout(60):
                    await groups.answered.wait()
                    assert groups.known() == (self.status != 500), "known only if nothing was given up"
                    self.status = 200
                    while until is not bool and not until():
                        await asyncio.sleep(0.05)
                    while not groups.known():
                        await asyncio.sleep(0.05)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                self.ended.set()


def known(**more: int) -> tuple[Apis, Cluster]:
    return Apis(**more), a_cluster()


def test_pod_groups_of_every_served_api_are_read() -> None:
    async def scene() -> None:
        api, cluster = known()
        api.versions |= {T9K: ["v1beta1"], COSCHEDULING: ["v1alpha1"], KUBERNETES: ["v1", "v1alpha2"]}
        await api.known_by(cluster)
        assert sorted(cluster.groups.groups) == sorted(f"{name}/ns/g" for name in (KUBERNETES, T9K, COSCHEDULING))

    asyncio.run(scene())


def test_a_cluster_without_pod_groups_causes_no_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        api, cluster = known()
        await api.known_by(cluster)
        assert cluster.groups.groups == {}

    with caplog.at_level(logging.INFO, "aliquot"):
        asyncio.run(scene())
    assert caplog.records == []


def test_groups_that_we_may_not_read_are_named_with_the_fix(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        api, cluster = known(status=403)
        api.versions[T9K] = ["v1beta1"]
        await api.known_by(cluster)
        assert cluster.groups.groups == {}

    asyncio.run(scene())
    said = [record.__dict__["data"] for record in caplog.records if record.message == "pod_groups_not_readable"]
    fix = "the account needs list and watch on podgroups (scheduler.tensorstack.dev): upgrade the chart"
    assert said == [{"path": "/apis/scheduler.tensorstack.dev/v1beta1/podgroups", "fix": fix}]


def test_groups_whose_list_fails_for_good_are_given_up_and_read_once_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        api, cluster = known(status=500)
        api.versions[T9K] = ["v1beta1"]
        await api.known_by(cluster, patience=0.3, until=lambda: bool(cluster.groups.groups))
        assert list(cluster.groups.groups) == [f"{T9K}/ns/g"]

    with caplog.at_level(logging.INFO, "aliquot.services"):
        asyncio.run(scene())
    ours = [record for record in caplog.records if record.message.startswith("pod_groups")]
    said = [(record.message, record.__dict__["data"]) for record in ours]
    path = "/apis/scheduler.tensorstack.dev/v1beta1/podgroups"
    unanswered = {
        "path": path,
        "effect": "Pods of its PodGroups are not held for each other until it answers",
        "fix": f"kubectl get --raw {path} shows the error; remove the CRD or APIService if nothing serves it",
    }
    assert said == [("pod_groups_unanswered", unanswered), ("pod_groups_answered", {"api": T9K})]


def test_groups_are_waited_for_while_nodes_and_pods_are_not_known() -> None:
    """The API server itself may be away: then nothing was given up."""

    async def scene() -> None:
        async with Kube(Server("http://127.0.0.1:1"), agent="test") as kube:
            groups = PodGroups(kube, a_cluster(), asyncio.Event(), patience=0)
            running = asyncio.create_task(groups.run())
            await asyncio.sleep(0.2)
            assert not groups.answered.is_set()
            assert not groups.known()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())
