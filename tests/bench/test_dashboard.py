"""The bench of the dashboard: its cluster is one that could be, and stays so while it changes."""

from __future__ import annotations

from bench.dashboard import CARDS, PODS_PER_CARD, World

from aliquot.services.scheduler.dashboard.details import Details
from aliquot.services.scheduler.dashboard.picture import ClusterPicture, Surroundings

NODES = 30
PODS = int(NODES * CARDS * PODS_PER_CARD)


def a_picture(world: World) -> ClusterPicture:
    around = Surroundings(name="bench", leading=lambda: True, metrics=lambda: b"")
    return ClusterPicture(world.cluster, Details(world.cluster, lambda claim: None), around)


def test_bench_cluster_has_as_many_nodes_cards_and_pods_as_it_says() -> None:
    totals = a_picture(World(NODES)).state(0.0)["totals"]
    assert (totals["nodes"], totals["cards"], sum(totals["pods"].values())) == (NODES, NODES * CARDS, PODS)
    assert totals["waiting"] == 120
    assert totals["memory_booked_mib"] > 0


def test_bench_change_adds_or_removes_one_pod() -> None:
    world = World(NODES)
    picture = a_picture(world)
    picture.state(0.0)
    world.come()
    tick = picture.tick(1.0)
    assert tick is not None
    assert len(tick["rows"]) == 1
    assert sum(tick["totals"]["pods"].values()) == PODS + 1
    world.go()
    assert len(world.cluster.placed) == PODS
