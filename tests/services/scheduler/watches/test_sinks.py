"""Reflector sinks: Nodes, Pods and ConfigMaps reach the cluster; the unit of gpu-mem is learned from Nodes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from aliquot.dialects import MemoryUnit
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.refusal import Invalid
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.nodeupkeep import NodeUpkeep
from aliquot.services.scheduler.watches import sinks
from aliquot.services.scheduler.watches.sinks import ConfigSink, NodeSink, PodSink
from kit.clusters.watchobjects import a_cluster, as_node, live_node, live_pod, unhealthy
from kit.values.builders import GIB
from kit.values.manifests import COUNT, MEM

ON_CARD_0 = {"ALIYUN_COM_GPU_MEM_IDX": "0"}


class RecordingUpkeep:
    """Records what it is called with."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def observe(self, node: NodeObject, broken: tuple[Invalid, ...]) -> None:
        self.seen.append((node.metadata.name, "broken") if broken else node.metadata.name)

    def forget(self, name: str) -> None:
        self.seen.append(("gone", name))

    def observe_unhealthy(self, name: str, cards: frozenset[int]) -> None:
        self.seen.append((name, sorted(cards)))

    @property
    def upkeep(self) -> NodeUpkeep:
        return cast(NodeUpkeep, self)


class Nodes:
    """A sink of nodes, and how often Pods and nodes were to be read again."""

    def __init__(self, *, unit_known: bool = False) -> None:
        self.cluster, self.upkeep = Cluster("binpack"), RecordingUpkeep()
        self.reread = self.reread_nodes = 0
        self.sink = NodeSink(
            self.cluster,
            self.upkeep.upkeep,
            unit_known=unit_known,
            reread=self._reread,
            reread_nodes=self._reread_nodes,
        )

    def _reread(self) -> None:
        self.reread += 1

    def _reread_nodes(self) -> None:
        self.reread_nodes += 1

    def unit(self) -> MemoryUnit:
        return self.cluster.rules.gpushare_unit

    def list(self, *nodes: NodeObject) -> None:
        self.sink.listing()
        for node in nodes:
            self.sink.changed(node)
        self.sink.listed(0)


def test_failing_node_list_leaves_board_consistent(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes()
    nodes.list(live_node("n1"))

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as broken:
        broken.setattr(nodes.upkeep, "observe", fail)
        with pytest.raises(RuntimeError, match="broken"):
            nodes.list(live_node("n1", 8))
    nodes.cluster.set_pod(live_pod(limits={MEM: "4"}, on="n1", annotations=ON_CARD_0))
    assert nodes.cluster.board.room_memory[0, 0] == 4 * GIB


def advertising(name: str, memory: int) -> NodeObject:
    return live_node(name, labels={}, **{MEM: str(memory)})


@pytest.mark.parametrize("order", [1, -1], ids=["", "the other way round"])
def test_gpu_mem_unit_is_learned_before_nodes_are_applied(order: int) -> None:
    """No card has 16,000 GiB; the node beside it, of 900 MiB, could be read either way."""
    rig = Nodes()
    rig.list(*[advertising("large", 16000), advertising("small", 900)][::order])
    assert rig.cluster.rules.gpushare_unit is MemoryUnit.MIB
    rows = rig.cluster.board.row_of
    assert set(rows) == {"large", "small"}
    assert rig.reread == 1


def test_gpu_mem_unit_learned_later_rereads_pods() -> None:
    rig = Nodes()
    rig.list(live_node("none"))
    assert rig.reread == 0
    rig.sink.changed(advertising("n1", 16000))
    assert (rig.cluster.rules.gpushare_unit, rig.reread) == (MemoryUnit.MIB, 1)
    rig.sink.changed(advertising("n2", 16))
    assert (rig.cluster.rules.gpushare_unit, rig.reread) == (MemoryUnit.MIB, 1)


def test_configured_gpu_mem_unit_is_kept() -> None:
    rig = Nodes(unit_known=True)
    rig.list(advertising("n1", 16000))
    assert (rig.cluster.rules.gpushare_unit, rig.reread) == (MemoryUnit.GIB, 0)


def test_node_sink_feeds_cluster_and_upkeep() -> None:
    rig = Nodes()
    rig.list(live_node("n1", 16), live_node("n2", 16))
    rig.sink.changed(live_node("n1", 24))
    rig.sink.changed(live_node("n3", labels={"sched.tensorstack.dev/node-alloc-mode": "typo"}))
    rig.sink.gone("n2")
    assert [(node.name, node.cards[0].memory_mib) for node in rig.cluster.nodes()] == [("n1", 24 * GIB)]
    assert rig.upkeep.seen == ["n1", "n2", "n1", ("n3", "broken"), ("gone", "n2")]


def test_node_missing_from_next_list_is_dropped() -> None:
    rig = Nodes()
    rig.list(live_node("n1"), live_node("n2"))
    rig.sink.listing()
    rig.sink.changed(live_node("n1", 24))
    rig.sink.gone("n2")
    rig.sink.listed(2)
    assert [node.name for node in rig.cluster.nodes()] == ["n1"]


def test_pod_sink_books_list_then_single_pods() -> None:
    cluster = a_cluster(live_node("n1", 16, 16))
    sink = PodSink(cluster)
    sink.listing()
    sink.changed(live_pod("guessed", {MEM: "12"}, on="n1"))
    sink.changed(live_pod("seen", {MEM: "12"}, on="n1", annotations=ON_CARD_0))
    sink.listed(0)
    assert sorted(cluster.placed["uid-guessed"].grant.usage()) == [1]
    assert cluster.board.room_memory[0].tolist() == [4 * GIB, 4 * GIB]
    sink.changed(live_pod("more", on="n1", annotations=ON_CARD_0))
    sink.gone("ns/seen")
    assert cluster.board.room_memory[0].tolist() == [12 * GIB, 4 * GIB]


def test_configmap_sink_notifies_upkeep_once_per_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, upkeep = a_cluster(live_node("n1", 16, 16)), RecordingUpkeep()
    sink = ConfigSink(cluster, upkeep.upkeep)
    sink.listing()
    sink.changed(unhealthy("n1", "1"))
    sink.listed(0)
    sink.changed(unhealthy("n1", "1"))
    sink.changed(unhealthy("n1", "one"))
    assert "configmap_ignored" in caplog.text
    sink.gone("kube-system/other")
    sink.gone("kube-system/unhealthy-gpu-n1")
    assert upkeep.seen == [("n1", [1]), ("n1", [])]
    assert cluster.reported.sick == {}


def test_configmap_sink_works_without_upkeep() -> None:
    cluster = a_cluster(live_node("n1", 16, 16))
    ConfigSink(cluster, None).changed(unhealthy("n1", "1"))
    assert cluster.board.healthy[0].tolist() == [True, False]


def test_first_node_list_is_applied_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "_PART", 2)
    nodes = Nodes()
    nodes.sink.listing()
    for name in ("n1", "n2", "n3"):
        nodes.sink.changed(live_node(name))
    assert nodes.upkeep.seen == ["n1", "n2"]
    nodes.sink.listed(0)
    assert nodes.upkeep.seen == ["n1", "n2", "n3"]
    nodes.list(live_node("n4"), live_node("n5"), live_node("n6"))  # a later one is applied at its end
    assert nodes.upkeep.seen[3:] == ["n4", "n5", "n6"]


