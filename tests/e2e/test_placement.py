"""Which node and which cards a Pod gets: as its dialect says, on a real kube-scheduler."""

from __future__ import annotations

import time

from kit.values.manifests import COUNT, MEM, MIXED, QGPU_CORE, QGPU_MEMORY
from testbed import objects
from testbed.gpus import gpushare_node, gpushare_pod, inventory, offline_pod, online_pod, qgpu_node, unhealthy
from testbed.judges import holdings
from testbed.objects import container, pod
from testbed.programs.wired import Wired


def test_binpack_fills_a_card_before_the_next_and_a_node_before_the_next(cluster: Wired) -> None:
    cluster.create(gpushare_node("a", 8, 8), gpushare_node("b", 8, 8))
    places = cluster.placed(*(gpushare_pod(f"p{number}", 4) for number in range(8)))
    first, second = places[0][0], places[4][0]
    assert {first, second} == {"a", "b"}
    assert places == [(name, [card]) for name in (first, second) for card in (0, 0, 1, 1)]


def test_four_cards_of_3_gib_each_are_four_cards(cluster: Wired) -> None:
    """The gap that seed 004 states."""
    cluster.create(gpushare_node("three", 8, 8, 8), gpushare_node("eight", *[23] * 8))
    assert cluster.placed(gpushare_pod("p", 12, cards=4)) == [("eight", [0, 1, 2, 3])]
    assert [use["memory_mib"] for use in holdings.held(cluster.pod("p")).values()] == [3 * 1024] * 4
    annotations = cluster.pod("p")["metadata"]["annotations"]
    assert annotations["scheduler.framework.gpushare.allocation"] == '{"0":{"0":3,"1":3,"2":3,"3":3}}'
    assert annotations["ALIYUN_COM_GPU_MEM_POD"] == "12"


def test_the_two_gpu_containers_of_a_gpushare_pod_share_its_card(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8, 8))
    two = [container("one", {MEM: 3}), container("two", {MEM: 4})]
    cluster.placed(gpushare_pod("before", 2))
    assert cluster.placed(pod("p", containers=two)) == [("n", [1])], "7 GiB have room on the empty card only"
    assert holdings.granted(cluster.pod("p")) == {"one": [1], "two": [1]}


def test_the_two_gpu_containers_of_an_ordinary_qgpu_pod_each_have_a_card_that_fits(cluster: Wired) -> None:
    cluster.create(qgpu_node("n", 16, 16))
    big = {QGPU_MEMORY: 10, QGPU_CORE: 60}
    cluster.placed(pod("p", containers=[container("one", big), container("two", big)]))
    cards = holdings.granted(cluster.pod("p"))
    assert sorted([*cards["one"], *cards["two"]]) == [0, 1]


def test_an_init_container_and_those_after_it_take_the_same_room_one_after_the_other(cluster: Wired) -> None:
    """max(init, sum): 8 before 5 + 2 is 8, not 15."""
    cluster.create(gpushare_node("n", 8, 8))
    after = [container("one", {MEM: 5}), container("two", {MEM: 2})]
    # Kubernetes adds up the same way: kube-scheduler lets it in too.
    place = cluster.placed(pod("p", init=[container("before", {MEM: 8})], containers=after))
    assert place == [("n", [0])]
    assert holdings.held(cluster.pod("p"))[0]["memory_mib"] == 8 * 1024
    assert cluster.placed(gpushare_pod("q", 1)) == [("n", [1])], "what the init container needs is kept for it"


def test_a_sidecar_counts_for_as_long_as_the_pod_runs(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8, 8))
    sidecar = container("sidecar", {MEM: 3}, restartPolicy="Always")
    assert cluster.placed(pod("p", {MEM: 4}, init=[sidecar])) == [("n", [0])]
    assert holdings.held(cluster.pod("p"))[0]["memory_mib"] == 7 * 1024
    assert cluster.placed(gpushare_pod("q", 2), gpushare_pod("r", 1)) == [("n", [1]), ("n", [0])]


def test_unequal_cards_are_known_by_their_own_sizes(cluster: Wired) -> None:
    """Not by total / count, which would be two cards of 16."""
    cluster.create(gpushare_node("n", 8, 24))
    assert cluster.placed(gpushare_pod("large", 20), gpushare_pod("small", 8)) == [("n", [1]), ("n", [0])]


def test_a_card_too_small_for_the_pod_is_never_taken(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8, 8, 16))
    cluster.create(gpushare_pod("p", 17))
    cluster.waits(
        "p", "GPU memory: needs 17 GiB per card; no card is that large (aliquot:memory)", "Preemption is not helpful"
    )


def test_a_card_that_two_dialects_advertise_is_one_card(cluster: Wired) -> None:
    """kube-scheduler counts 16 GiB of each: 32 where there are 16."""
    amounts = {MEM: 16, COUNT: 2, QGPU_MEMORY: 16, QGPU_CORE: 200}
    cluster.create(objects.node("n", amounts, labels={**MIXED, "gpushare": "true"}))
    qgpu = {QGPU_MEMORY: 6, QGPU_CORE: 50}
    places = cluster.placed(gpushare_pod("a", 6), pod("b", qgpu))
    assert sorted(card for _, [card] in places) == [0, 1]
    cluster.create(pod("c", qgpu), gpushare_pod("d", 6))
    cluster.waits("c", "no card has that much free")
    cluster.waits("d", "no card has that much free")


