"""Cards that fall off and come back, on a real node: who hears of it, and what becomes of those on them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from simgpu import faults
from testbed import objects
from testbed.cards import MEM, QCORE, QMEM
from testbed.judges import holdings
from testbed.judges.inside import end_container, granted, wait_offered, wait_restarted, wait_running, wrong_cards
from testbed.processes import wait_until
from testbed.programs.fleet import Fleet
from testbed.realnodes.nodes import RealNode, probe

ALL = {QCORE: 400, QMEM: 64, MEM: 64}
# Of a card that is out, what its Pods hold is still counted as theirs: it is not taken from the others a second time.
THREE_AND_ITS_POD = {QCORE: 330, QMEM: 52, MEM: 48}
CARDS = 4
APPLICATIONS_OWN = 31  # a kernel's bad address

Lose = Callable[..., None]


def _player(node: RealNode) -> str:
    return str(node.path("/run/aliquot/player/sock"))


@pytest.fixture
def lose(fleet: Fleet) -> Iterator[Lose]:
    """Cards of a node fall off the bus; those that are still off come back after the test."""
    hit: set[RealNode] = set()

    def lose(node: RealNode, *cards: int) -> None:
        hit.add(node)
        for card in cards:
            faults.lose(_player(node), card)

    yield lose
    _restore(fleet, *hit)


def _restore(fleet: Fleet, *nodes: RealNode) -> None:
    for node in nodes:
        for card in range(CARDS):
            faults.restore(_player(node), card)
    wait_until(lambda: not any(map(_out, nodes)), 20, "all cards are back")
    wait_offered(fleet, ALL, nodes=nodes)


def _out(node: RealNode) -> list[int]:
    """The numbers of the cards that the inventory on the Node says are out."""
    inventory = objects.get_node(node.plane, node.name)["metadata"]["annotations"][holdings.INVENTORY]
    return [card["index"] for card in json.loads(inventory)["cards"] if not card.get("healthy", True)]


def _on(node: RealNode, name: str, *words: str, core: int = 30, memory: int = 4) -> dict[str, Any]:
    """A Pod for that node, by the ways of the scheduler."""
    return probe(name, *words, limits={QCORE: core, QMEM: memory}, nodeSelector={"kubernetes.io/hostname": node.name})


def _running_on(fleet: Fleet, node: RealNode, name: str) -> int:
    """Such a Pod runs; the number of its card."""
    fleet.create(_on(node, name))
    wait_running(fleet, [name])
    (card,) = holdings.cards_of(objects.get_pod(fleet.plane, name))
    return card


def test_a_card_that_falls_off_is_reported_at_once_and_new_pods_go_elsewhere(fleet: Fleet, lose: Lose) -> None:
    node = fleet.nodes[0]
    card = _running_on(fleet, node, "has-it")
    began = time.monotonic()
    lose(node, card)
    wait_until(lambda: _out(node) == [card], 10, "the inventory says so", every=0.05)
    assert time.monotonic() - began < 3
    text = fleet.wired.await_event("has-it", "GPUUnhealthy", f"card {card}", "Xid 79")
    fleet.wired.await_event(
        node.name, "GPUUnhealthy", text, seconds=25
    )  # in other words than before, not sooner than 15 s
    wait_offered(fleet, THREE_AND_ITS_POD, nodes=[node])
    whole = [f"whole-{number}" for number in range(CARDS)]
    for name in whole[:-1]:
        fleet.create(_on(node, name, core=99, memory=16))
    wait_running(fleet, whole[:-1])
    assert sorted(holdings.cards_of(objects.get_pod(fleet.plane, name))[0] for name in whole[:-1]) == sorted(
        {0, 1, 2, 3} - {card}
    )
    assert wrong_cards(fleet, whole[:-1]) == []
    fleet.create(_on(node, whole[-1]))
    fleet.wired.waits(whole[-1])


def test_who_is_on_a_card_that_fell_off_stays_accounted_and_starts_again_when_it_is_back(
    fleet: Fleet, lose: Lose
) -> None:
    node = fleet.nodes[0]
    card = _running_on(fleet, node, "stays")
    (uuid,) = granted(objects.get_pod(fleet.plane, "stays"))["main"]
    lose(node, card)
    wait_offered(fleet, THREE_AND_ITS_POD, nodes=[node])
    booked = {card["index"]: card["used_memory_mib"] for card in _board(fleet, node)}
    assert booked[card] == 4 * 1024
    assert [tenant["name"] for tenant in fleet.agents[node.name].status()["tenants"]] == ["default/stays"]
    end_container(node, "stays")
    fleet.wired.await_event("stays", "GPURefused", "Xid 79")
    _restore(fleet, node)
    fleet.create(_on(node, "beside", core=99, memory=16))
    wait_restarted(fleet, "stays", 0)
    wait_running(fleet, ["beside"])
    assert holdings.cards_of(objects.get_pod(fleet.plane, "beside")) != [card]
    report = node.report("stays")
    assert [card["uuid"] for card in report["cuda"]["cards"]] == [uuid]
    assert wrong_cards(fleet, ["stays", "beside"]) == []


def _board(fleet: Fleet, node: RealNode) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = next(
        entry["cards"] for entry in fleet.wired.status()["nodes"] if entry["name"] == node.name
    )
    return found


def test_an_error_that_is_the_applications_own_takes_no_card_out(fleet: Fleet) -> None:
    node, agent = fleet.nodes[0], fleet.agents[fleet.nodes[0].name]
    faults.raise_xid(_player(node), 1, APPLICATIONS_OWN)
    wait_until(lambda: f'"xid":{APPLICATIONS_OWN}' in agent.program.said, 5, "the agent has heard of it")
    assert [card["healthy"] for card in agent.status()["cards"]] == [True] * CARDS
    assert _running_on(fleet, node, "goes-on") in range(CARDS)
    assert _out(node) == []


def test_while_all_cards_are_out_pods_wait_and_get_the_reason(fleet: Fleet, lose: Lose) -> None:
    for node in fleet.nodes:
        lose(node, *range(CARDS))
    wait_offered(fleet, dict.fromkeys(ALL, 0))
    fleet.create(probe("waits", limits={QCORE: 30, QMEM: 4}))
    fleet.wired.await_event("waits", "FailedScheduling", "Insufficient")
    fleet.wired.await_event("waits", "WaitingForGPU", "unhealthy or gone (8 cards)")
    _restore(fleet, *fleet.nodes)
    wait_running(fleet, ["waits"])
    assert wrong_cards(fleet, ["waits"]) == []
