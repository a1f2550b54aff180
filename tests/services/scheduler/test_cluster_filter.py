"""The live cluster decides: which nodes fit, what is held and assumed, and how many nodes it offers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from aliquot.dialects.wire.objects import PodObject
from aliquot.model.claim import Claim, Preference
from aliquot.model.device import Card
from aliquot.model.node import Order
from aliquot.model.refusal import Reason
from aliquot.placement.choose import POLICIES
from aliquot.placement.verdicts import verdict_of
from aliquot.services.scheduler.candidates import Filtered
from aliquot.services.scheduler.cluster import Cluster, Placed
from kit.clusters.watchobjects import (
    a_cluster,
    as_node,
    as_pod,
    assumed,
    claim_of,
    free,
    inventory_json,
    live_node,
    live_pod,
    pod_json,
    unhealthy,
)
from kit.values.builders import GIB
from kit.values.manifests import (
    MEM,
    QGPU_MEMORY,
    T9K_NODE,
    Json,
    a_container,
)

ON_CARD_0 = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
TWO_FIVES = pod_json("two")
TWO_FIVES["spec"]["containers"] = [a_container("a", {QGPU_MEMORY: "5"}), a_container("b", {QGPU_MEMORY: "5"})]


def test_filter_answers_fit_reason_or_unknown_for_each_node() -> None:
    cluster = a_cluster(live_node("fits"), live_node("small", 2), live_node("gone"))
    cluster.set_pod(live_pod("q", on="gone", annotations=ON_CARD_0))
    cluster.drop_node("gone")
    claim, names = claim_of(cluster, live_pod()), ["small", "fits", "never-heard-of", "gone"]
    assert cluster.filter(claim, names) == Filtered(["fits"], {}, (), cluster.chooser.choose(claim)), (
        "nobody reads more"
    )
    found = cluster.filter(claim, names)
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
    for again in range(3):
        found = cluster.filter(claim_of(cluster, as_pod(TWO_FIVES)), ["n1", "n2"])
        assert list(found.fit) == ["n2"] or (not again and set(found.fit) == {"n1", "n2"})
        assert not again or verdict_of(found.codes["n1"]) == (Reason.CONTAINERS, False)


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
    answer = cluster.filter(claim, names)
    assert answer.fit == [names[-1]]
    assert answer.likely is not None
    assert answer.likely.node == names[-1]
    assert not answer.codes


def test_shortlist_grows_with_each_try() -> None:
    cluster, claim, names = _many(1)
    answer = [cluster.filter(claim, names).fit for _ in range(3)]
    assert [len(batch) for batch in answer] == [1, 16, 40]
    assert answer[1] == sorted(answer[1], key=names.index)
    assert names[-1] in answer[1]


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
        answer = cluster.filter(claim, names)
        assert len(answer.fit) == few
        assert set(answer.fit) <= set(names[1::2])
        assert answer.codes.keys() <= set(names[::2]), "only those that were looked at, and do not fit"
    assert seated <= 1 + 16 + 20 + 20 + 1  # each that is told, each that does not fit once, and the likely one


def test_filter_without_shortlist_answers_all_fitting_nodes() -> None:
    cluster, claim, names = _many(0)
    assert cluster.filter(claim, names).fit == names


def test_pod_that_asks_for_an_order_of_nodes_gets_the_first_of_them() -> None:
    """kube-scheduler would spread its replicas."""
    cluster, claim, names = _many(0)
    asking = structs.replace(claim, preference=Preference(Order.BINPACK, Order.BINPACK))
    assert cluster.filter(asking, names).fit == [names[-1]]


def test_shortlist_does_not_count_a_try_without_fitting_nodes() -> None:
    cluster, claim, names = _many(1)
    assert cluster.filter(claim, ["unheard-of"]).fit == []
    assert cluster.filter(claim, names).fit == [names[-1]]
