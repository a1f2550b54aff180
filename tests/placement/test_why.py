"""Why a decision took its cards: the rules that are named are those that decided."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.choice import Choice, Rule
from aliquot.model.claim import AppClass, Claim, Slice, Usage
from aliquot.model.device import Card
from aliquot.model.grant import Grant
from aliquot.model.node import Node, Offer
from aliquot.placement.board import Board, Occupant
from aliquot.placement.book import Ledger
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.placement.demand import demand_of
from aliquot.placement.fit import fits
from aliquot.placement.policies.ranking import packed_keys, spread_keys
from aliquot.wording.placement import why_there
from kit.values.builders import GIB, a_claim, a_container, a_node, a_slice, whole_node


def a_pod(name: str, gib: int = 4, app_class: AppClass = AppClass.NORMAL, owner: str | None = None) -> Claim:
    greedy = 30 if app_class is AppClass.OFFLINE else None
    part = a_container(a_slice(gib, None, greedy))
    offer = Offer.QGPU if app_class is AppClass.NORMAL else Offer.QGPU_MIXED
    return a_claim(part, name=name, app_class=app_class, offer=offer, owner=owner)


class Box:
    """Nodes, filled one Pod after the other."""

    def __init__(self, *nodes: tuple[int, ...], policy: str = "binpack") -> None:
        self.board = Board()
        for at, cards in enumerate(nodes):
            self.board.set_node(a_node(f"n{at}", *cards, cpu_milli=16_000, memory_mib=64 * GIB))
        self.ledger, self.chooser = Ledger(self.board), Chooser(self.board, POLICIES[policy]())

    def put(self, claim: Claim) -> tuple[Grant, Choice]:
        grant = self.chooser.choose(claim)
        assert grant is not None
        choice = self.chooser.why(claim, grant)
        assert not isinstance(self.ledger.assume(claim, grant, float("inf")), list)
        return grant, choice


ONLINE, OFFLINE = AppClass.ONLINE, AppClass.OFFLINE


def test_the_first_pod_takes_the_first_of_equal_cards() -> None:
    grant, choice = Box((24, 24)).put(a_pod("a"))
    assert choice == Choice((), 2)
    assert why_there(grant, choice) == "card 0 of n0: the first of 2 cards that are alike"


def test_binpack_takes_the_card_with_least_free() -> None:
    box = Box((24, 24))
    box.put(a_pod("a"))
    grant, choice = box.put(a_pod("b"))
    assert choice == Choice((Rule.LEAST_FREE,), 2)
    assert why_there(grant, choice) == (
        "card 0 of n0, of 2 with room: least free, so that the others stay free for larger Pods"
    )


def test_the_only_card_with_room_is_called_so() -> None:
    box = Box((24, 24))
    box.put(a_pod("a", 20))
    grant, choice = box.put(a_pod("b", 20))
    assert why_there(grant, choice) == "card 1 of n0: the only one with room"


def test_an_online_pod_avoids_offline_pods_and_takes_an_empty_card() -> None:
    box = Box((24, 24, 24))
    box.put(a_pod("off", 4, OFFLINE))
    box.put(a_pod("on", 4, ONLINE))
    grant, choice = box.put(a_pod("next", 4, ONLINE))
    assert choice.rules == (Rule.NO_OFFLINE, Rule.EMPTY)
    assert why_there(grant, choice) == "card 2 of n0, of 3 with room: no offline Pod, then no other Pod"


def test_an_online_pod_takes_the_card_with_most_free_also_beside_one_without_compute() -> None:
    box = Box((24, 24), policy="spread")
    for slot, core in ((0, 1000), (1, 500)):
        box.board.take("n0", Occupant({slot: Usage(core_milli=core, slices=1)}))
    grant, choice = box.put(a_pod("on", 4, ONLINE))
    assert (grant.containers[0].shares[0].card, choice) == (1, Choice((Rule.MOST_FREE,), 2))


@pytest.mark.parametrize("largest", [2047, 2048, 4096])  # 2 TiB and more
def test_spread_takes_the_card_with_most_free_however_large_it_is(largest: int) -> None:
    assert Box((24, largest), policy="spread").put(a_pod("a"))[1] == Choice((Rule.MOST_FREE,), 2)


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_cards_that_are_not_healthy_are_no_reason(policy: str) -> None:
    box = Box((24,), policy=policy)
    box.board.set_node(Node("sick", (Card(0, 24 * GIB, healthy=False),), frozenset(Offer)))
    box.put(a_pod("a"))
    box.board.set_node(a_node("n1", 24))
    wanted = Rule.FULLEST_NODE if policy == "binpack" else Rule.EMPTY
    assert box.put(a_pod("b"))[1].rules[0] is wanted


def test_an_offline_pod_avoids_online_pods() -> None:
    box = Box((24, 24))
    box.put(a_pod("on", 4, ONLINE))
    assert box.put(a_pod("off", 4, OFFLINE))[1].rules == (Rule.NO_ONLINE,)


def test_replicas_are_kept_apart() -> None:
    box = Box((24,), (24,), policy="spread")
    box.put(a_pod("a", owner="web"))
    assert box.put(a_pod("b", owner="web"))[1].rules == (Rule.FEWEST_REPLICAS,)


def test_binpack_takes_the_fullest_node() -> None:
    box = Box((24, 24), (24,))
    box.put(a_pod("a", 8))
    box.put(a_pod("b", 4))
    choice = box.put(a_pod("c", 4))[1]
    assert choice.rules[0] is Rule.FULLEST_NODE


@pytest.mark.parametrize("policy", ["fgd", "dense"])
def test_the_packing_policies_name_themselves(policy: str) -> None:
    box = Box((24, 24), policy=policy)
    box.put(a_pod("a"))
    assert box.put(a_pod("b"))[1].rules == (Rule.LEAST_SPOILED,)


def test_a_whole_node_is_the_smallest_that_is_free() -> None:
    box = Box((24, 24), (24,))
    claim = a_claim(
        a_container(Slice(memory_percent=100, exclusive=True), None), offer=Offer.T9K_EXCLUSIVE, whole_node=True
    )
    grant, choice = box.put(claim)
    assert why_there(grant, choice) == "n1 had no other tenant, the smallest such node"


def test_a_whole_node_that_is_the_only_one_needs_no_reason() -> None:
    assert Box((24, 24)).put(whole_node())[1] == Choice((), 1)


_classes = st.sampled_from([AppClass.NORMAL, ONLINE, OFFLINE])


@pytest.mark.parametrize("policy", ["binpack", "spread"])
@given(
    sizes=st.lists(st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3),
    pods=st.lists(st.tuples(st.integers(1, 8), _classes, st.sampled_from([None, "a"])), min_size=1, max_size=12),
)
def test_no_other_card_comes_before_the_chosen_one_by_the_keys_that_explain_it(
    policy: str, sizes: list[tuple[int, ...]], pods: list[tuple[int, AppClass, str | None]]
) -> None:
    box = Box(*sizes, policy=policy)
    for at, (gib, app_class, owner) in enumerate(pods):
        claim = a_pod(f"p{at}", gib, app_class, owner)
        grant, demand, rows = box.chooser.choose(claim), demand_of(claim), np.arange(box.board.rows)
        if grant is None:
            continue
        places = box.chooser._replicas(claim, demand)
        replicas = box.chooser._counted(places, rows) if places else None
        order = spread_keys if box.chooser.policy.spreads(demand) else packed_keys
        keys = [values for _, values in order(box.board, demand, rows, replicas)]
        nodes, cards = fits(box.board, demand, rows)
        best = min(tuple(key[place] for key in keys) for place in zip(*np.nonzero(cards & nodes[:, None]), strict=True))
        chosen = box.board.row_of[grant.node], grant.containers[0].shares[0].card
        assert tuple(key[chosen] for key in keys) == best
        box.put(claim)
