"""Spread, and the rule for online Pods: no second Pod on a card while another card with room has none."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.model.claim import Claim
from aliquot.model.node import Node
from aliquot.placement.book import Booking, Ledger
from aliquot.placement.choose import POLICIES, Chooser
from kit.values.builders import a_board, a_node, asking, offline, online

Place = tuple[str, int]


def _places(nodes: list[Node], policy: str, claims: list[Claim]) -> list[Place]:
    """Where each goes, one after the other."""
    board = a_board(*nodes)
    ledger, chooser = Ledger(board), Chooser(board, POLICIES[policy]())
    places = []
    for claim in claims:
        grant = chooser.choose(claim)
        assert grant is not None, claim.name
        assert isinstance(ledger.assume(claim, grant, 1.0), Booking)
        places.append((grant.node, grant.containers[0].shares[0].card))
    return places


def _replicas(count: int, gib: int, app_class: str = "normal", owner: str | None = "Deployment/ns/web") -> list[Claim]:
    make = online if app_class == "online" else asking
    return [replace(make(gib, name=f"web-{at}"), owner=owner) for at in range(count)]


@pytest.mark.parametrize("owner", [None, "Deployment/ns/web"])
def test_spread_of_six_pods_on_a_node_with_one_card_and_a_node_with_two(owner: str | None) -> None:
    places = _places([a_node("a", 8), a_node("b", 8, 8)], "spread", _replicas(6, 3, owner=owner))
    assert set(places[:3]) == {("a", 0), ("b", 0), ("b", 1)}
    assert set(places[3:]) == {("a", 0), ("b", 0), ("b", 1)}


@pytest.mark.parametrize("policy", POLICIES)
def test_six_online_replicas_on_a_node_with_one_card_and_a_node_with_four(policy: str) -> None:
    places = _places([a_node("a", 32), a_node("b", 32, 32, 32, 32)], policy, _replicas(6, 3, "online"))
    assert len(set(places[:5])) == 5
    assert places[0][0] != places[1][0], "then over nodes"


def test_online_replicas_share_a_card_with_an_offline_pod_before_they_share_one_with_each_other() -> None:
    nodes = [a_node("a", 32), a_node("b", 32)]
    claims = [offline(2, 50), *_replicas(2, 3, "online")]
    assert _places(nodes, "binpack", claims) == [("a", 0), ("b", 0), ("a", 0)]


@pytest.mark.parametrize(("policy", "app_class"), [("spread", "normal"), *((policy, "online") for policy in POLICIES)])
def test_replicas_go_to_the_node_with_fewest_of_them_where_cards_are_alike(policy: str, app_class: str) -> None:
    """Each node has a Pod on its first card: of the same owner on the first node."""
    [first, second], [other] = _replicas(2, 3, app_class), _replicas(1, 3, app_class, "other")
    claims = [first, replace(other, uid="other"), second]
    assert _places([a_node("a", 8, 8), a_node("b", 8, 8)], policy, claims) == [("a", 0), ("b", 0), ("b", 1)]


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "spread"])
def test_other_policies_do_not_keep_replicas_of_ordinary_pods_apart(policy: str) -> None:
    assert _places([a_node("a", 8), a_node("b", 8)], policy, _replicas(2, 3)) == [("a", 0), ("a", 0)]


def test_spread_takes_the_node_with_fewest_pods_per_card_when_no_card_is_empty() -> None:
    nodes = [a_node("a", 32, 32), a_node("b", 32)]
    claims = [asking(1, name=f"p{at}") for at in range(6)]
    assert Counter(node for node, _ in _places(nodes, "spread", claims)) == {"a": 4, "b": 2}


_SIZES = st.lists(st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=4), min_size=1, max_size=4)
_PODS = st.lists(st.tuples(st.integers(1, 12), st.sampled_from([None, "x", "y"])), max_size=16)


@pytest.mark.parametrize("app_class", ["normal", "online"])
@given(sizes=_SIZES, pods=_PODS, leaving=st.data())
def test_no_second_pod_and_no_second_replica_on_a_card_while_another_with_room_has_none(
    app_class: str, sizes: list[list[int]], pods: list[tuple[int, str | None]], leaving: st.DataObject
) -> None:
    board = a_board(*(a_node(f"n{at}", *cards) for at, cards in enumerate(sizes)))
    ledger, chooser = Ledger(board), Chooser(board, POLICIES["spread"]())
    left = {(f"n{at}", slot): size for at, cards in enumerate(sizes) for slot, size in enumerate(cards)}
    there: dict[str, tuple[Place, int, str | None]] = {}
    for at, (gib, owner) in enumerate(pods):
        [claim] = _replicas(1, gib, app_class, owner)
        claim = replace(claim, uid=f"p{at}")
        grant = chooser.choose(claim)
        room = {place for place, free in left.items() if free >= gib}
        assert (grant is None) == (not room)
        if grant is None:
            continue
        ledger.assume(claim, grant, 1.0)
        place = (grant.node, grant.containers[0].shares[0].card)
        taken = {other for other, _, _ in there.values()}
        shared = {other for other, _, whose in there.values() if owner is not None and whose == owner}
        assert place not in taken or room <= taken, "an empty card had room"
        assert place not in shared or room <= shared, "a card without a replica had room"
        there[claim.uid] = (place, gib, owner)
        left[place] -= gib
        if there and leaving.draw(st.integers(0, 3)) == 0:
            gone = leaving.draw(st.sampled_from(sorted(there)))
            place, gib, _ = there.pop(gone)
            left[place] += gib
            ledger.forget(gone)
