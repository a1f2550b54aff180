"""Who would have to go for an important Pod."""

from __future__ import annotations

from itertools import combinations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.wire.extender import offered_victims, parse_preemption
from aliquot.services.scheduler.cluster import Cluster, Placed
from aliquot.services.scheduler.preemption.offered import victims
from aliquot.services.scheduler.preemption.tenants import best_plan, nodes_to_examine
from aliquot.services.scheduler.verbs import preemption_answer
from kit.clusters.watchobjects import a_cluster, assumed, claim_of, live_node, live_pod
from kit.values.manifests import MEM, T9K_NODE

IMPORTANT = 1000


def put(cluster: Cluster, name: str, gib: int, card: int, *, on: str = "n1", priority: int = 0) -> str:
    """A Pod of gpushare on that card; its uid."""
    annotations = {"ALIYUN_COM_GPU_MEM_IDX": str(card)}
    pod = live_pod(name, {MEM: gib}, on=on, annotations=annotations, priority=priority)
    cluster.set_pod(pod)
    return pod.metadata.uid


def chosen(cluster: Cluster, gib: int, offered: dict[str, list[str]]) -> dict[str, set[str]]:
    claim = claim_of(cluster, live_pod("important", {MEM: gib}))
    return {name: set(uids) for name, uids in victims(cluster, claim, IMPORTANT, offered).items()}


def test_kube_schedulers_choice_is_kept_where_it_frees_the_card() -> None:
    cluster = a_cluster(live_node("n1", 8), live_node("n2", 8))
    a, b = put(cluster, "a", 6, 0), put(cluster, "b", 6, 0, on="n2", priority=IMPORTANT)
    assert chosen(cluster, 4, {"n1": [a], "n2": [b]}) == {"n1": {a}, "n2": {b}}


def test_preemption_skips_a_node_where_no_card_is_freed() -> None:
    cluster = a_cluster(live_node("n1", 8, 8), live_node("n2", 8))
    a, _, b = put(cluster, "a", 4, 0), put(cluster, "x", 4, 0), put(cluster, "b", 4, 1)
    c = put(cluster, "c", 8, 0, on="n2")
    put(cluster, "y", 4, 1)
    assert chosen(cluster, 8, {"n1": [a, b], "n2": [c]}) == {"n2": {c}}


def test_preemption_chooses_pods_that_share_one_card() -> None:
    cluster = a_cluster(live_node("n1", 8, 8))
    a, b = put(cluster, "a", 4, 0), put(cluster, "b", 4, 0)
    c, d = put(cluster, "c", 4, 1), put(cluster, "d", 4, 1)
    assert chosen(cluster, 8, {"n1": [b, d]})["n1"] in ({a, b}, {c, d})


def test_preemption_evicts_the_least_important() -> None:
    cluster = a_cluster(live_node("n1", 8, 8))
    a, b = put(cluster, "a", 4, 0, priority=10), put(cluster, "b", 4, 0)
    c, d = put(cluster, "c", 4, 1), put(cluster, "d", 4, 1)
    assert chosen(cluster, 8, {"n1": [b, d]}) == {"n1": {c, d}}
    assert a not in chosen(cluster, 8, {"n1": [a, d]})["n1"]


def test_preemption_spares_pods_of_equal_priority() -> None:
    cluster = a_cluster(live_node("n1", 8))
    a, _ = put(cluster, "a", 4, 0), put(cluster, "b", 4, 0, priority=IMPORTANT)
    assert chosen(cluster, 8, {"n1": [a]}) == {}


def test_preemption_evicts_a_pod_without_card_only_by_kube_schedulers_choice() -> None:
    cluster = a_cluster(live_node("n1", 8, 8))
    plain, other = live_pod("plain", {"cpu": "4"}, on="n1"), live_pod("other", {"cpu": "4"}, on="n1")
    cluster.set_pod(plain)
    cluster.set_pod(other)
    a, b = put(cluster, "a", 4, 0), put(cluster, "b", 4, 0)
    put(cluster, "c", 6, 1, priority=IMPORTANT)
    assert chosen(cluster, 8, {"n1": [plain.metadata.uid, b]}) == {"n1": {plain.metadata.uid, a, b}}