def foreign(name: str, memory: int) -> NodeObject:
    """With gpushare's own plugin: its card is what it advertises."""
    return as_node({"metadata": {"name": name}, "status": {"capacity": {MEM: str(memory), COUNT: "1"}}})


def test_nodes_are_applied_again_where_the_end_of_the_first_list_shows_another_unit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sinks, "_PART", 2)
    nodes = Nodes()
    large = [foreign(name, 16_000) for name in ("n3", "n4", "n5")]  # most nodes decide
    nodes.list(foreign("n1", 900), foreign("n2", 900), *large)
    assert nodes.cluster.rules.gpushare_unit is MemoryUnit.MIB
    assert [nodes.cluster.board.memory[row, 0] for row in range(5)] == [900, 900, *[16_000] * 3]
    assert nodes.upkeep.seen == ["n1", "n2", "n3", "n4", "n1", "n2", "n3", "n4", "n5"]


def test_a_first_node_list_that_broke_off_counts_for_the_unit_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "_PART", 2)
    nodes = Nodes()
    nodes.sink.listing()
    for name in ("n1", "n2", "n3"):
        nodes.sink.changed(foreign(name, 900))
    nodes.sink.broke_off()
    assert nodes.upkeep.seen == ["n1", "n2", "n3"]
    nodes.sink.listing()
    nodes.sink.gone("n2")
    nodes.sink.changed(foreign("n4", 16_000))
    nodes.sink.changed(foreign("n5", 16_000))
    nodes.sink.listed(0)
    assert nodes.cluster.rules.gpushare_unit is MemoryUnit.MIB
    assert {node.name: node.cards[0].memory_mib for node in nodes.cluster.nodes()} == {
        "n1": 900,
        "n3": 900,
        "n4": 16_000,
        "n5": 16_000,
    }


def test_pods_without_named_cards_are_not_guessed_where_a_list_breaks_off() -> None:
    cluster = a_cluster(live_node("n1", 16, 16))
    sink = PodSink(cluster)
    sink.listing()
    sink.changed(live_pod("guessed", limits={MEM: "16"}, on="n1"))
    sink.broke_off()
    sink.listing()
    sink.changed(live_pod("named", limits={MEM: "16"}, on="n1", annotations=ON_CARD_0))
    sink.listed(0)
    cards = {placed.claim.name: next(iter(placed.grant.usage())) for placed in cluster.placements()}
    assert cards == {"named": 0, "guessed": 1}


