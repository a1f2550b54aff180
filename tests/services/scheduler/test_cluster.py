"""The live cluster: whatever is told, in whatever order, the board is what the facts make it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aliquot.dialects import MemoryUnit, Rules
from aliquot.dialects.native import GRANT
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.refusal import Invalid, Reason
from aliquot.placement.board import Board
from aliquot.placement.book import occupant_of
from aliquot.placement.choose import POLICIES
from aliquot.placement.verdicts import verdict_of
from aliquot.services.scheduler.cluster import Cluster, Placed
from kit.builders import GIB
from kit.manifests import (
    APP_CLASS,
    COUNT,
    MEM,
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    T9K_CARDS,
    T9K_NODE,
    T9K_PERCENT,
    Json,
    a_container,
)
from kit.watchobjects import (
    ALL,
    SHARED,
    a_cluster,
    as_node,
    as_pod,
    bound_json,
    claim_of,
    inventory_json,
    live_node,
    live_pod,
    pod_json,
    unhealthy,
)

ON_CARD_0 = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
TWO_FIVES = pod_json("two")
TWO_FIVES["spec"]["containers"] = [a_container("a", {QGPU_MEMORY: "5"}), a_container("b", {QGPU_MEMORY: "5"})]


def free(cluster: Cluster, node: str = "n1", card: int = 0) -> int:
    """GiB left on the card."""
    return int(cluster.board.room_memory[cluster.board.row_of[node], card]) // GIB


def assumed(cluster: Cluster, pod: PodObject, node: str = "n1") -> Placed:
    placed = cluster.assume(claim_of(cluster, pod), node)
    assert isinstance(placed, Placed)
    return placed


def bound(cluster: Cluster, pod: Json, placed: Placed) -> PodObject:
    """The Pod after the API server took the binding."""
    node = cluster.board.node(placed.grant.node)
    assert node is not None
    return as_pod(bound_json(pod, placed.claim, placed.grant, node, cluster.rules))


def test_node_with_agent_away_takes_no_new_pods_and_keeps_its_bookings() -> None:
    away = live_node()
    away.metadata.annotations = {**(away.metadata.annotations or {}), "aliquot.dev/agent": "away"}
    cluster = a_cluster(live_node())
    cluster.set_pod(live_pod(on="n1", annotations=ON_CARD_0))
    cluster.set_node(away)
    claim = claim_of(cluster, live_pod("q"))
    assert list(cluster.filter(claim, ["n1"]).fit) == []
    assert isinstance(cluster.assume(claim, "n1"), list), "nor one that was on its way"
    assert cluster.closed == {"n1": ("agent away",)}
    cluster.set_node(live_node())
    assert list(cluster.filter(claim, ["n1"]).fit) == ["n1"]
    assert (free(cluster), cluster.closed) == (12, {})


def test_pod_of_an_unserved_dialect_is_not_pending() -> None:
    cluster = Cluster("binpack", Rules(served=frozenset({"qgpu"})))
    cluster.set_node(live_node(labels=ALL))
    pod = live_pod(limits={MEM: "4"})
    cluster.set_pod(pod)
    assert cluster.read(pod) is None
    assert cluster.pending == {}


def test_pods_of_unserved_dialects_count_on_a_card() -> None:
    """The mode was another when it was placed; its card is taken all the same."""
    cluster = Cluster("binpack", Rules(served=frozenset({"qgpu"})))
    cluster.set_node(live_node(labels=ALL))
    before = free(cluster)
    cluster.set_pod(live_pod(limits={MEM: "4"}, on="n1", annotations=ON_CARD_0))
    assert free(cluster) == before - 4


def test_pod_of_an_unserved_dialect_without_a_grant_holds_no_card() -> None:
    cluster = Cluster("binpack", Rules(served=frozenset({"qgpu"})))
    cluster.set_node(live_node(labels=ALL))
    before = free(cluster)
    cluster.set_pod(live_pod(limits={MEM: "4"}, on="n1"))
    assert (free(cluster), cluster.placed) == (before, {})


# --- Pods ------------------------------------------------------------------------------------------------------------


def test_a_pod_is_pending_then_assumed_then_placed_and_its_cards_are_held_once() -> None:
    cluster, pod = a_cluster(live_node()), pod_json("p")
    cluster.set_pod(as_pod(pod))
    assert (set(cluster.pending), free(cluster)) == ({"uid-p"}, 16)
    placed = assumed(cluster, as_pod(pod))
    assert (set(cluster.assumed), free(cluster)) == ({"uid-p"}, 12)
    cluster.set_pod(bound(cluster, pod, placed))
    assert (cluster.pending, cluster.assumed, free(cluster)) == ({}, {}, 12)
    assert cluster.placed["uid-p"] == Placed(placed.claim, placed.grant)


def test_unassume_frees_the_cards() -> None:
    cluster = a_cluster(live_node())
    assumed(cluster, live_pod())
    cluster.unassume("uid-p")
    cluster.unassume("uid-p")
    assert (free(cluster), len(cluster.ledger)) == (16, 0)


def test_unassume_after_the_bind_was_confirmed_changes_nothing() -> None:
    cluster, pod = a_cluster(live_node()), pod_json("p")
    cluster.set_pod(bound(cluster, pod, assumed(cluster, as_pod(pod))))
    cluster.unassume("uid-p")
    assert free(cluster) == 12


def test_a_pod_that_is_terminating_holds_its_cards_until_it_is_gone() -> None:
    cluster = a_cluster(live_node())
    pod = pod_json("p", on="n1", annotations=ON_CARD_0)
    pod["metadata"]["deletionTimestamp"] = "2026-11-15T00:00:00Z"
    cluster.set_pod(as_pod(pod))
    assert free(cluster) == 12
    cluster.drop_pod("ns/p")
    assert free(cluster) == 16


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_run_to_its_end_holds_nothing(phase: str) -> None:
    cluster = a_cluster(live_node())
    for status in (None, {"phase": phase}):
        cluster.set_pod(live_pod(on="n1", annotations=ON_CARD_0, status=status))
    assert (free(cluster), cluster.placed) == (16, {})
    cluster.drop_pod("ns/p")
    assert cluster.seen == {}


def test_a_pod_made_anew_under_its_name_takes_nothing_of_the_one_before() -> None:
    cluster = a_cluster(live_node())
    cluster.set_pod(live_pod(on="n1", annotations=ON_CARD_0, uid="first"))
    cluster.set_pod(live_pod(limits={MEM: "2"}, on="n1", annotations=ON_CARD_0, uid="second"))
    assert (set(cluster.placed), free(cluster)) == ({"second"}, 14)


def test_drop_pod_twice_is_harmless() -> None:
    cluster = a_cluster(live_node())
    cluster.set_pod(live_pod(on="n1", annotations=ON_CARD_0))
    for _ in range(2):
        cluster.drop_pod("ns/p")
    assert (free(cluster), cluster.seen) == (16, {})


@pytest.mark.parametrize(
    "held_back",
    [{"schedulingGates": [{"name": "wait"}]}, {"limits": {"cpu": "1"}}],
    ids=["gates", "nothing of ours"],
)
def test_a_pod_is_not_pending_while_it_has(held_back: Json) -> None:
    cluster = a_cluster(live_node())
    cluster.set_pod(live_pod(**held_back))
    assert cluster.pending == {}


def test_deleted_pending_pod_is_forgotten() -> None:
    cluster, pod = a_cluster(live_node()), pod_json()
    cluster.set_pod(as_pod(pod))
    pod["metadata"]["deletionTimestamp"] = "2026-11-15T00:00:00Z"
    cluster.set_pod(as_pod(pod))
    assert cluster.pending == {}


def test_a_pod_that_breaks_a_rule_is_pending_with_what_it_breaks() -> None:
    cluster = a_cluster(live_node())
    cluster.set_pod(live_pod(limits={MEM: "5Gi"}, refused=True))
    pending = cluster.pending["uid-p"]
    assert pending.refused
    assert isinstance(pending.claim, tuple)
    assert isinstance(pending.claim[0], Invalid)


def test_a_pod_that_is_not_ours_still_takes_cpu_and_its_place_on_the_node() -> None:
    cluster = a_cluster(live_node(cpu="4"))
    cluster.set_pod(live_pod("other", {"cpu": "3"}, on="n1"))
    refused = cluster.assume(claim_of(cluster, live_pod(limits={MEM: "1", "cpu": "2"})), "n1")
    assert isinstance(refused, list)
    assert [refusal.reason for refusal in refused] == [Reason.CPU]
    assert isinstance(cluster.assume(claim_of(cluster, live_pod("all", {T9K_NODE: "1"})), "n1"), list)


def test_a_daemons_pod_does_not_stand_in_the_way_of_a_whole_node() -> None:
    cluster = a_cluster(live_node())
    cluster.set_pod(live_pod("agent", {"cpu": "1"}, on="n1", owner="DaemonSet/agent"))
    assert isinstance(cluster.assume(claim_of(cluster, live_pod("all", {T9K_NODE: "1"})), "n1"), Placed)


OWN = "aliquot-system/aliquot-scheduler"


@pytest.mark.parametrize(
    ("namespace", "account", "annotations", "fits"),
    [
        ("aliquot-system", "aliquot-scheduler", {}, True),
        ("kube-system", "default", {"kubernetes.io/config.mirror": "hash"}, True),
        ("aliquot-system", "default", {}, False),
        ("ns", "aliquot-scheduler", {}, False),
        ("ns", None, {}, False),
    ],
    ids=["our own", "static", "another account", "an account of that name elsewhere", "no account"],
)
def test_only_pods_of_the_node_itself_do_not_stand_in_the_way_of_a_whole_node(
    namespace: str, account: str | None, annotations: Json, fits: bool
) -> None:
    cluster = Cluster("binpack", Rules(own_account=OWN))
    cluster.set_node(live_node())
    # Labels are anybody's to set: they make no Pod ours.
    labels = {"app.kubernetes.io/name": "aliquot", "app.kubernetes.io/component": "scheduler"}
    pod = pod_json("there", {"cpu": "1"}, on="n1", annotations=annotations, labels=labels)
    pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"] = namespace, account
    cluster.set_pod(as_pod(pod))
    placed = cluster.assume(claim_of(cluster, live_pod("all", {T9K_NODE: "1"})), "n1")
    assert isinstance(placed, Placed) == fits


# --- Pods that nobody told the cards of ------------------------------------------------------------------------------


def test_pod_scheduled_past_us_is_guessed_with_doubt() -> None:
    cluster = a_cluster(live_node("n1", 8, 16))
    cluster.set_pod(live_pod(limits={MEM: "12"}, on="n1"))
    placed = cluster.placed["uid-p"]
    assert (sorted(placed.grant.usage()), placed.doubt) == ([1], "no annotation tells its cards")
    assert free(cluster, card=1) == 4


def test_pod_scheduled_past_us_onto_full_cards_is_unseated_with_doubt() -> None:
    cluster = a_cluster(live_node("n1", 8))
    cluster.set_pod(live_pod(limits={MEM: "12"}, on="n1"))
    placed = cluster.placed["uid-p"]
    assert placed.grant.usage() == {}
    assert cluster.doubt(placed) == "no annotation tells its cards, and no card of the node has room for it"
    assert cluster.board.pods[0] == 1


def test_peers_pod_on_a_missing_card_number_is_counted_with_doubt() -> None:
    cluster = a_cluster(live_node("n1", 16, 16))
    cluster.set_pod(live_pod("p", {MEM: "8"}, on="n1", annotations={"ALIYUN_COM_GPU_MEM_IDX": "7"}))
    assert cluster.doubt(cluster.placed["uid-p"]) == "its annotation names card 7, which the node does not have"
    cluster.set_pod(live_pod("q", {MEM: "8"}, on="n1", annotations=ON_CARD_0))
    assert cluster.doubt(cluster.placed["uid-q"]) is None


def test_pods_with_grants_are_booked_before_guesses_in_any_list_order() -> None:
    cluster = a_cluster(live_node("n1", 8, 16))
    cluster.begin()
    cluster.set_pod(live_pod("guessed", {MEM: "8"}, on="n1"))
    cluster.set_pod(live_pod("told", {MEM: "8"}, on="n1", annotations=ON_CARD_0))
    cluster.end()
    assert sorted(cluster.placed["uid-guessed"].grant.usage()) == [1]


def test_a_pod_that_loses_its_annotations_stays_where_it_was_counted() -> None:
    cluster, pod = a_cluster(live_node("n1", 16, 16)), pod_json("p")
    placed = assumed(cluster, as_pod(pod))
    cluster.set_pod(bound(cluster, pod, placed))
    cluster.set_pod(live_pod(on="n1"))
    assert cluster.placed["uid-p"].grant == placed.grant
    assert cluster.placed["uid-p"].doubt == "no annotation tells its cards"


def test_a_pod_bound_where_we_assumed_it_but_without_annotations_keeps_the_cards_we_chose() -> None:
    cluster = a_cluster(live_node("n1", 16, 16))
    placed = assumed(cluster, live_pod())
    cluster.set_pod(live_pod(on="n1"))
    assert cluster.placed["uid-p"].grant == placed.grant
    assert cluster.placed["uid-p"].doubt == "its annotations were taken away"


def test_node_by_the_api_server_overrides_the_assumed_node() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"))
    assumed(cluster, live_pod(), "n1")
    cluster.set_pod(live_pod(on="n2", annotations=ON_CARD_0))
    assert (free(cluster, "n1"), free(cluster, "n2")) == (16, 12)


def test_grant_that_comes_later_in_a_list_replaces_the_guess() -> None:
    cluster = a_cluster(live_node("n1", 16, 16))
    cluster.begin()
    cluster.set_pod(live_pod(on="n1"))
    cluster.set_pod(live_pod(on="n1", annotations={"ALIYUN_COM_GPU_MEM_IDX": "1"}))
    cluster.end()
    assert sorted(cluster.placed["uid-p"].grant.usage()) == [1]


@pytest.mark.parametrize("limits", [{MEM: "12"}, {T9K_NODE: "1"}, {T9K_CARDS: "1"}], ids=str)
def test_a_pod_on_a_node_that_comes_later_takes_its_cards_then(limits: Json) -> None:
    """A node whose label was broken when its Pods were read; the Pods are not told again when it is mended."""
    cluster = a_cluster(live_node("n1", labels={"sched.tensorstack.dev/node-alloc-mode": "typo"}))
    cluster.set_pod(live_pod(limits=limits, on="n1"))
    cluster.set_node(live_node("n1"))
    assert sorted(cluster.placed["uid-p"].grant.usage()) == [0]
    assert isinstance(cluster.assume(claim_of(cluster, live_pod("q", {MEM: "12"})), "n1"), list)


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_node_that_breaks_a_rule_is_unusable_until_corrected() -> None:
    cluster = a_cluster(live_node(), live_node("n1", labels={"sched.tensorstack.dev/node-alloc-mode": "typo"}))
    assert list(cluster.unusable) == ["n1"]
    assert list(cluster.nodes()) == []
    cluster.set_node(live_node())
    assert cluster.unusable == {}
    assert [node.name for node in cluster.nodes()] == ["n1"]


def test_bookings_follow_the_card_uuid_when_cards_are_renumbered() -> None:
    cluster, pod = a_cluster(live_node("n1", 16, 24)), pod_json("p", {MEM: "20"})
    cluster.set_pod(bound(cluster, pod, assumed(cluster, as_pod(pod))))
    assert (free(cluster, card=0), free(cluster, card=1)) == (16, 4)
    swapped = [Card(0, 24 * GIB, "n1-1"), Card(1, 16 * GIB, "n1-0")]
    cluster.set_node(as_node(inventory_json("n1", swapped)))
    assert (free(cluster, card=0), free(cluster, card=1)) == (4, 16)
    assert sorted(cluster.placed["uid-p"].grant.usage()) == [0]


def test_a_node_that_is_gone_keeps_what_is_booked_and_comes_back_with_it() -> None:
    cluster = a_cluster(live_node())
    cluster.set_pod(live_pod(on="n1", annotations=ON_CARD_0))
    cluster.drop_node("n1")
    refused = cluster.assume(claim_of(cluster, live_pod("q")), "n1")
    assert isinstance(refused, list)
    assert [refusal.reason for refusal in refused] == [Reason.NOT_READY]
    cluster.set_node(live_node())
    assert free(cluster) == 12


def test_a_configmap_takes_cards_out_and_gives_them_back() -> None:
    cluster = a_cluster(live_node("n1", 16, 24))
    assert cluster.set_unhealthy(unhealthy("n1", "1")) is None
    assert isinstance(cluster.assume(claim_of(cluster, live_pod(limits={MEM: "20"})), "n1"), list)
    cluster.drop_unhealthy("kube-system/unhealthy-gpu-n1")
    assert (cluster.sick, free(cluster, card=1)) == ({}, 24)


def test_a_configmap_may_come_before_its_node() -> None:
    cluster = a_cluster()
    cluster.set_unhealthy(unhealthy("n1", "0"))
    cluster.set_node(live_node("n1", 16, 24))
    assert cluster.board.healthy[0].tolist() == [False, True]


def test_a_broken_configmap_is_told_and_changes_nothing() -> None:
    cluster = a_cluster(live_node("n1", 16, 24))
    cluster.set_unhealthy(unhealthy("n1", "1"))
    wrong = cluster.set_unhealthy(unhealthy("n1", "one"))
    assert wrong is not None
    assert wrong.field == "data.gpus"
    assert cluster.sick == {"n1": frozenset({1})}


@pytest.mark.parametrize("key", ["kube-system/other", "elsewhere/unhealthy-gpu-n1"])
def test_other_configmaps_are_ignored(key: str) -> None:
    cluster = a_cluster(live_node())
    cluster.set_unhealthy(unhealthy("n1", "0"))
    cluster.drop_unhealthy(key)
    assert cluster.sick == {"n1": frozenset({0})}


def test_memory_unit_holds_for_pods_read_after_it_was_learned() -> None:
    cluster = a_cluster()
    assert not cluster.use_unit(MemoryUnit.GIB)
    assert cluster.use_unit(MemoryUnit.MIB)
    cluster.set_node(live_node("n1", labels={}, **{MEM: "16000"}))
    cluster.set_pod(live_pod(limits={MEM: "4000"}, on="n1", annotations=ON_CARD_0))
    assert cluster.board.used_memory[0, 0] == 4000


# --- deciding --------------------------------------------------------------------------------------------------------


def test_filter_answers_fit_reason_or_unknown_for_each_node() -> None:
    cluster = a_cluster(live_node("fits"), live_node("small", 2), live_node("gone"))
    cluster.set_pod(live_pod("q", on="gone", annotations=ON_CARD_0))
    cluster.drop_node("gone")
    found = cluster.filter(claim_of(cluster, live_pod()), ["small", "fits", "never-heard-of", "gone"])
    assert list(found.fit) == ["fits"]
    assert {name: verdict_of(code) for name, code in found.codes.items()} == {"small": (Reason.MEMORY, True)}
    assert found.unknown == ("never-heard-of", "gone")


@pytest.mark.parametrize("pod", [pod_json(), TWO_FIVES], ids=["one container", "two"])
def test_filter_and_rank_without_nodes(pod: Json) -> None:
    cluster = a_cluster()
    claim = claim_of(cluster, as_pod(pod))
    assert cluster.filter(claim, ["a", "b"]).unknown == ("a", "b")
    assert cluster.filter(claim, []).fit == []
    ranks, best = cluster.rank(claim, ["a", "b"])
    assert (ranks.tolist(), best) == ([0, 0], None)


@pytest.mark.parametrize("policy", POLICIES)
def test_filter_refuses_containers_that_fit_only_one_by_one(policy: str) -> None:
    cluster = a_cluster(live_node("n1", 8), live_node("n2", 8, 8), policy=policy)
    for _ in range(2):
        found = cluster.filter(claim_of(cluster, as_pod(TWO_FIVES)), ["n1", "n2"])
        assert list(found.fit) == ["n2"]
        assert verdict_of(found.codes["n1"]) == (Reason.CONTAINERS, False)


def test_rank_names_the_best_node() -> None:
    cluster = a_cluster(live_node("empty"), live_node("half"), live_node("full"), policy="binpack")
    cluster.set_pod(live_pod("q", {MEM: "8"}, on="half", annotations=ON_CARD_0))
    cluster.set_pod(live_pod("r", {MEM: "16"}, on="full", annotations=ON_CARD_0))
    ranks, best = cluster.rank(claim_of(cluster, live_pod()), ["empty", "half", "full", "unknown"])
    assert best is not None
    assert best.node == "half"
    assert ranks[1] > ranks[0] > ranks[2] == ranks[3] == 0


def test_hold_keeps_the_place_from_the_next_pod() -> None:
    cluster = a_cluster(live_node("n1", 4), live_node("n2", 4))
    first, second = (claim_of(cluster, live_pod(name)) for name in ("a", "b"))
    _, best = cluster.rank(first, ["n1", "n2"])
    assert best is not None
    cluster.hold(first, best, deadline=10.0)
    _, other = cluster.rank(second, ["n1", "n2"])
    assert other is not None
    assert other.node != best.node


def test_hold_ends_at_its_deadline_or_with_a_new_filter_call() -> None:
    cluster = a_cluster(live_node("n1", 4))
    claim = claim_of(cluster, live_pod())
    for end in (lambda: cluster.drop_late_holds(10.0), lambda: cluster.filter(claim, ["n1"])):
        _, best = cluster.rank(claim, ["n1"])
        assert best is not None
        cluster.hold(claim, best, deadline=10.0)
        cluster.drop_late_holds(9.9)
        assert (set(cluster.held), free(cluster)) == ({"uid-p"}, 0)
        end()
        assert (set(cluster.held), free(cluster), len(cluster.ledger)) == (set(), 4, 0)


def test_assume_turns_a_hold_into_one_booking() -> None:
    cluster = a_cluster(live_node())
    claim = claim_of(cluster, live_pod())
    _, best = cluster.rank(claim, ["n1"])
    assert best is not None
    cluster.hold(claim, best, deadline=10.0)
    assumed(cluster, live_pod())
    cluster.drop_late_holds(100.0)
    assert (set(cluster.held), free(cluster)) == (set(), 12)


def _held(cluster: Cluster, pod: PodObject, node: str = "n1") -> Claim:
    claim = claim_of(cluster, pod)
    _, best = cluster.rank(claim, [node])
    assert best is not None
    cluster.hold(claim, best, deadline=10.0)
    return claim


def test_assume_takes_the_held_cards() -> None:
    cluster = a_cluster(live_node("n1", 16, 16), policy="spread")
    claim = _held(cluster, live_pod())
    kept = cluster.held["uid-p"].grant
    cluster.set_pod(live_pod("q", on="n1", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}))
    placed = cluster.assume(claim, "n1")
    assert isinstance(placed, Placed)
    assert placed.grant == kept


def test_assume_on_another_node_releases_the_hold() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"))
    assert isinstance(cluster.assume(_held(cluster, live_pod(), "n2"), "n1"), Placed)
    assert (free(cluster, "n1"), free(cluster, "n2")) == (12, 16)


SHAKEN: dict[str, tuple[Json, Any]] = {
    "its card fell sick": ({MEM: "4"}, lambda cluster: cluster.set_unhealthy(unhealthy("n1", "0"))),
    "its card was given to others too": (
        {MEM: "16"},
        lambda cluster: cluster.set_pod(live_pod("q", on="n1", annotations=ON_CARD_0)),
    ),
    "its card shrank": ({MEM: "16"}, lambda cluster: cluster.set_node(live_node("n1", 8))),
    "its node is gone": ({MEM: "4"}, lambda cluster: cluster.drop_node("n1")),
    "its node serves others now": ({MEM: "4"}, lambda cluster: cluster.set_node(live_node("n1", labels={}))),
    "others came to the whole node": (
        {T9K_NODE: "1"},
        lambda cluster: cluster.set_pod(live_pod("q", {"cpu": "1"}, on="n1")),
    ),
    "another took the whole node": (
        {MEM: "4"},
        lambda cluster: cluster.set_pod(live_pod("q", {T9K_NODE: "1"}, on="n1")),
    ),
    "its CPU is gone": (
        {MEM: "4", "cpu": "3"},
        lambda cluster: cluster.set_pod(live_pod("q", {"cpu": "3"}, on="n1")),
    ),
}


@pytest.mark.parametrize(("limits", "happens"), SHAKEN.values(), ids=SHAKEN)
def test_assume_ignores_the_hold_when(limits: Json, happens: Any) -> None:
    cluster = a_cluster(live_node("n1", 16, cpu="4"))
    claim = _held(cluster, live_pod(limits=limits))
    happens(cluster)
    refused = cluster.assume(claim, "n1")
    assert isinstance(refused, list)
    assert refused
    assert "uid-p" not in {booking.uid for booking in cluster.ledger}


def test_hold_follows_the_card_uuid_when_cards_are_renumbered() -> None:
    cluster = a_cluster(live_node("n1", 16, 24))
    claim = _held(cluster, live_pod(limits={MEM: "20"}))
    swapped = [Card(0, 24 * GIB, "n1-1"), Card(1, 16 * GIB, "n1-0")]
    cluster.set_node(as_node(inventory_json("n1", swapped)))
    placed = cluster.assume(claim, "n1")
    assert isinstance(placed, Placed)
    assert [(share.card, share.uuid) for share in placed.grant.containers[0].shares] == [(0, "n1-1")]
    assert (free(cluster, card=0), free(cluster, card=1)) == (4, 16)


def test_hold_ignores_assumed_and_placed_pods() -> None:
    cluster = a_cluster(live_node())
    placed = assumed(cluster, live_pod())
    cluster.hold(placed.claim, placed.grant, deadline=1.0)
    cluster.drop_late_holds(2.0)
    assert (set(cluster.held), free(cluster)) == (set(), 12)


def test_fits_without_changes_nothing() -> None:
    cluster = a_cluster(live_node("n1"))
    for name in ("a", "b"):
        cluster.set_pod(live_pod(name, {MEM: "8"}, on="n1", annotations=ON_CARD_0))
    claim = claim_of(cluster, live_pod(limits={MEM: "12"}))
    assert not cluster.fits_without(claim, "n1", ["uid-a"])
    assert cluster.fits_without(claim, "n1", ["uid-a", "uid-b", "never-heard-of"])
    assert not cluster.fits_without(claim, "elsewhere", ["uid-a", "uid-b"])
    assert free(cluster) == 0


# --- any sequence of events ------------------------------------------------------------------------------------------

NODES = ("n1", "n2", "n3")
ASKED: list[tuple[Json, Json]] = [
    ({MEM: "4"}, {}),
    ({MEM: "8"}, {COUNT: "2"}),
    ({QGPU_MEMORY: "3", QGPU_CORE: "40"}, {}),
    ({QGPU_MEMORY: "3"}, {APP_CLASS: "online"}),
    ({QGPU_MEMORY: "3", QGPU_GREEDY: "60"}, {APP_CLASS: "offline"}),
    ({T9K_CARDS: "1"}, {}),
    ({T9K_PERCENT: "30"}, {}),
    ({T9K_NODE: "1"}, {}),
    ({"cpu": "1"}, {}),
    ({MEM: "5Gi"}, {}),
]


BOOKED = ("used_memory", "used_core", "used_greedy", "used_slices", "exclusive", "online", "offline", "pods", "taken")


def told(board: Board) -> dict[str, dict[str, Any]]:
    """What the board says of each node, but for where it stands and when it changed.

    Of a node that is gone, how much is booked on it: which numbers its cards have is known when it is back.
    """
    board._widen(8)  # so that it holds what is booked on cards that no node has
    columns = {name: column for name, column in vars(board).items() if isinstance(column, np.ndarray)}
    return {
        node: {
            name: column[row].tolist() if board.present[row] else column[row].sum().item()
            for name, column in columns.items()
            if (name in BOOKED or board.present[row]) and name not in ("changed", "model")
        }
        for node, row in board.row_of.items()
    }


class Events(RuleBasedStateMachine):
    """Random events, told to a cluster as a reflector and a binder would; after each, a cluster that hears only what
    is so now must come to the same board."""

    @initialize(policy=st.sampled_from(sorted(POLICIES)), guesses=st.booleans())
    def begin(self, policy: str, guesses: bool) -> None:
        self.cluster, self.guesses = Cluster(policy), guesses
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}  # by key
        self.sick: dict[str, str] = {}
        self.count, self.now = 0, 0.0

    # --- nodes

    @rule(
        name=st.sampled_from(NODES),
        sizes=st.lists(st.sampled_from([8, 16]), max_size=3),
        order=st.permutations(range(3)),
        sick=st.sampled_from([None, None, None, 0, 1]),
        labels=st.sampled_from([ALL, ALL, SHARED, {"sched.tensorstack.dev/node-alloc-mode": "typo"}]),
    )
    def a_node_is_there_or_changes(
        self, name: str, sizes: list[int], order: list[int], sick: int | None, labels: dict[str, str]
    ) -> None:
        """Cards keep their UUID, whatever their number. All three are always told: one that is gone has no number."""
        sizes = [*sizes, 8, 8, 8][:3]
        cards = [Card(order[at], size * GIB, f"{name}-{at}", healthy=at != sick) for at, size in enumerate(sizes)]
        self.nodes[name] = inventory_json(name, cards, labels)
        self.cluster.set_node(as_node(self.nodes[name]))

    @rule(name=st.sampled_from(NODES))
    def a_node_is_gone(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.cluster.drop_node(name)

    @rule(name=st.sampled_from(NODES), cards=st.sampled_from(["0", "1,2", ""]))
    def cards_are_taken_out(self, name: str, cards: str) -> None:
        self.sick[name] = cards
        self.cluster.set_unhealthy(unhealthy(name, cards))

    @rule(name=st.sampled_from(NODES))
    def cards_are_given_back(self, name: str) -> None:
        self.sick.pop(name, None)
        self.cluster.drop_unhealthy(f"kube-system/unhealthy-gpu-{name}")

    # --- Pods

    @rule(asked=st.sampled_from(ASKED), name=st.sampled_from("abcdef"), daemon=st.booleans())
    def a_pod_is_made(self, asked: tuple[Json, Json], name: str, daemon: bool) -> None:
        """One of that name may be there: it is gone, and this one made, between two looks."""
        self.count += 1
        limits, annotations = asked
        self._tell(
            pod_json(
                name,
                limits,
                uid=f"uid-{self.count}",
                annotations=annotations,
                owner="DaemonSet/d" if daemon else "ReplicaSet/r",
            )
        )

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), node=st.sampled_from(NODES))
    def we_assume(self, data: st.DataObject, node: str) -> None:
        pod = self._some(data)
        pending = self.cluster.pending.get(pod["metadata"]["uid"])
        if pending is None or not isinstance(pending.claim, Claim) or pending.uid in self.cluster.assumed:
            return
        placed = self.cluster.assume(pending.claim, node)
        if isinstance(placed, list):
            assert placed, "a refusal says why"
            return
        self._fits(placed)

    def _fits(self, placed: Placed) -> None:
        board, row = self.cluster.board, self.cluster.board.row_of[placed.grant.node]
        assert board.present[row]
        assert placed.grant.usage(), "cards were asked for"
        for card, use in placed.grant.usage().items():
            assert board.healthy[row, card]
            assert board.used_memory[row, card] <= board.memory[row, card]
            assert not use.core_milli or board.used_core[row, card] <= 1000
            assert not use.greedy_milli or board.used_greedy[row, card] <= 1000
            assert board.used_slices[row, card] == 1 or not board.exclusive[row, card]
        assert board.taken[row] == 0 or board.pods[row] == 1

    @precondition(lambda self: self.cluster.assumed)
    @rule(data=st.data())
    def the_api_server_says_yes(self, data: st.DataObject) -> None:
        placed = data.draw(st.sampled_from(list(self.cluster.assumed.values())))
        node = self.cluster.board.node(placed.grant.node)
        if node is not None:
            self._tell(bound_json(self.pods[placed.claim.key], placed.claim, placed.grant, node, self.cluster.rules))

    @precondition(lambda self: self.cluster.assumed)
    @rule(data=st.data())
    def the_api_server_says_no(self, data: st.DataObject) -> None:
        self.cluster.unassume(data.draw(st.sampled_from(list(self.cluster.assumed))))

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), node=st.sampled_from(NODES), card=st.sampled_from([None, "0", "2"]))
    def somebody_else_binds(self, data: st.DataObject, node: str, card: str | None) -> None:
        pod = self._some(data)
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        tells = MEM in limits and card is not None
        ours = not limits.keys() & {"cpu"} and limits.get(MEM) != "5Gi"
        if pod["spec"].get("nodeName") or (ours and not tells and not self.guesses):
            return
        annotations = {**pod["metadata"]["annotations"], **({"ALIYUN_COM_GPU_MEM_IDX": card} if tells else {})}
        self._tell(
            {
                **pod,
                "metadata": {**pod["metadata"], "annotations": annotations},
                "spec": {**pod["spec"], "nodeName": node},
            }
        )

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_is_told_again(self, data: st.DataObject) -> None:
        self.cluster.set_pod(as_pod(self._some(data)))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_has_run_to_its_end(self, data: st.DataObject) -> None:
        self._tell({**self._some(data), "status": {"phase": "Succeeded"}})

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_is_gone(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.pods)))
        del self.pods[key]
        self.cluster.drop_pod(key)

    @rule(data=st.data(), lost=st.booleans())
    def everything_is_listed_anew(self, data: st.DataObject, lost: bool) -> None:
        """As after 410: in any order, and with Pods missing that nobody said were gone."""
        if lost and self.pods:
            key = data.draw(st.sampled_from(sorted(self.pods)))
            del self.pods[key]
            gone = [key]
        else:
            gone = []
        for listed, tell in (
            (list(self.nodes.values()), lambda node: self.cluster.set_node(as_node(node))),
            (list(self.pods.values()), lambda pod: self.cluster.set_pod(as_pod(pod))),
        ):
            self.cluster.begin()
            for item in data.draw(st.permutations(listed)):
                tell(item)  # type: ignore[no-untyped-call]
            for key in gone:
                self.cluster.drop_pod(key)
            self.cluster.end()

    # --- holds

    @precondition(lambda self: self.cluster.pending)
    @rule(data=st.data())
    def a_place_is_held(self, data: st.DataObject) -> None:
        pending = data.draw(st.sampled_from(list(self.cluster.pending.values())))
        if isinstance(pending.claim, Claim):
            found = self.cluster.filter(pending.claim, [*NODES, "unknown"])
            assert len(found.fit) + len(found.codes) + len(found.unknown) == len(NODES) + 1
            ranks, best = self.cluster.rank(pending.claim, NODES)
            assert (best is None) == (not set(found.fit))
            assert best is None or (best.node in found.fit and 0 <= min(ranks) <= max(ranks) <= 5)
            if best is not None and pending.uid not in self.cluster.assumed:
                self.cluster.hold(pending.claim, best, self.now + 2.0)

    @rule(seconds=st.sampled_from([0.5, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.cluster.drop_late_holds(self.now)

    # --- what must hold

    @invariant()
    def a_pod_is_in_one_state(self) -> None:
        cluster = self.cluster
        assert not cluster.placed.keys() & (cluster.pending.keys() | cluster.assumed.keys() | cluster.held.keys())
        assert not cluster.assumed.keys() & cluster.held.keys()
        assert cluster.seen == {key: pod["metadata"]["uid"] for key, pod in self.pods.items()}
        there = set(cluster.seen.values())
        assert there >= cluster.placed.keys() | cluster.pending.keys() | cluster.assumed.keys() | cluster.held.keys()
        bookings = {booking.uid for booking in cluster.ledger}
        assert bookings >= cluster.placed.keys() | cluster.assumed.keys() | cluster.held.keys()
        assert there >= bookings
        assert not cluster._unnamed

    @invariant()
    def the_board_is_what_the_facts_make_it(self) -> None:
        if any(placed.doubt or self._by_its_node(placed) for placed in self.cluster.placed.values()):
            return  # guesses depend on who was there when they were made
        fresh = Cluster(self.cluster.policy)
        for name, cards in self.sick.items():
            fresh.set_unhealthy(unhealthy(name, cards))
        fresh.begin()
        for node in self.nodes.values():
            fresh.set_node(as_node(node))
        fresh.end()
        fresh.begin()
        for pod in self.pods.values():
            fresh.set_pod(as_pod(pod))
        fresh.end()
        for placed in self.cluster.assumed.values():
            fresh.ledger.confirm(placed.claim.uid, placed.grant.node, occupant_of(placed.claim, placed.grant))
        for uid in self.cluster.held:
            booking = self.cluster.ledger.get(uid)
            assert booking is not None
            fresh.ledger.confirm(uid, booking.node, booking.occupant)
        assert told(self.cluster.board) == told(fresh.board)
        for uid, placed in self.cluster.placed.items():
            here = placed.grant.node in self.nodes and placed.grant.node not in fresh.unusable
            assert placed == fresh.placed[uid] if here else uid in fresh.placed
        assert len(self.cluster.placed) == len(fresh.placed)
        assert self.cluster.unusable == fresh.unusable
        assert set(self.cluster.pending) == set(fresh.pending)

    def _by_its_node(self, placed: Placed) -> bool:
        """A whole node's Pod that no annotation tells of has the cards that its node had when it was last seen."""
        return placed.claim.whole_node and not self.pods[placed.claim.key]["metadata"].get("annotations", {}).get(GRANT)

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        for key in list(self.pods):
            cluster.drop_pod(key)
        left = (cluster.held, cluster.assumed, cluster.placed, cluster.pending, cluster.seen, cluster._unnamed)
        assert not any(left)
        assert len(cluster.ledger) == 0
        board = cluster.board
        for column in BOOKED:
            assert not getattr(board, column)[: board.rows].any()
        assert board.replicas == {}
        for name in NODES:
            cluster.drop_node(name)
        assert board.row_of == {}

    def _tell(self, pod: Json) -> None:
        self.pods[f"ns/{pod['metadata']['name']}"] = pod
        self.cluster.set_pod(as_pod(pod))

    def _some(self, data: st.DataObject) -> Json:
        pod: Json = self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
        return pod