def test_preemption_for_a_whole_node_spares_daemon_sets() -> None:
    cluster = a_cluster(live_node("n1", 8, 8))
    plain, daemon = live_pod("plain", {}, on="n1"), live_pod("daemon", {}, on="n1", owner="DaemonSet/d")
    cluster.set_pod(plain)
    cluster.set_pod(daemon)
    a, b = put(cluster, "a", 4, 0), put(cluster, "b", 4, 1)
    whole = claim_of(cluster, live_pod("whole", {T9K_NODE: 1}))
    found = victims(cluster, whole, IMPORTANT, {"n1": [a]})
    assert {name: set(uids) for name, uids in found.items()} == {"n1": {plain.metadata.uid, a, b}}


@pytest.mark.parametrize("held", [False, True], ids=["", "held before"])
def test_preemption_ignores_assumed_pods(held: bool) -> None:
    cluster = a_cluster(live_node("n1", 8))
    on_its_way = claim_of(cluster, live_pod("on-its-way", {MEM: 6}))
    if held:
        _, best = cluster.rank(on_its_way, ["n1"])
        assert best is not None
        cluster.hold(on_its_way, best, deadline=10.0)
    cluster.assume(on_its_way, "n1")
    assert list(cluster.assumed) == [on_its_way.uid]
    assert chosen(cluster, 4, {"n1": []}) == {}


def test_priorities_are_forgotten_with_their_pods() -> None:
    cluster = a_cluster(live_node("n1", 8))
    put(cluster, "a", 4, 0, priority=7)
    assert list(cluster.priorities.values()) == [7]
    cluster.drop_pod("ns/a")
    assert cluster.priorities == {}


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 2), st.integers(0, 3)), max_size=9),
    st.integers(1, 10),
    st.sets(st.integers(0, 8)),
)
def test_preemption_victims_are_enough_and_needed(
    pods: list[tuple[int, int, int]], gib: int, offered: set[int]
) -> None:
    cluster = a_cluster(live_node("n1", 8, 8, 8))
    uids = [
        put(cluster, f"p{at}", size, card, priority=IMPORTANT if rank == 3 else rank)
        for at, (size, card, rank) in enumerate(pods)
    ]
    chose = [uids[at] for at in offered if at < len(uids) and pods[at][2] < 3]
    claim = claim_of(cluster, live_pod("important", {MEM: gib}))
    before = cluster.board.room_memory.copy()
    found = victims(cluster, claim, IMPORTANT, {"n1": chose}).get("n1")
    assert np.array_equal(cluster.board.room_memory, before), "only looked at"
    lesser = [uid for uid, (_, _, rank) in zip(uids, pods, strict=True) if rank < 3]
    assert (found is not None) == cluster.fits_without(claim, "n1", lesser)
    if found is None or list(found) == chose:
        return
    assert set(found) <= set(lesser)
    assert cluster.fits_without(claim, "n1", found)
    for spared in found:
        assert not cluster.fits_without(claim, "n1", [uid for uid in found if uid != spared])


SOME = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 2)), max_size=7)


@given(st.tuples(SOME, SOME), st.integers(1, 8))
def test_preemption_takes_no_more_pods_than_needed(there: tuple[list[tuple[int, int]], ...], gib: int) -> None:
    """Of equal Pods the fewest, on any node that kube-scheduler offers: it adds up the node and spares the oldest."""
    nodes = ("n1", "n2")
    cluster = a_cluster(*(live_node(name, 8, 8, 8) for name in nodes))
    uids = {
        name: [put(cluster, f"{name}-{at}", size, card, on=name) for at, (size, card) in enumerate(pods)]
        for name, pods in zip(nodes, there, strict=True)
    }
    claim = claim_of(cluster, live_pod("important", {MEM: gib}))
    if any(cluster.fits_without(claim, name, []) for name in nodes):
        return
    sizes = {name: [size for size, _ in pods] for name, pods in zip(nodes, there, strict=True)}
    found = victims(cluster, claim, IMPORTANT, {name: _by_sum(24, uids[name], sizes[name], gib) for name in nodes})
    enough = [
        count
        for name in nodes
        for count in range(1, 8)
        if any(cluster.fits_without(claim, name, chosen) for chosen in combinations(uids[name], count))
    ]
    assert min(map(len, found.values()), default=0) == min(enough, default=0)


