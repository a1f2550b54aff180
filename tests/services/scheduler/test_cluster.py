"""The live cluster: whatever Pods and nodes are reported, in whatever order, each card is booked once."""

from __future__ import annotations

import pytest
from msgspec import structs

from aliquot.dialects import MemoryUnit, Rules, kai, native
from aliquot.dialects.rules import EVERY
from aliquot.dialects.wire.objects import Condition, HeldByContainer, PodObject, PodStatus, Resources
from aliquot.model.device import Card
from aliquot.model.node import Closed
from aliquot.model.refusal import Invalid, Reason
from aliquot.services.scheduler.cluster import Cluster, Placed
from kit.clusters.watchobjects import (
    ALL,
    a_cluster,
    as_node,
    as_pod,
    assumed,
    bound,
    bound_json,
    claim_of,
    free,
    inventory_json,
    live_node,
    live_pod,
    pod_json,
    unhealthy,
)
from kit.running.counting import steps
from kit.values.builders import GIB
from kit.values.manifests import (
    MEM,
    T9K_CARDS,
    T9K_NODE,
    Json,
)

ON_CARD_0 = {"ALIYUN_COM_GPU_MEM_IDX": "0"}


def test_node_with_agent_away_takes_no_new_pods_and_keeps_its_bookings() -> None:
    away = live_node()
    away.metadata.annotations = {**(away.metadata.annotations or {}), "aliquot.dev/agent": "away"}
    cluster = a_cluster(live_node())
    cluster.set_pod(live_pod(on="n1", annotations=ON_CARD_0))
    cluster.set_node(away)
    claim = claim_of(cluster, live_pod("q"))
    assert list(cluster.filter(claim, ["n1"]).fit) == []
    assert isinstance(cluster.assume(claim, "n1"), list), "nor one that was on its way"
    assert cluster.reported.closed == {"n1": (Closed.AGENT_AWAY,)}
    cluster.set_node(live_node())
    assert list(cluster.filter(claim, ["n1"]).fit) == ["n1"]
    assert (free(cluster), cluster.reported.closed) == (12, {})


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


def test_forged_grant_of_a_pod_that_asks_for_no_place_books_nothing() -> None:
    """KAI's annotations name no resource: without ours a Pod has no card, whatever its annotations say."""
    everything = Rules(served=frozenset(EVERY))
    cluster = Cluster("binpack", everything)
    cluster.set_node(live_node(labels=ALL | {kai.LABEL: "true"}))
    before = free(cluster)
    asked = pod_json("p", {native.PLACE: "1"}, annotations={kai.MEMORY: "4096"})
    claim = claim_of(cluster, as_pod(asked))
    grant = cluster.assume(claim, "n1")
    assert isinstance(grant, Placed)
    node = cluster.board.node("n1")
    assert node is not None
    real = bound_json(asked, claim, grant.grant, node, everything)
    cluster.unassume("uid-p")
    cluster.set_pod(as_pod(real))
    assert free(cluster) < before
    forged = pod_json("q", {}, on="n1", annotations=real["metadata"]["annotations"])
    alone = Cluster("binpack", Rules(served=frozenset({"qgpu", "gpushare"})))
    alone.set_node(live_node(labels=ALL))
    alone.set_pod(as_pod(forged))
    assert (free(alone), alone.placed) == (before, {})


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


@pytest.mark.parametrize("limits", [{"cpu": "1000"}, {"cpu": "1000", MEM: "1"}], ids=["not ours", "ours"])
def test_pod_that_asks_its_node_in_vain_for_more_cpu_keeps_no_other_off_it(limits: dict[str, str]) -> None:
    """`kubectl patch --subresource resize`: the spec then says what was asked for, for ever."""
    cluster = a_cluster(live_node(cpu="4"))
    asked = live_pod(limits={MEM: "1", "cpu": "2"})

    def resized(reason: str) -> PodObject:
        pending = Condition("PodResizePending", "True", reason)
        return structs.replace(live_pod("other", limits, on="n1"), status=PodStatus("Running", conditions=[pending]))

    cluster.set_pod(resized("Deferred"))
    assert isinstance(cluster.assume(claim_of(cluster, asked), "n1"), list), "it gets it as soon as others end"
    cluster.set_pod(resized("Infeasible"))
    assert isinstance(cluster.assume(claim_of(cluster, asked), "n1"), Placed)


@pytest.mark.parametrize(("has", "fits"), [("3", False), ("2", True)])
@pytest.mark.parametrize("limits", [{"cpu": "1000"}, {"cpu": "1000", MEM: "1"}], ids=["not ours", "ours"])
def test_pod_that_asks_its_node_in_vain_for_more_cpu_counts_with_what_it_has(
    limits: dict[str, str], has: str, fits: bool
) -> None:
    pending = Condition("PodResizePending", "True", "Infeasible")
    held = [HeldByContainer("main", Resources(requests={"cpu": has}))]
    cluster, asked = a_cluster(live_node(cpu="4")), live_pod(limits={MEM: "1", "cpu": "2"})
    status = PodStatus("Running", conditions=[pending], container_statuses=held)
    cluster.set_pod(structs.replace(live_pod("other", limits, on="n1"), status=status))
    assert isinstance(cluster.assume(claim_of(cluster, asked), "n1"), Placed) is fits


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
    # Every user may set labels: they make no Pod ours.
    labels = {"app.kubernetes.io/name": "aliquot", "app.kubernetes.io/component": "scheduler"}
    pod = pod_json("there", {"cpu": "1"}, on="n1", annotations=annotations, labels=labels)
    pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"] = namespace, account
    cluster.set_pod(as_pod(pod))
    placed = cluster.assume(claim_of(cluster, live_pod("all", {T9K_NODE: "1"})), "n1")
    assert isinstance(placed, Placed) == fits