def test_eighty_pods_at_once_fill_every_card_to_the_last_gib(cluster: Wired) -> None:
    cluster.create(*(gpushare_node(f"n{number}", 8, 8, 8, 8) for number in range(10)))
    pods = [gpushare_pod(f"p{number}", 4) for number in range(80)]
    began = time.monotonic()
    objects.create_many(cluster.plane, pods)
    bound = cluster.bound(*(f"p{number}" for number in range(len(pods))), seconds=60)
    print(f"{len(pods)} Pods in {time.monotonic() - began:.1f} s")
    assert set(bound.values()) == {f"n{number}" for number in range(10)}


# --- online and offline (seed 000) -----------------------------------------------------------------------------------


def test_online_pods_spread_and_prefer_cards_without_offline_ones(cluster: Wired) -> None:
    cluster.create(qgpu_node("n", 32, 32, 32, labels=MIXED))
    ((_, [offline]),) = cluster.placed(offline_pod("offline", 4))
    places = cluster.placed(*(online_pod(f"online-{number}", 12) for number in range(5)))
    cards = [card for _, [card] in places]
    assert offline not in cards[:4]
    assert sorted(cards[:2]) == sorted(cards[2:4]) == [card for card in range(3) if card != offline]
    assert cards[4] == offline, "the others have 8 GiB left: now it shares with the offline one"


def test_offline_pods_pack_and_prefer_cards_without_online_ones(cluster: Wired) -> None:
    cluster.create(qgpu_node("n", 32, 32, 32, labels=MIXED))
    ((_, [online]),) = cluster.placed(online_pod("online", 4))
    places = cluster.placed(*(offline_pod(f"offline-{number}", 8, 50) for number in range(5)))
    cards = [card for _, [card] in places]
    assert cards[0] == cards[1] != cards[2] == cards[3]
    assert online not in cards[:4]
    assert cards[4] == online, "each of the others gives its offline compute to two already"


def test_online_and_offline_pods_wait_for_a_node_that_mixes(cluster: Wired) -> None:
    cluster.create(qgpu_node("n", 32), online_pod("online", 4))
    cluster.waits("online", "does not mix online and offline Pods: requires label mixed-qgpu-enable=enable")
    cluster.label_node("n", {"mixed-qgpu-enable": "enable"})
    assert cluster.bound("online") == {"online": "n"}


def test_no_more_share_a_card_than_a_quarter_of_its_gib(cluster: Wired) -> None:
    """Seed 001."""
    cluster.create(qgpu_node("n", 8, 8))
    small = {QGPU_MEMORY: 1, QGPU_CORE: 5}
    assert cluster.placed(*(pod(f"p{number}", small) for number in range(4))) == [
        ("n", [card]) for card in (0, 0, 1, 1)
    ]
    cluster.create(pod("fifth", small))
    cluster.waits("fifth", "GPU sharing: every card has reached its limit (aliquot:slices)")


# --- cards that fall sick --------------------------------------------------------------------------------------------


def test_a_sick_card_keeps_its_pods_and_gets_no_new_ones_until_it_is_well(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8, 8, annotations=inventory(8, 8)))
    assert cluster.placed(gpushare_pod("before", 2)) == [("n", [0])]
    cluster.annotate_node("n", inventory(8, 8, sick=[0]))
    cluster.await_event("n", "SickCards")
    assert cluster.placed(gpushare_pod("during", 2)) == [("n", [1])]
    assert _used(cluster) == {0: 2048, 1: 2048}
    cluster.annotate_node("n", inventory(8, 8))
    cluster.await_event("n", "CardsHealthy")
    places = cluster.placed(gpushare_pod("after", 6), gpushare_pod("last", 6))
    assert sorted(card for _, [card] in places) == [0, 1]


def test_the_config_map_of_gpushare_takes_a_card_out_and_gives_it_back(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8, 8))
    assert cluster.placed(gpushare_pod("before", 2)) == [("n", [0])]
    cluster.create(unhealthy("n", "0"))
    cluster.await_event("n", "SickCards")
    assert cluster.placed(gpushare_pod("during", 2)) == [("n", [1])]
    assert _used(cluster) == {0: 2048, 1: 2048}
    cluster.plane.api("DELETE", "/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-n")
    cluster.create(gpushare_pod("after", 6))
    assert cluster.bound("after") == {"after": "n"}


def test_a_node_that_loses_a_card_counts_what_runs_there_and_takes_what_still_fits(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8, 8, annotations=inventory(8, 8)))
    cluster.placed(gpushare_pod("a", 6))
    assert cluster.placed(gpushare_pod("b", 6)) == [("n", [1])]
    cluster.annotate_node("n", inventory(8))
    cluster.create(gpushare_pod("c", 3))
    cluster.waits("c", "no card has that much free")
    assert cluster.placed(gpushare_pod("d", 2)) == [("n", [0])]
    cluster.annotate_node("n", inventory(8, 8, 8))
    objects.set_resources(cluster.plane, "n", {MEM: 24, COUNT: 3})
    assert cluster.bound("c") == {"c": "n"}
    assert cluster.cards("c") == [2], "on card 1 there are only 2 GiB beside b, which has been there all the time"


def _used(cluster: Wired) -> dict[int, int]:
    (only,) = cluster.status()["nodes"]
    return {card["index"]: card["used_memory_mib"] for card in only["cards"]}
