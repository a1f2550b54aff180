"""The devices that the kubelet gets for a node's cards: whichever it picks, its count of free ones is right."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.dialects import MemoryUnit, Rules, parse_node
from aliquot.dialects.wire.advertising import MOST_DEVICES, Advert, Token, adverts, counted_amount, tokens
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.model.refusal import Invalid
from kit.values.builders import a_node

QGPU = "tke.cloud.tencent.com/qgpu-"
T9K = "tensorstack.dev/nvidia-gpu"
GIB, MIB = Rules(gpushare_unit=MemoryUnit.GIB), Rules(gpushare_unit=MemoryUnit.MIB)


def advertised(node: Node, rules: Rules = GIB) -> tuple[Advert, ...]:
    found = adverts(node, rules)
    assert not isinstance(found, Invalid), found.sentence()
    return found


def totals(*offers: Offer, rules: Rules = GIB) -> dict[str, int]:
    """What a node of a 16 and a 24 GiB card with these offers advertises in all."""
    node = a_node("n1", 16, 24, offers=frozenset(offers))
    return {advert.resource: sum(advert.amounts.values()) for advert in advertised(node, rules)}


@pytest.mark.parametrize(
    ("offers", "amounts"),
    [
        ((), {}),
        ((Offer.QGPU,), {f"{QGPU}core": 200, f"{QGPU}memory": 40}),
        (
            (Offer.QGPU, Offer.QGPU_MIXED),
            {f"{QGPU}core": 200, f"{QGPU}memory": 40, f"{QGPU}core-greedy": 200},
        ),
        ((Offer.T9K_EXCLUSIVE,), {T9K: 2, f"{T9K}-node": 1}),
        ((Offer.T9K_SHARED,), {f"{T9K}-percent": 200}),
        ((Offer.GPUSHARE,), {"aliyun.com/gpu-mem": 40, "aliyun.com/gpu-count": 2}),
        ((Offer.HAMI,), {"nvidia.com/gpu": 200}),
        ((Offer.KAI,), {"aliquot.dev/card-place": 200}),
        (
            (Offer.QGPU, Offer.T9K_SHARED),
            {f"{QGPU}core": 200, f"{QGPU}memory": 40, f"{T9K}-percent": 200},
        ),
    ],
    ids=["nothing", "qGPU", "qGPU mixed", "xgn", "sgn", "gpushare", "HAMi", "KAI", "two dialects"],
)
def test_node_advertises_resources_of_its_offers(offers: tuple[Offer, ...], amounts: dict[str, int]) -> None:
    assert totals(*offers) == amounts


def test_a_node_without_cards_advertises_nothing() -> None:
    assert advertised(Node("n1", offers=frozenset(Offer))) == ()


def test_cards_add_their_own_amounts() -> None:
    (memory,) = (advert for advert in advertised(a_node("n1", 16, 24)) if advert.resource == f"{QGPU}memory")
    assert memory.amounts == {"n1-0": 16, "n1-1": 24}


def test_amounts_are_rounded_down_to_units() -> None:
    node = Node("n1", (Card(0, 32_510, "GPU-1"),), frozenset({Offer.QGPU, Offer.GPUSHARE}))
    amounts = {advert.resource: advert.amounts["GPU-1"] for advert in advertised(node)}
    assert (amounts[f"{QGPU}memory"], amounts["aliyun.com/gpu-mem"]) == (31, 31)


def test_more_mib_than_devices_are_counted_and_containers_have_places() -> None:
    node = a_node("n1", *[80] * 8, offers=frozenset({Offer.GPUSHARE}))
    memory, count, place = advertised(node, MIB)
    assert (memory.resource, memory.counted, sum(memory.amounts.values())) == ("aliyun.com/gpu-mem", True, 655_360)
    assert (count.resource, count.counted, sum(count.amounts.values())) == ("aliyun.com/gpu-count", False, 8)
    assert (place.resource, place.counted, sum(place.amounts.values())) == ("aliquot.dev/card-place", False, 8000)
    assert totals(Offer.GPUSHARE, rules=GIB) == {"aliyun.com/gpu-mem": 40, "aliyun.com/gpu-count": 2}


def test_only_amounts_above_the_maximum_number_of_devices_are_counted() -> None:
    offers = frozenset({Offer.GPUSHARE})
    for mib, counted in ((MOST_DEVICES, False), (MOST_DEVICES + 1, True)):
        memory, *others = advertised(Node("n1", (Card(0, mib, "GPU-1"),), offers), MIB)
        assert memory.counted is counted
        assert not any(advert.counted for advert in others)


@pytest.mark.parametrize("cards", [1, 8, 50, 51, 128])
def test_places_are_never_too_many_devices(cards: int) -> None:
    node = a_node("n1", *[80] * cards, offers=frozenset({Offer.GPUSHARE, Offer.KAI}))
    (place,) = (advert for advert in advertised(node, MIB) if advert.resource == "aliquot.dev/card-place")
    assert 100 * cards <= sum(place.amounts.values()) <= MOST_DEVICES


def test_too_many_devices_in_gib_are_refused() -> None:
    node = Node("n1", (Card(0, (MOST_DEVICES + 1) * 1024, "GPU-1"),), frozenset({Offer.GPUSHARE}))
    refused = adverts(node, GIB)
    assert isinstance(refused, Invalid)
    assert refused.sentence() == (
        'status.capacity["aliyun.com/gpu-mem"]: 50001 is not allowed: no more than 50000 devices of one resource, the'
        " most that the kubelet handles"
    )


counted_cards = st.lists(st.tuples(st.integers(1, 100_000), st.booleans(), st.integers(0, 100)), min_size=1, max_size=8)


@given(counted_cards)
def test_what_is_free_of_an_amount_is_what_the_cards_in_use_have_free(cards: list[tuple[int, bool, int]]) -> None:
    """kube-scheduler subtracts what Pods request, also on cards that are out of use."""
    node = Node("n1", tuple(Card(at, mib, f"GPU-{at}", healthy=well) for at, (mib, well, _) in enumerate(cards)))
    advert = Advert("aliyun.com/gpu-mem", {card.uuid: card.memory_mib for card in node.cards}, counted=True)
    held = {f"GPU-{at}": mib * percent // 100 for at, (mib, _, percent) in enumerate(cards)}
    free = counted_amount(advert, node.cards, held) - sum(held.values())
    assert free == sum(card.memory_mib - held[card.uuid] for card in node.cards if card.healthy)


def test_card_without_uuid_is_refused() -> None:
    refused = adverts(Node("n1", (Card(0, 1024),), frozenset({Offer.QGPU})), GIB)
    assert isinstance(refused, Invalid)
    assert "cards[0].uuid is missing" in refused.sentence()


LABELS = {
    Offer.QGPU: {"qgpu-device-enable": "enable"},
    Offer.QGPU_MIXED: {"mixed-qgpu-enable": "enable"},
    Offer.T9K_EXCLUSIVE: {
        "sched.tensorstack.dev/accelerator": "nvidia-gpu",
        "sched.tensorstack.dev/node-alloc-mode": "xgn",
    },
    Offer.T9K_SHARED: {
        "sched.tensorstack.dev/accelerator": "nvidia-gpu",
        "sched.tensorstack.dev/node-alloc-mode": "sgn",
    },
    Offer.GPUSHARE: {"gpushare": "true"},
}
offered = st.builds(
    lambda qgpu, t9k, share: frozenset({*qgpu, *t9k, *share}),
    st.sampled_from([(), (Offer.QGPU,), (Offer.QGPU, Offer.QGPU_MIXED)]),
    st.sampled_from([(), (Offer.T9K_EXCLUSIVE,), (Offer.T9K_SHARED,)]),
    st.sampled_from([(), (Offer.GPUSHARE,)]),
).filter(bool)


@given(offers=offered, cards=st.integers(1, 16), gib=st.integers(1, 288), rest=st.integers(0, 1023))
def test_advertised_amounts_parse_back_to_offers(offers: frozenset[Offer], cards: int, gib: int, rest: int) -> None:
    node = Node("n1", tuple(Card(j, gib * 1024 + rest, f"GPU-{j}") for j in range(cards)), offers)
    capacity = {advert.resource: sum(advert.amounts.values()) for advert in advertised(node)}
    labels = {key: value for offer in offers for key, value in LABELS[offer].items()}
    labels["aliquot.dev/mix-qgpu-and-whole-cards"] = "true"
    read = parse_node({"metadata": {"name": "n1", "labels": labels}, "status": {"capacity": capacity}}, GIB)
    assert isinstance(read, Node)
    assert read.offers == offers
    assert len(read.cards) == cards
    if offers - {Offer.T9K_EXCLUSIVE, Offer.T9K_SHARED}:  # T9k tells nothing of memory
        assert read.notes == ()
        assert {card.memory_mib for card in read.cards} == {gib * 1024}


# --- tokens ----------------------------------------------------------------------------------------------------------

A, B = Card(0, 16, "A"), Card(1, 16, "B")
SICK = replace(A, healthy=False)
FOUR_EACH = Advert("r", {"A": 4, "B": 4})


def healthy(found: Sequence[Token]) -> list[str]:
    return [token.id for token in found if token.healthy]


def test_tokens_are_named_after_the_cards_and_numbered() -> None:
    assert [token.id for token in tokens(Advert("r", {"A": 2, "B": 1}), (A, B), {})] == ["A-_-0", "A-_-1", "B-_-0"]


def test_device_ids_fit_kubelet_limit() -> None:
    uuid = "GPU-5106f000-51b6-4a11-9000-000000000000"  # as long as NVIDIA's are
    found = tokens(Advert("r", {uuid: MOST_DEVICES}), (Card(0, 1024, uuid),), {})
    assert max(len(token.id) for token in found) <= 63


def test_devices_are_healthy_while_all_cards_are() -> None:
    assert len(healthy(tokens(FOUR_EACH, (A, B), {"A-_-0": frozenset({"B"})}))) == 8


def test_unhealthy_free_card_marks_its_own_devices() -> None:
    assert healthy(tokens(FOUR_EACH, (SICK, B), {})) == ["B-_-0", "B-_-1", "B-_-2", "B-_-3"]


def test_devices_held_on_unhealthy_card_stay_healthy() -> None:
    held = {"B-_-0": frozenset({"A"}), "B-_-1": frozenset({"A"})}
    assert healthy(tokens(FOUR_EACH, (SICK, B), held)) == ["A-_-2", "A-_-3", "B-_-0", "B-_-1", "B-_-2", "B-_-3"]


def test_devices_held_on_healthy_card_stay_healthy() -> None:
    held = {"A-_-0": frozenset({"B"}), "A-_-1": frozenset({"B"})}
    assert healthy(tokens(FOUR_EACH, (SICK, B), held)) == ["A-_-0", "A-_-1", "B-_-2", "B-_-3"]


def test_missing_card_counts_as_unhealthy() -> None:
    assert healthy(tokens(FOUR_EACH, (B,), {})) == ["B-_-0", "B-_-1", "B-_-2", "B-_-3"]


def test_pod_on_two_cards_holds_devices_of_both() -> None:
    both = frozenset({"A", "B"})
    found = tokens(FOUR_EACH, (SICK, B), {f"A-_-{j}": both for j in range(4)})
    free = [name for name in healthy(found) if name.startswith("B")]
    assert free == ["B-_-2", "B-_-3"]  # two of its four are on the sick card, which has two more; two are on the other


def test_whole_node_device_needs_all_cards_healthy() -> None:
    node = Advert("r", {"node": 1}, whole=True)
    assert tokens(node, (A, B), {}) == (Token("node-_-0", True, None),)
    assert tokens(node, (SICK, B), {}) == (Token("node-_-0", False, None),)


@pytest.mark.parametrize(
    ("numas", "told_numa"), [((1, 1), 1), ((0, 1), None), ((None, 0), None)], ids=["one", "two", "not known"]
)
def test_numa_node_is_advertised_only_if_common(numas: tuple[int | None, int | None], told_numa: int | None) -> None:
    cards = (replace(A, numa=numas[0]), replace(B, numa=numas[1]))
    assert {token.numa for token in tokens(FOUR_EACH, cards, {})} == {told_numa}


@st.composite
def loads(draw: st.DrawFn) -> tuple[Advert, list[Card], dict[str, frozenset[str]], dict[str, int]]:
    """Cards, and Pods on them that hold any tokens at all; with what is used of each card."""
    amounts = {f"GPU-{j}": draw(st.integers(0, 12)) for j in range(draw(st.integers(1, 4)))}
    cards = [Card(j, 1024, uuid, healthy=draw(st.booleans())) for j, uuid in enumerate(amounts)]
    names = draw(st.permutations([f"{uuid}-_-{j}" for uuid, amount in amounts.items() for j in range(amount)]))
    used = dict.fromkeys(amounts, 0)
    held: dict[str, frozenset[str]] = {}
    for on in draw(st.lists(st.sets(st.sampled_from(sorted(amounts)), min_size=1), max_size=5)):
        amount_each = draw(st.integers(0, min(amounts[uuid] - used[uuid] for uuid in on)))
        for uuid in on:
            used[uuid] += amount_each
        for name in names[len(held) : len(held) + amount_each * len(on)]:
            held[name] = frozenset(on)
    return Advert("r", amounts), cards, held, used


@given(loads())
def test_free_devices_match_room_on_healthy_cards(
    load: tuple[Advert, list[Card], dict[str, frozenset[str]], dict[str, int]],
) -> None:
    advert, cards, held, used = load
    found = tokens(advert, cards, held)
    room = sum(advert.amounts[card.uuid] - used[card.uuid] for card in cards if card.healthy)
    free = [token for token in found if token.healthy and token.id not in held]
    assert len(free) == room
    assert len(healthy(found)) - len(held) == room  # kube-scheduler: allocatable less all that is requested


@given(loads())
def test_device_ids_are_stable_under_health_changes(
    load: tuple[Advert, list[Card], dict[str, frozenset[str]], dict[str, int]],
) -> None:
    advert, cards, held, _ = load
    found = tokens(advert, cards, held)
    assert len({token.id for token in found}) == sum(advert.amounts.values())
    assert all(token.healthy for token in found if token.id in held)