# --- Pods without a grant --------------------------------------------------------------------------------------------


def test_pod_scheduled_past_us_is_guessed_with_doubt() -> None:
    cluster = a_cluster(live_node("n1", 8, 16))
    cluster.set_pod(live_pod(limits={MEM: "12"}, on="n1"))
    placed = cluster.placed["uid-p"]
    assert (sorted(placed.grant.usage()), placed.doubt) == ([1], "no annotation names its cards")
    assert free(cluster, card=1) == 4


def test_pod_scheduled_past_us_onto_full_cards_is_unseated_with_doubt() -> None:
    cluster = a_cluster(live_node("n1", 8))
    cluster.set_pod(live_pod(limits={MEM: "12"}, on="n1"))
    placed = cluster.placed["uid-p"]
    assert placed.grant.usage() == {}
    assert cluster.doubt(placed) == "no annotation names its cards, and no card of the node has room for it"
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
    assert cluster.placed["uid-p"].doubt == "no annotation names its cards"


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
    """The label of the node was broken when its Pods were read. The watch does not send the Pods again afterwards."""
    cluster = a_cluster(live_node("n1", labels={"sched.tensorstack.dev/node-alloc-mode": "typo"}))
    cluster.set_pod(live_pod(limits=limits, on="n1"))
    cluster.set_node(live_node("n1"))
    assert sorted(cluster.placed["uid-p"].grant.usage()) == [0]
    assert isinstance(cluster.assume(claim_of(cluster, live_pod("q", {MEM: "12"})), "n1"), list)


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_node_that_breaks_a_rule_is_unusable_until_corrected() -> None:
    cluster = a_cluster(live_node(), live_node("n1", labels={"sched.tensorstack.dev/node-alloc-mode": "typo"}))
    assert list(cluster.reported.unusable) == ["n1"]
    assert list(cluster.nodes()) == []
    cluster.set_node(live_node())
    assert cluster.reported.unusable == {}
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
    assert (cluster.reported.sick, free(cluster, card=1)) == ({}, 24)


def test_a_configmap_may_come_before_its_node() -> None:
    cluster = a_cluster()
    cluster.set_unhealthy(unhealthy("n1", "0"))
    cluster.set_node(live_node("n1", 16, 24))
    assert cluster.board.healthy[0].tolist() == [False, True]


def test_a_broken_configmap_is_reported_and_changes_nothing() -> None:
    cluster = a_cluster(live_node("n1", 16, 24))
    cluster.set_unhealthy(unhealthy("n1", "1"))
    wrong = cluster.set_unhealthy(unhealthy("n1", "one"))
    assert wrong is not None
    assert wrong.field == "data.gpus"
    assert cluster.reported.sick == {"n1": frozenset({1})}


@pytest.mark.parametrize("key", ["kube-system/other", "elsewhere/unhealthy-gpu-n1"])
def test_other_configmaps_are_ignored(key: str) -> None:
    cluster = a_cluster(live_node())
    cluster.set_unhealthy(unhealthy("n1", "0"))
    cluster.drop_unhealthy(key)
    assert cluster.reported.sick == {"n1": frozenset({0})}


def test_memory_unit_holds_for_pods_read_after_it_was_learned() -> None:
    cluster = a_cluster()
    assert not cluster.use_unit(MemoryUnit.GIB)
    assert cluster.use_unit(MemoryUnit.MIB)
    cluster.set_node(live_node("n1", labels={}, **{MEM: "16000"}))
    cluster.set_pod(live_pod(limits={MEM: "4000"}, on="n1", annotations=ON_CARD_0))
    assert cluster.board.used_memory[0, 0] == 4000


@pytest.mark.parametrize("on", ["", "n1"])
def test_pod_of_thousands_of_containers_holds_the_scheduler_up_for_no_long(on: str) -> None:
    """It asks for no card, so no webhook sees it, and its author may change it again and again."""
    pod = pod_json("p", {}, on=on)
    limits = {"limits": {"example.com/x": "1", "cpu": "1m"}}
    pod["spec"]["containers"] = [{"name": f"c{at}", "resources": limits} for at in range(14_000)]
    cluster, read = a_cluster(live_node("n1")), as_pod(pod)
    taken = steps(lambda: cluster.set_pod(read))
    assert taken < 300 * 14_000  # half as many, and 1,200 where each name was looked at for each dialect
    if on:
        occupant = cluster.ledger.get(read.metadata.uid)
        assert occupant is not None
        assert occupant.occupant.cpu_milli == 14_000
