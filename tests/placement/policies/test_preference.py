"""Pods that say themselves which cards they may have, and in which order nodes and cards are taken."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.dialects import Rules, parse_pod
from aliquot.model.claim import CardFilter, Claim, Preference, Usage
from aliquot.model.node import Order
from aliquot.model.reason import Reason
from aliquot.placement.board import Board, Occupant
from aliquot.placement.book import Booking, Ledger, occupant_of
from aliquot.placement.choose import POLICIES, Chooser
from kit.values import manifests
from kit.values.builders import GIB, a_board, a_node, asking

B, S = Order.BINPACK, Order.SPREAD
RULES = Rules(served=frozenset({"qgpu", "t9k", "gpushare", "hami", "kai"}))
GPU = "nvidia.com/gpu"


def chooser(board: Board, policy: str = "binpack") -> Chooser:
    return Chooser(board, POLICIES[policy]())


def cards_of(board: Board, claims: list[Claim], policy: str = "binpack") -> list[str]:
    """Where the claims go one after the other, as NODECARD."""
    found = []
    for claim in claims:
        grant = chooser(board, policy).choose(claim)
        assert grant is not None
        board.take(grant.node, occupant_of(claim, grant))
        found += [f"{grant.node}{share.card}" for item in grant.containers for share in item.shares]
    return found


@pytest.mark.parametrize("owner", [None, "Deployment/ns/web"])  # replicas are not kept apart
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("nodes", "cards", "expected"),
    [
        (B, B, ["a0", "a0", "a0"]),
        (B, S, ["a0", "a1", "a0"]),
        (S, B, ["a0", "b0", "a0"]),
        (S, S, ["a0", "b0", "a1"]),
    ],
)
def test_preference_orders_nodes_before_cards_under_every_policy(
    policy: str, owner: str | None, nodes: Order, cards: Order, expected: list[str]
) -> None:
    board = a_board(a_node("a", 16, 16), a_node("b", 16, 16))
    claims = [asking(4, name=f"p{at}", preference=Preference(nodes, cards), owner=owner) for at in range(3)]
    assert cards_of(board, claims, policy) == expected


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("order", "expected"), [(B, ["a0", "a0", "a0"]), (S, ["a0", "a1", "a0"])])
def test_cards_of_a_node_are_taken_in_its_owners_order_under_every_policy(
    policy: str, order: Order, expected: list[str]
) -> None:
    board = a_board(replace(a_node("a", 16, 16), card_order=order))
    claims = [asking(4, name=f"p{at}") for at in range(3)]
    assert cards_of(board, claims, policy) == expected


@pytest.mark.parametrize(("cards", "place"), [(B, "b0"), (S, "b1")])
@pytest.mark.parametrize("nodes", [B, S])
def test_of_nodes_that_are_alike_the_one_with_the_preferred_card_is_taken(
    nodes: Order, cards: Order, place: str
) -> None:
    board = a_board(a_node("a", 16, 16), a_node("b", 16, 16))
    for node, slots in (("a", (0, 1)), ("b", (0, 0))):
        for slot in slots:
            board.take(node, Occupant({slot: Usage(4 * GIB, slices=1)}))
    assert cards_of(board, [asking(4, preference=Preference(nodes, cards))]) == [place]


def models_board() -> Board:
    one, two = a_node("a", 16, 16), a_node("b", 16, 16)
    kinds = {"a": "NVIDIA A100", "b": "Tesla V100"}
    return a_board(
        *(
            replace(node, cards=tuple(replace(card, model=kinds[node.name]) for card in node.cards))
            for node in (one, two)
        )
    )


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        (CardFilter(models=("V100",)), ["b0", "b0"]),
        (CardFilter(not_models=("A100",)), ["b0", "b0"]),
        (CardFilter(uuids=("a-1",)), ["a1", "a1"]),
        (CardFilter(not_uuids=("a-0", "b-0", "b-1")), ["a1", "a1"]),
        (CardFilter(models=("A100",), not_uuids=("a-0",)), ["a1", "a1"]),
    ],
)
def test_only_cards_that_the_pod_may_have_are_taken(cards: CardFilter, expected: list[str]) -> None:
    assert cards_of(models_board(), [asking(4, name=name, cards=cards) for name in ("p", "q")]) == expected


@pytest.mark.parametrize(
    ("limits", "marks"),
    [
        ({manifests.QGPU_MEMORY: 4}, {}),
        ({manifests.T9K_PERCENT: 10}, {}),
        ({manifests.T9K_CARDS: 1}, {}),
        ({manifests.MEM: 4}, {}),
        ({manifests.COUNT: 1}, {}),
        ({GPU: 1}, {}),
        ({}, {"gpu-fraction": "0.1"}),
    ],
)
def test_pod_of_any_dialect_chooses_the_model_of_its_cards(limits: dict[str, Any], marks: dict[str, str]) -> None:
    pod = manifests.asking(limits, annotations={"aliquot.dev/card-models": "v100, T4", **marks})
    claim = parse_pod(pod, RULES)
    assert isinstance(claim, Claim), claim
    assert cards_of(models_board(), [claim]) == ["b0"]


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ({"aliquot.dev/card-models": " ,"}, "parts of the names of card models"),
        ({"aliquot.dev/card-model": "A100"}, "did you mean aliquot.dev/card-models?"),
        (
            {"aliquot.dev/card-models": "A100", "nvidia.com/use-gputype": "A100"},
            "either this or nvidia.com/use-gputype",
        ),
    ],
)
def test_models_that_cannot_be_read_are_refused(marks: dict[str, str], said: str) -> None:
    found = parse_pod(manifests.asking({GPU: 1}, annotations=marks), RULES)
    assert isinstance(found, tuple)
    assert said in found[0].sentence()


def test_cards_that_the_pod_may_not_have_are_refused_as_such() -> None:
    found = chooser(models_board()).refusals(asking(4, cards=CardFilter(uuids=("a-1",))))
    assert {(refusal.node, refusal.card, refusal.reason) for refusal in found} == {
        ("b", 0, Reason.MODEL),
        ("b", 1, Reason.MODEL),
    }


def test_a_filter_follows_a_card_whose_uuid_changes() -> None:
    board = models_board()
    found = chooser(board)
    claim = asking(4, cards=CardFilter(uuids=("new",)))
    assert found.choose(claim) is None
    node = board.node("b")
    assert node is not None
    board.set_node(replace(node, cards=(replace(node.cards[0], uuid="new"), *node.cards[1:])))
    grant = found.choose(claim)
    assert grant is not None
    assert grant.node == "b"


# All dialects on the same cards.

few, percent = st.integers(1, 2), st.integers(1, 100)
amounts = st.one_of(
    st.fixed_dictionaries({manifests.QGPU_MEMORY: st.integers(1, 9), manifests.QGPU_CORE: percent}),
    st.fixed_dictionaries({manifests.T9K_CARDS: few}),
    st.fixed_dictionaries({manifests.T9K_PERCENT: percent}),
    st.fixed_dictionaries({manifests.MEM: st.integers(1, 16)}),
    st.fixed_dictionaries({manifests.MEM: st.integers(1, 16), "aliyun.com/gpu-core.percentage": percent}),
    st.fixed_dictionaries({manifests.COUNT: few}),
    st.fixed_dictionaries({GPU: few, "nvidia.com/gpumem": st.integers(1, 16384)}),
    st.fixed_dictionaries({GPU: few, "nvidia.com/gpumem-percentage": percent, "nvidia.com/gpucores": percent}),
    st.fixed_dictionaries({GPU: few}),
)


fractions = st.one_of(
    st.fixed_dictionaries({"gpu-fraction": st.integers(1000, 99_999).map("{}e-5".format)}),
    st.fixed_dictionaries({"gpu-memory": st.integers(1, 16384).map(str)}),
    st.fixed_dictionaries({"gpu-fraction": st.just("0.5"), "gpu-fraction-num-devices": few.map(str)}),
)
every_pod: st.SearchStrategy[tuple[list[dict[str, Any]], dict[str, str]]] = st.one_of(
    st.tuples(st.lists(amounts, min_size=1, max_size=2), st.just({})), st.tuples(st.just([{}]), fractions)
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(every_pod, min_size=1, max_size=12), st.sampled_from(sorted(POLICIES)))
def test_no_card_is_booked_twice_by_pods_of_all_dialects(
    pods: list[tuple[list[dict[str, Any]], dict[str, str]]], policy: str
) -> None:
    board = a_board(a_node("a", 16, 15, 24))
    found = chooser(board, policy)
    on_card: dict[int, list[tuple[int, int, bool]]] = {}
    for at, (limits, marks) in enumerate(pods):
        containers = [manifests.a_container(f"c{place}", wanted) for place, wanted in enumerate(limits)]
        claim = parse_pod(manifests.a_pod(f"p{at}", *containers, annotations=marks), RULES)
        grant = found.choose(claim) if isinstance(claim, Claim) else None
        if grant is None:
            continue
        assert isinstance(claim, Claim)
        board.take("a", occupant_of(claim, grant))
        for card, use in grant.usage().items():
            on_card.setdefault(card, []).append((use.memory_mib, use.core_milli, bool(use.exclusive)))
        if claim.dialect in ("hami", "kai"):  # the MiB that were asked for, on as many different cards
            for asked, given_ in zip(claim.containers, grant.containers, strict=True):
                assert len({share.card for share in given_.shares}) == asked.count
                for share in given_.shares:
                    size = board.nodes[0].cards[share.card].memory_mib if board.nodes[0] else 0
                    wanted_mib = asked.slice.memory_on(size)
                    assert share.memory_mib == wanted_mib
    for card, uses in on_card.items():
        assert sum(memory for memory, _, _ in uses) <= (16, 15, 24)[card] * 1024
        assert sum(core for _, core, _ in uses) <= 1000
        assert len(uses) == 1 or not any(exclusive for _, _, exclusive in uses)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_sixteen_halves_at_once_fill_eight_cards_and_overbook_none(policy: str) -> None:
    """KAI issue 2153 reports three and four such Pods on one card. All are chosen before any is confirmed."""
    order = random.Random(5)
    for _ in range(100):
        board = a_board(a_node("a", 16, 16, 16, 16), a_node("b", 16, 16, 16, 16))
        ledger, found = Ledger(board), chooser(board, policy)
        half = {"gpu-fraction": "0.5"}
        pods = [manifests.a_pod(f"p{at}", manifests.a_container(), annotations=half) for at in range(17)]
        claims = [claim for pod in pods if isinstance(claim := parse_pod(pod, RULES), Claim)]
        grants = []
        for claim in claims:
            grant = found.choose(claim)
            if grant is not None:
                assert isinstance(ledger.assume(claim, grant, 60.0), Booking)
                grants.append((claim, grant))
        order.shuffle(grants)
        for claim, grant in grants:  # binds are answered in any order
            ledger.confirm(claim.uid, grant.node, occupant_of(claim, grant))
        cards = Counter((grant.node, share.card) for _, grant in grants for share in grant.containers[0].shares)
        assert set(cards.values()) == {2}
        assert len(cards) == 8
