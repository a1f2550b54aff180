"""Nodes that count more MiB of gpu-mem than a kubelet handles as devices: only Pods with a place go there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.dialects import MemoryUnit, Rules, advertised_gpushare_unit
from aliquot.dialects.gpushare import COUNT, MEMORY
from aliquot.dialects.native import AGENT, AWAY, COUNTED, PLACE
from aliquot.dialects.registry import parse_pod, places
from aliquot.dialects.wire.extender import parse_args
from aliquot.model.claim import Claim
from aliquot.model.refusal import Reason
from aliquot.services.scheduler.cluster import Cluster, Placed
from aliquot.services.scheduler.verbs import filter_answer
from aliquot.services.scheduler.watches.sinks import NodeSink
from kit.clusters.watchobjects import as_node, as_pod, bound, claim_of, node_json, pod_json
from kit.values.manifests import Json

MIB = Rules(gpushare_unit=MemoryUnit.MIB)
LABELS = {"gpushare": "true"}
CARD = 81_920


def big_node(name: str = "big", cards: int = 8) -> Json:
    node = node_json(name, *[80] * cards, labels=LABELS, **{MEMORY: str(cards * CARD), COUNT: str(cards)})
    node["metadata"]["annotations"][COUNTED] = MEMORY
    return node


def small_node(name: str = "small") -> Json:
    return node_json(name, 16, labels=LABELS, **{MEMORY: "16384", COUNT: "1"})


def a_cluster(*nodes: Json, rules: Rules = MIB, says_mib: bool = False) -> Cluster:
    cluster = Cluster("binpack", rules, says_mib=says_mib)
    for node in nodes:
        cluster.set_node(as_node(node))
    return cluster


def a_mib_pod(name: str, mib: int, *, place: bool = True, labels: dict[str, str] | None = None) -> Json:
    return pod_json(name, {MEMORY: str(mib), **({PLACE: "1"} if place else {})}, labels=labels)


def test_pod_without_a_place_goes_to_small_nodes_only_and_gets_advice() -> None:
    cluster = a_cluster(big_node(), small_node())
    pod = a_mib_pod("p", 4096, place=False)
    asked = parse_args(json.dumps({"Pod": pod, "NodeNames": ["big", "small"]}).encode())
    filter_answer(cluster, asked)
    answer = json.loads(filter_answer(cluster, asked)[0])  # the first try has no reasons
    assert answer["NodeNames"] == ["small"]
    (why,) = {**answer["FailedNodes"], **(answer["FailedAndUnresolvableNodes"] or {})}.values()
    assert "this Pod has no aliquot.dev/card-place: the webhook adds that to new Pods, so create the Pod again" in why
    assert (
        "without the webhook write aliquot.dev/card-place: 1 as a limit of each container with aliyun.com/gpu-mem"
        in why
    )
    refused = cluster.assume(claim_of(cluster, as_pod(pod)), "big")
    assert not isinstance(refused, Placed)
    assert [refusal.reason for refusal in refused] == [Reason.MODE]


def test_pod_with_a_place_goes_to_either_node() -> None:
    cluster = a_cluster(big_node(), small_node())
    for name, mib in (("big", CARD), ("small", 16_384)):
        pod = a_mib_pod(f"on-{name}", mib)
        placed = cluster.assume(claim_of(cluster, as_pod(pod)), name)
        assert isinstance(placed, Placed)
        cluster.set_pod(bound(cluster, pod, placed))
        ((share,),) = (container.shares for container in cluster.placed[f"uid-on-{name}"].grant.containers)
        assert share.memory_mib == mib


def test_new_pods_get_a_place_while_such_a_node_is_there() -> None:
    cluster = a_cluster(small_node())
    claim = parse_pod(a_mib_pod("p", 4096, place=False), cluster.rules)
    assert isinstance(claim, Claim)
    assert places(claim, cluster.admission_rules) == {}
    cluster.set_node(as_node(big_node()))
    assert places(claim, cluster.admission_rules) == {"main": 1}
    cluster.set_node(as_node(big_node()))
    cluster.drop_node("big")
    assert places(claim, cluster.admission_rules) == {}
    cluster.set_node(as_node(big_node()))
    unmarked = big_node()
    del unmarked["metadata"]["annotations"][COUNTED]
    cluster.set_node(as_node(unmarked))
    assert places(claim, cluster.admission_rules) == {}


@pytest.mark.parametrize(
    ("nodes", "needed"),
    [([], {"main": 1}), (["small"], {"main": 1}), (["small", "old"], {}), (["big", "old"], {"main": 1})],
    ids=["none yet", "only with our agent", "one of gpushare's own plugin", "such a node"],
)
def test_new_pods_get_a_place_where_the_unit_is_given_and_no_node_lacks_places(
    nodes: list[str], needed: dict[str, int]
) -> None:
    """An autoscaler may have removed the last large node, or not added the first one yet."""
    old = small_node("old")
    del old["metadata"]["annotations"]
    known = {"small": small_node(), "big": big_node(), "old": old}
    cluster = a_cluster(says_mib=True)
    for name in ("old", *nodes):
        cluster.set_node(as_node(known[name]))
    if "old" not in nodes:
        cluster.drop_node("old")
    claim = parse_pod(a_mib_pod("p", 4096, place=False), cluster.rules)
    assert isinstance(claim, Claim)
    assert places(claim, cluster.admission_rules) == needed


def test_unit_is_known_from_the_amount_that_the_agent_counts() -> None:
    cluster = Cluster("binpack", Rules())
    NodeSink(cluster, None, unit_known=False, reread=lambda: None).changed(as_node(big_node()))
    assert cluster.rules.gpushare_unit is MemoryUnit.MIB
    assert cluster.admission_rules.counted


def test_unit_is_known_from_the_mark_while_the_agent_is_away() -> None:
    away = big_node()
    away["status"] = {"capacity": {COUNT: "8"}}
    for nodes in ([away], [node_json("none", 16, labels=LABELS, **{COUNT: "8"}), away]):
        assert advertised_gpushare_unit(map(as_node, nodes)) is MemoryUnit.MIB


def away_node(name: str = "away") -> Json:
    """Its agent counted MiB once, and went."""
    node = big_node(name)
    node["metadata"]["annotations"][AGENT] = AWAY
    node["status"] = {"capacity": {COUNT: "8"}}
    return node


def gib_node(name: str = "gib") -> Json:
    return node_json(name, 16, labels=LABELS, **{MEMORY: "16", COUNT: "1"})


def test_unit_of_a_node_whose_agent_is_away_holds_until_another_reports_one() -> None:
    cluster, reread = Cluster("binpack", Rules()), []
    sink = NodeSink(cluster, None, unit_known=False, reread=lambda: reread.append(True))
    pod = as_pod(pod_json("p", {MEMORY: "8"}))

    def booked() -> int:
        return claim_of(cluster, pod).containers[0].slice.memory_mib

    sink.changed(as_node(away_node()))
    assert booked() == 8
    unmarked = away_node()
    del unmarked["metadata"]["annotations"][COUNTED]
    sink.changed(as_node({**unmarked, "status": gib_node()["status"]}))
    assert (booked(), len(reread)) == (8, 1), "one that is away does not correct another"
    sink.changed(as_node(gib_node()))
    assert (booked(), len(reread)) == (8192, 2)
    sink.changed(as_node(big_node()))
    assert (booked(), len(reread)) == (8192, 2), "the unit is known"


pods = st.lists(st.tuples(st.integers(1, CARD), st.sampled_from([1, 1, 2, 4]), st.booleans()), max_size=40)


@settings(max_examples=50)
@given(pods)
def test_no_card_is_overbooked_and_no_pod_without_a_place_is_on_a_big_node(found: list[tuple[int, int, bool]]) -> None:
    cluster = a_cluster(big_node("big", 4), small_node())
    names = ("big", "small")
    for at, (mib, cards, place) in enumerate(found):
        pod = a_mib_pod(f"p{at}", mib * cards, place=place, labels={COUNT: str(cards)})
        claim = claim_of(cluster, as_pod(pod))
        for name in names:
            placed = cluster.assume(claim, name)
            if isinstance(placed, Placed):
                assert place or name == "small"
                cluster.set_pod(bound(cluster, pod, placed))
                (container,) = cluster.placed[claim.uid].grant.containers
                assert [share.memory_mib for share in container.shares] == [mib] * cards
                break
    for name in names:
        node = cluster.board.node(name)
        assert node is not None
        for card in node.cards:
            assert cluster.board.usage(name, card.index).memory_mib <= card.memory_mib
