"""`--priority=spread`: most free first, replicas apart."""

from __future__ import annotations

from kit.manifests import MIXED
from testbed.gpus import gpushare_node, gpushare_pod, offline_pod, qgpu_node
from testbed.wired import Wired

SCHEDULER_ARGS = ("--priority=spread",)


def test_spread_takes_the_emptiest_node_and_its_emptiest_card(cluster: Wired) -> None:
    cluster.create(gpushare_node("a", 8, 8), gpushare_node("b", 8, 8))
    places = cluster.placed(*(gpushare_pod(f"p{number}", 3) for number in range(8)))
    halves = [places[:4], places[4:]]
    for half in halves:
        assert sorted(half) == [("a", [0]), ("a", [1]), ("b", [0]), ("b", [1])]
        assert half[0][0] != half[1][0], "the second goes to the other node, though the first has a free card"


def test_offline_pods_pack_even_so(cluster: Wired) -> None:
    """Seed 000: what is offline is binpack by default."""
    cluster.create(qgpu_node("n", 32, 32, labels=MIXED))
    places = cluster.placed(offline_pod("p", 4, 30), offline_pod("q", 4, 30))
    assert places[0] == places[1]