def test_nodes_listed_during_the_first_list_of_pods_do_not_end_it() -> None:
    cluster = a_cluster(live_node("n1", 16, 16))
    sink, nodes = PodSink(cluster), NodeSink(cluster, None, unit_known=True, reread=lambda: None)
    sink.listing()
    sink.changed(live_pod("guessed", limits={MEM: "16"}, on="n1"))
    nodes.listing()
    nodes.listed(0)
    sink.changed(live_pod("named", limits={MEM: "16"}, on="n1", annotations=ON_CARD_0))
    sink.listed(0)
    cards = {placed.claim.name: next(iter(placed.grant.usage())) for placed in cluster.placements()}
    assert cards == {"named": 0, "guessed": 1}


def test_node_that_fails_in_the_first_list_costs_no_other_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "_PART", 3)
    nodes = Nodes()
    real = Cluster.set_node
    failed: list[NodeObject] = []

    def fail_once(cluster: Cluster, item: NodeObject) -> Any:
        if item.metadata.name == "n2" and not failed:
            failed.append(item)
            raise RuntimeError("once")
        return real(cluster, item)

    monkeypatch.setattr(Cluster, "set_node", fail_once)
    nodes.sink.listing()
    nodes.sink.changed(live_node("n1"))
    nodes.sink.changed(live_node("n2"))
    with pytest.raises(RuntimeError, match="once"):
        nodes.sink.changed(live_node("n3"))
    nodes.sink.broke_off()
    nodes.sink.listing()
    nodes.sink.listed(0)
    assert [node.name for node in nodes.cluster.nodes()] == ["n1", "n2", "n3"]


# --- the unit, after the first list ----------------------------------------------------------------------------------


def test_first_node_of_a_new_cluster_does_not_decide_the_unit_for_those_that_follow() -> None:
    """Nothing has gpu-mem when the scheduler starts: a new installation, or a node pool that was scaled to 0."""
    rig = Nodes()
    rig.list()
    rig.sink.changed(foreign("lying", 999_999))
    assert rig.unit() is MemoryUnit.MIB
    for at in range(50):
        rig.sink.changed(foreign(f"n{at}", 24))
    rig.list()
    assert rig.unit() is MemoryUnit.GIB
    assert (rig.reread, rig.reread_nodes) == (2, 2), "once for each change of the unit"


def test_a_list_shows_a_unit_that_most_nodes_have_changed_to() -> None:
    """It brings only what differs from before, and all nodes are read again."""
    rig = Nodes()
    rig.list(*(foreign(f"n{at}", 24) for at in range(3)))
    assert (rig.unit(), rig.reread_nodes) == (MemoryUnit.GIB, 0)
    rig.list(foreign("n0", 24_000))
    assert (rig.unit(), rig.reread_nodes) == (MemoryUnit.GIB, 0)
    rig.list(foreign("n1", 24_000))
    assert (rig.unit(), rig.reread, rig.reread_nodes) == (MemoryUnit.MIB, 1, 1)
    rig.sink.listing()
    rig.sink.gone("n0")
    rig.sink.gone("n1")
    rig.sink.listed(2)
    assert rig.unit() is MemoryUnit.GIB


def test_unit_stays_while_a_pod_of_gpushare_is_booked() -> None:
    rig = Nodes()
    rig.list(foreign("n1", 24))
    pod = live_pod(limits={MEM: "4"}, on="n1", annotations=ON_CARD_0)
    rig.cluster.set_pod(pod)
    for name in ("n2", "n3"):
        rig.sink.changed(foreign(name, 24_000))
    rig.list()
    assert (rig.unit(), rig.reread) == (MemoryUnit.GIB, 0)
    assert rig.cluster.board.used_memory[0, 0] == 4 * GIB
    rig.sink.gone("n1")
    rig.sink.gone("n2")
    rig.sink.gone("n3")
    rig.list()
    assert rig.unit() is MemoryUnit.GIB, "no node says anything"
    rig.cluster.drop_pod("ns/p")
    rig.sink.changed(foreign("n4", 24_000))
    assert (rig.unit(), rig.reread) == (MemoryUnit.MIB, 1)


def test_node_that_says_now_this_and_now_that_has_nothing_read_again_before_the_next_list() -> None:
    rig = Nodes()
    rig.list(foreign("n1", 24))
    for _ in range(10):
        for memory in (24_000, 0, 24_000, 24, 0, 24):
            rig.sink.changed(foreign("n1", memory))
    assert (rig.unit(), rig.reread, rig.reread_nodes) == (MemoryUnit.GIB, 0, 0)


def test_given_unit_is_kept_whatever_nodes_say_later() -> None:
    rig = Nodes(unit_known=True)
    rig.list()
    rig.sink.changed(foreign("n1", 24_000))
    rig.list(foreign("n2", 24_000))
    assert (rig.unit(), rig.reread, rig.reread_nodes) == (MemoryUnit.GIB, 0, 0)