def _by_sum(whole: int, uids: list[str], sizes: list[int], gib: int) -> list[str]:
    """kube-scheduler's choice on a node: all go, and then each is spared whose room the sum does not need."""
    free, going = whole, []
    for uid, size in zip(uids, sizes, strict=True):
        if free - size >= gib:
            free -= size
        else:
            going.append(uid)
    return going


def test_burst_of_important_pods_evicts_one_pod_for_each_card() -> None:
    """A third of the cards have one Pod and the others eight: each of these cost nothing to kube-scheduler's sum."""
    nodes = [f"n{at}" for at in range(4)]
    cluster = a_cluster(*(live_node(name, *[8] * 6) for name in nodes))
    for name in nodes:
        for card in range(6):
            for part in range(1 if card % 3 == 0 else 8):
                put(cluster, f"{name}-{card}-{part}", 8 if card % 3 == 0 else 1, card, on=name)
    evicted: list[str] = []
    for number in range(8):
        claim = claim_of(cluster, live_pod(f"urgent-{number}", {MEM: 8}))
        offered = {name: [booking.uid for booking in cluster.ledger.on(name)][-8:] for name in nodes}
        found = victims(cluster, claim, IMPORTANT, offered)
        node = min(found, key=lambda name: len(found[name]))
        for uid in found[node]:
            cluster.drop_pod(f"ns/{uid.removeprefix('uid-')}")
        evicted += found[node]
        assert isinstance(cluster.assume(claim, node), Placed)
    assert len(evicted) == 8


def test_whole_victims_are_read_as_well_as_their_uids() -> None:
    pod = {"metadata": {"name": "p", "uid": "u"}}
    body = {"Pod": pod, "NodeNameToVictims": {"n1": {"Pods": [pod], "NumPDBViolations": 2}}}
    asked = parse_preemption(msgspec.json.encode(body))
    (only,) = offered_victims(asked)["n1"].Pods or []
    assert (only.UID, offered_victims(asked)["n1"].NumPDBViolations) == ("u", 2)
    assert preemption_answer(Cluster("binpack"), asked) == offered_victims(asked), "not ours: nothing to object"


def test_nodes_are_examined_by_their_least_important_pod_that_may_be_evicted() -> None:
    """Pods without cards are on every node, and are of priority 0."""
    names = [f"n{at}" for at in range(70)]
    cluster = a_cluster(*(live_node(name, 8) for name in names))
    for name in names:
        cluster.set_pod(live_pod(f"plain-{name}", {"cpu": "1"}, on=name))
        put(cluster, f"card-{name}", 8, 0, on=name, priority=0 if name == "n69" else 500)
    claim = claim_of(cluster, live_pod("important", {MEM: 8}))
    plan = best_plan(cluster, claim, IMPORTANT, names)
    assert plan is not None
    assert [victim.uid for victim in plan.victims] == ["uid-card-n69"]
    assert list(nodes_to_examine(cluster, claim, 500, names)) == ["n69"], "elsewhere nobody may be evicted"


def test_nodes_where_only_a_decision_of_ours_holds_cards_are_not_examined() -> None:
    cluster = a_cluster(live_node("n1", 8))
    assumed(cluster, live_pod("p", {MEM: 8}))
    claim = claim_of(cluster, live_pod("important", {MEM: 8}))
    assert nodes_to_examine(cluster, claim, IMPORTANT, ["n1"]) == {}
