"""The reports for people and peers' tools."""

from __future__ import annotations

import msgspec

from aliquot.services.daemon.calls import Calls
from aliquot.services.scheduler.reports import inspect_answer, status_answer
from kit.clusters.watchobjects import a_cluster, claim_of, live_node, live_pod
from kit.values.manifests import MEM, QGPU_CORE, QGPU_MEMORY

ON_CARD_0 = {"ALIYUN_COM_GPU_MEM_IDX": "0"}

CALLS = Calls(lambda: "now")


def test_inspect_answer_lists_every_card_and_its_pods() -> None:
    cluster = a_cluster(live_node("n1", 16, 24), live_node("n2", 8))
    cluster.set_pod(live_pod("a", {MEM: "3"}, on="n1", annotations=ON_CARD_0))
    cluster.assume(claim_of(cluster, live_pod("b", {MEM: "20"})), "n1")
    assert inspect_answer(cluster, "n1") == {
        "nodes": [
            {
                "name": "n1",
                "totalGPU": 40,
                "usedGPU": 23,
                "devs": [
                    {
                        "id": 0,
                        "totalGPU": 16,
                        "usedGPU": 3,
                        "pods": [{"name": "a", "namespace": "ns", "usedGPU": 3}],
                    },
                    {
                        "id": 1,
                        "totalGPU": 24,
                        "usedGPU": 20,
                        "pods": [{"name": "b", "namespace": "ns", "usedGPU": 20}],
                    },
                ],
            }
        ]
    }
    assert [node["name"] for node in inspect_answer(cluster)["nodes"]] == ["n1", "n2"]
    assert inspect_answer(cluster, "none") == {"nodes": []}


def test_status_answer_lists_nodes_cards_pods_and_pending() -> None:
    cluster = a_cluster(live_node("n1", 16), live_node("bad", labels={"sched.tensorstack.dev/node-alloc-mode": "x"}))
    cluster.set_pod(live_pod("a", {QGPU_MEMORY: "3", QGPU_CORE: "25"}, on="n1"))
    cluster.set_pod(live_pod("b", {MEM: "64"}, refused=True))
    status = msgspec.json.decode(msgspec.json.encode(status_answer(cluster, leading=True, calls=CALLS)))
    (node,) = status["nodes"]
    assert node["cards"][0]["used_memory_mib"] == 3 * 1024
    assert node["cards"][0]["used_core"] == 25
    assert [(pod["pod"], pod["doubt"]) for pod in node["pods"]] == [("ns/a", "no annotation names its cards")]
    assert [(entry["pod"], entry["refused"]) for entry in status["pending"]] == [("ns/b", True)]
    assert list(status["unusable"]) == ["bad"]