TestEvents = Events.TestCase
TestEvents.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# --- the shortlist ---------------------------------------------------------------------------------------------------


def _many(shortlist: int, nodes: int = 40) -> tuple[Cluster, Claim, list[str]]:
    """A cluster of equal nodes, of which the last is a little fuller: with binpack, the best."""
    cluster = Cluster("binpack", shortlist=shortlist)
    names = [f"n{at}" for at in range(nodes)]
    for name in names:
        cluster.set_node(live_node(name))
    cluster.set_pod(live_pod("there", {MEM: "1"}, on=names[-1], annotations=ON_CARD_0))
    return cluster, claim_of(cluster, live_pod("p", {MEM: "1"})), names


def test_shortlist_answers_the_best_node_first() -> None:
    cluster, claim, names = _many(1)
    told = cluster.filter(claim, names)
    assert told.fit == [names[-1]]
    assert told.likely is not None
    assert told.likely.node == names[-1]
    assert not told.codes


def test_shortlist_grows_with_each_try() -> None:
    cluster, claim, names = _many(1)
    told = [cluster.filter(claim, names).fit for _ in range(3)]
    assert [len(batch) for batch in told] == [1, 16, 40]
    assert told[1] == sorted(told[1], key=names.index)
    assert names[-1] in told[1]


