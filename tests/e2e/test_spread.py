"""`--priority=spread`: no second Pod on a card while another card has none, replicas apart."""

from __future__ import annotations

from kit.values.manifests import MIXED
from testbed.gpus import gpushare_node, gpushare_pod, offline_pod, online_pod, qgpu_node
from testbed.programs.wired import Wired

SCHEDULER_ARGS = ("--priority=spread",)


def test_spread_takes_the_emptiest_node_and_its_emptiest_card(cluster: Wired) -> None:
    cluster.create(gpushare_node("a", 8, 8), gpushare_node("b", 8, 8))
    places = cluster.placed(*(gpushare_pod(f"p{number}", 3) for number in range(8)))
    halves = [places[:4], places[4:]]
    for half in halves:
        assert sorted(half) == [("a", [0]), ("a", [1]), ("b", [0]), ("b", [1])]
        assert half[0][0] != half[1][0], "the second goes to the other node, though the first has a free card"


def test_spread_leaves_no_card_empty_where_nodes_differ_in_size(cluster: Wired) -> None:
    cluster.create(gpushare_node("a", 8), gpushare_node("b", 8, 8))
    places = cluster.placed(*(gpushare_pod(f"p{number}", 3) for number in range(6)))
    assert sorted(places[:3]) == sorted(places[3:]) == [("a", [0]), ("b", [0]), ("b", [1])]


def test_online_pods_go_to_different_cards_where_nodes_differ_in_size(cluster: Wired) -> None:
    cluster.create(qgpu_node("a", 32, labels=MIXED), qgpu_node("b", 32, 32, 32, 32, labels=MIXED))
    places = cluster.placed(*(online_pod(f"p{number}", 3) for number in range(6)))
    assert sorted(places[:5]) == [("a", [0]), ("b", [0]), ("b", [1]), ("b", [2]), ("b", [3])]


def test_offline_pods_pack_even_so(cluster: Wired) -> None:
    """Seed 000: what is offline is binpack by default."""
    cluster.create(qgpu_node("n", 32, 32, labels=MIXED))
    places = cluster.placed(offline_pod("p", 4, 30), offline_pod("q", 4, 30))
    assert places[0] == places[1]
