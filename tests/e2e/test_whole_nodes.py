"""A kube-scheduler that was not told nodeCacheCapable, as the peers' files leave it: whole Nodes go both ways."""

from __future__ import annotations

from testbed import objects
from testbed.gpus import gpushare_node, gpushare_pod
from testbed.programs.wired import Wired

EXTENDER = {"nodeCacheCapable": False}


def test_pods_are_placed_with_whole_nodes(cluster: Wired) -> None:
    cluster.create(*map(objects.fat, [gpushare_node("a", 8, 8), gpushare_node("b", 8, 8)]))
    places = cluster.placed(*(gpushare_pod(f"p{number}", 4) for number in range(8)))
    assert [card for _, [card] in places] == [0, 0, 1, 1] * 2
    assert {name for name, _ in places[:4]} != {name for name, _ in places[4:]}


def test_reasons_with_whole_nodes(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8, 8))
    cluster.placed(gpushare_pod("a", 6), gpushare_pod("b", 6))
    cluster.create(gpushare_pod("c", 4))
    cluster.waits("c", "GPU memory: needs 4 GiB per card; no card has that much free (aliquot:memory)")


def test_preemption_with_whole_nodes(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8))
    cluster.placed(gpushare_pod("lesser", 6))
    assert cluster.placed(gpushare_pod("p", 4, priorityClassName="system-cluster-critical")) == [("n", [0])]
