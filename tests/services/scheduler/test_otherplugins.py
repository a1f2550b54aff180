"""Nodes whose cards another device plugin or DRA driver hands out: they offer nothing until their owner opts in."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from aliquot.adapters.kubernetes.kube import Kube, Server
from aliquot.dialects.wire.otherplugins import DEPLOY, SHARE, SliceObject
from aliquot.model.reason import Reason
from aliquot.model.refusal import Refusal
from aliquot.services.scheduler.cluster import Cluster, Placed
from aliquot.services.scheduler.watches.resourceslices import ResourceSlices, SliceSink
from kit.clusters.watchobjects import ALL, a_cluster, claim_of, live_node, live_pod

Json = dict[str, Any]
OPTED_IN = {**ALL, SHARE: "true"}
CARDS = [{"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-1"}}}]


def a_slice(name: str = "s", **spec: Any) -> Json:
    metadata = {"name": name, "resourceVersion": "5"}
    return {"metadata": metadata, "spec": {"driver": "gpu.nvidia.com", "devices": CARDS, **spec}}


def gpus(count: int) -> dict[str, Any]:
    return {"nvidia.com/gpu": str(count)}


def reasons(cluster: Cluster) -> list[Reason]:
    found = cluster.assume(claim_of(cluster, live_pod()), "n1")
    if isinstance(found, Placed):
        cluster.unassume(found.claim.uid)
        return []
    return [refusal.reason for refusal in found]


def test_node_of_another_plugin_offers_nothing_until_its_owner_opts_in() -> None:
    cluster = a_cluster(live_node(**gpus(2)))
    assert cluster.assume(claim_of(cluster, live_pod()), "n1") == [
        Refusal("n1", None, Reason.OTHER_PLUGIN, 1, 0, never=True)
    ]
    cluster.set_node(live_node(labels=OPTED_IN, **gpus(2)))
    assert reasons(cluster) == []
    cluster.set_node(live_node(**gpus(0)))
    assert reasons(cluster) == [Reason.OTHER_PLUGIN], "the kubelet restarts, or the plugin was removed"
    cluster.set_node(live_node(labels={**ALL, DEPLOY: "false"}, **gpus(0)))
    assert reasons(cluster) == []


def test_pods_on_a_node_stay_booked_when_another_plugin_comes() -> None:
    cluster = a_cluster(live_node())
    cluster.set_pod(live_pod(on="n1", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}))
    cluster.set_node(live_node(**gpus(1)))
    assert cluster.board.usage("n1", 0).memory_mib == 4096
    assert reasons(cluster) == [Reason.OTHER_PLUGIN]


def test_withheld_card_is_not_used() -> None:
    node = live_node("n1", 16, 16)
    assert node.metadata.annotations is not None
    inventory = node.metadata.annotations["aliquot.dev/inventory"]
    held = inventory.replace('"index": 0', '"withheld": "Pod ns/x holds it by nvidia.com/gpu", "index": 0')
    node.metadata.annotations["aliquot.dev/inventory"] = held
    cluster = a_cluster(node)
    placed = cluster.assume(claim_of(cluster, live_pod()), "n1")
    assert isinstance(placed, Placed)
    assert set(placed.grant.usage()) == {1}


def test_slices_close_and_open_the_nodes_they_name() -> None:
    cluster, reread = a_cluster(live_node()), list[int]()
    sink = SliceSink(cluster, lambda: reread.append(1))
    sink.changed(msgspec.convert(a_slice(nodeName="n2"), SliceObject))
    assert reasons(cluster) == []
    sink.changed(msgspec.convert(a_slice(nodeName="n1"), SliceObject))
    assert reasons(cluster) == [Reason.OTHER_PLUGIN]
    cluster.set_node(live_node())
    assert reasons(cluster) == [Reason.OTHER_PLUGIN], "the node was seen before, and is still the driver's"
    cluster.set_node(live_node(labels=OPTED_IN))
    assert reasons(cluster) == []
    cluster.set_node(live_node())
    sink.gone("s")
    assert reasons(cluster) == []
    assert not reread


def test_slices_that_select_nodes_by_label_make_all_nodes_be_read_again_once_a_list() -> None:
    cluster, reread = a_cluster(live_node()), list[int]()
    sink = SliceSink(cluster, lambda: reread.append(1))
    sink.listing()
    for name in "abc":
        sink.changed(msgspec.convert(a_slice(name, allNodes=True), SliceObject))
    assert not reread
    sink.listed(0)
    assert len(reread) == 1
    cluster.set_node(live_node())
    assert reasons(cluster) == [Reason.OTHER_PLUGIN]


class Slices:
    """An API server that serves these versions of ResourceSlices, or refuses."""

    def __init__(self, *versions: str, status: int = 200) -> None:
        self.versions, self.status = versions, status
        self.paths: list[str] = []
        self.ended = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        if request.path == "/apis/resource.k8s.io":
            versions = [{"version": version} for version in self.versions]
            return web.json_response({"versions": versions}, status=200 if self.versions else 404)
        if self.status != 200:
            return web.json_response({"kind": "Status", "code": self.status}, status=self.status)
        if request.query.get("watch"):
            await self.ended.wait()
        page = {"metadata": {"resourceVersion": "9"}, "items": [a_slice(nodeName="n1")]}
        return web.json_response(page)

    async def known_by(self, cluster: Cluster) -> None:
        """Returns when the drivers are known, or cannot be."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with Kube(Server(f"http://127.0.0.1:{port}"), agent="test") as kube:
            slices = ResourceSlices(kube, SliceSink(cluster, lambda: None))
            running = asyncio.create_task(slices.run())
            try:
                async with asyncio.timeout(60):
                    await slices.answered.wait()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        self.ended.set()
        await runner.cleanup()


def test_newest_served_version_of_resource_slices_is_read() -> None:
    for versions in (("v1", "v1beta1"), ("v1beta1",)):
        api, cluster = Slices(*versions), a_cluster(live_node())
        asyncio.run(api.known_by(cluster))
        assert f"/apis/resource.k8s.io/{versions[0]}/resourceslices" in api.paths
        assert reasons(cluster) == [Reason.OTHER_PLUGIN]


def test_cluster_without_resource_slices_or_without_the_right_to_read_them_works() -> None:
    for api in (Slices(), Slices("v1alpha3"), Slices("v1", status=403), Slices("v1", status=404)):
        cluster = a_cluster(live_node())
        asyncio.run(api.known_by(cluster))
        assert reasons(cluster) == []