def test_shortlist_counts_tries_by_uid() -> None:
    cluster, claim, names = _many(1)
    cluster.filter(claim, names)
    other = claim_of(cluster, live_pod("q", {MEM: "1"}))
    assert len(cluster.filter(other, names).fit) == 1
    cluster.set_pod(live_pod("p", {MEM: "1"}))
    cluster.drop_pod("ns/p")
    assert len(cluster.filter(claim, names).fit) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_shortlist_limits_the_search_for_several_containers(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, seated = Cluster(policy, shortlist=1), 0
    names = [f"n{at}" for at in range(40)]
    for at, name in enumerate(names):
        cluster.set_node(live_node(name, *((8, 8) if at % 2 else (8,))))
    claim, seat = claim_of(cluster, as_pod(TWO_FIVES)), cluster.chooser.seat

    def counted(*args: Any) -> Any:
        nonlocal seated
        seated += 1
        return seat(*args)

    monkeypatch.setattr(cluster.chooser, "seat", counted)
    for few in (1, 16, 20):
        told = cluster.filter(claim, names)
        assert len(told.fit) == few
        assert set(told.fit) <= set(names[1::2])
        assert told.codes.keys() <= set(names[::2]), "only those that were looked at, and do not fit"
    assert seated <= 1 + 16 + 20 + 20 + 1  # each that is told, each that does not fit once, and the likely one


def test_filter_without_shortlist_answers_all_fitting_nodes() -> None:
    cluster, claim, names = _many(0)
    assert cluster.filter(claim, names).fit == names


def test_shortlist_does_not_count_a_try_without_fitting_nodes() -> None:
    cluster, claim, names = _many(1)
    assert cluster.filter(claim, ["unheard-of"]).fit == []
    assert cluster.filter(claim, names).fit == [names[-1]]
