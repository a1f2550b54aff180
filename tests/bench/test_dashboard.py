"""The bench of the dashboard: its cluster is one that could be, and stays so while it changes."""

from __future__ import annotations

from bench.dashboard import CARDS, PODS_PER_CARD, World

from aliquot.services.scheduler.dashboard.details import Details
from aliquot.services.scheduler.dashboard.view import ClusterView, Surroundings
from kit.machines.fakeview import JsonView

NODES = 30
PODS = int(NODES * CARDS * PODS_PER_CARD)


def a_view(world: World) -> JsonView:
    around = Surroundings(name="bench", leading=lambda: True, metrics=lambda: b"")
    return JsonView(ClusterView(world.cluster, Details(world.cluster), around))


def test_bench_cluster_has_as_many_nodes_cards_and_pods_as_it_says() -> None:
    totals = a_view(World(NODES)).state(0.0)["totals"]
    assert (totals["nodes"], totals["cards"], sum(totals["pods"].values())) == (NODES, NODES * CARDS, PODS)
    assert totals["waiting"] == 120
    assert totals["memory_booked_mib"] > 0


def test_bench_change_adds_or_removes_one_pod() -> None:
    world = World(NODES)
    view = a_view(world)
    view.state(0.0)
    world.come()
    tick = view.tick(1.0)
    assert tick is not None
    assert len(tick["rows"]) == 1
    assert sum(tick["totals"]["pods"].values()) == PODS + 1
    world.go()
    assert len(world.cluster.placed) == PODS
