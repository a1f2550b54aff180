"""Tenants that only the driver's checkpoint can move, on a simulated card of 24 GiB: shim and daemon as in life."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.gpu.page import Order, Page, State, Why
from aliquot.model.tenant import Allotment
from aliquot.services.mover.client import MoverClient
from aliquot.services.mover.control import Leave
from kit.cards.movers import Mover, pooled_node, residency, until
from kit.cards.runtime import GIB, Node


@pytest.fixture
def node() -> Iterator[Node]:
    with pooled_node(2 * GIB) as made:
        yield made


def where(node: Node, name: str) -> str | None:
    return residency(node, name).get("where")


def sleeper(node: Node, gib: int = 1, kind: str = "array") -> Mover:
    """Idle, with arrays on the card, and known to go by the driver's checkpoint."""
    made = Mover(node, node.tenant("normal", memory=(gib + 2) * GIB, park_after=600.0), gib, kind=kind)
    made.ready()
    made.hold()
    until(lambda: residency(node, made.name).get("way") == "checkpoint", "the driver said that it can")
    return made


def fault(node: Node, text: str | None) -> None:
    path = Path(node.player.socket + ".checkpoint")
    path.unlink() if text is None else path.write_text(text)


def test_arrays_leave_by_hand_with_the_context_and_a_call_brings_them_back(node: Node) -> None:
    program = sleeper(node)
    before = node.player.card().used
    assert node.ask("request_move", name=program.name, leave=True) is None
    until(lambda: where(node, program.name) == "parked", "it is parked")
    found = residency(node, program.name)
    assert found["parked"] > found["checkpointed"] >= GIB
    assert (found["resident"], found["moves"], found["why"]) == (0, 1, "asked")
    assert found["last_out"] >= 0.5  # 2 GB/s
    assert node.player.card().used <= before - GIB
    result = program.end()
    assert (result["wrong"], result["error"]) == (0, 0), result
    assert result["longest"] >= 0.2  # 5 GB/s


@pytest.mark.parametrize("what", ["ask", "context"])
def test_call_that_needs_no_memory_brings_it_back_too(node: Node, what: str) -> None:
    """The real driver would not come back from it."""
    program = sleeper(node)
    assert node.ask("request_move", name=program.name, leave=True) is None
    until(lambda: where(node, program.name) == "parked", "it is parked")
    assert program.look(what)
    until(lambda: where(node, program.name) == "resident", "it is back")
    assert program.end()["error"] == 0


def test_two_processes_of_a_tenant_leave_and_return_together(node: Node) -> None:
    first = sleeper(node)
    second = Mover(node, first.name, 1, kind="bare")  # it holds as well: they share the file
    second.ready()
    second.hold()
    until(lambda: residency(node, first.name)["resident"] >= 2 * GIB, "both are seen")
    assert node.ask("request_move", name=first.name, leave=True) is None
    until(lambda: where(node, first.name) == "parked", "they are parked")
    assert residency(node, first.name)["checkpointed"] >= 2 * GIB
    results = [first.end(), second.end()]
    assert [(result["wrong"], result["error"]) for result in results] == [(0, 0)] * 2, results


def test_process_without_memory_of_its_own_leaves_with_the_others(node: Node) -> None:
    """It has a context, which the driver takes, and no memory that the shim has seen."""
    first = sleeper(node)
    second = Mover(node, first.name, 0, kind="bare")
    second.ready()
    second.hold()
    time.sleep(0.5)  # the daemon knows it by then
    for _ in range(2):
        assert node.ask("request_move", name=first.name, leave=True) is None
        until(lambda: where(node, first.name) == "parked", "they are parked")
        assert node.ask("request_move", name=first.name, leave=False) is None
        until(lambda: where(node, first.name) == "resident", "they are back")
    results = [first.end(), second.end()]
    assert [(result["wrong"], result["error"]) for result in results] == [(0, 0)] * 2, results


def test_wake_by_hand(node: Node) -> None:
    program = sleeper(node)
    for moves in (1, 2):
        assert node.ask("request_move", name=program.name, leave=True) is None
        until(lambda: where(node, program.name) == "parked", "it is parked")
        assert node.ask("request_move", name=program.name, leave=False) is None
        until(lambda: where(node, program.name) == "resident", "it is back")
        found = residency(node, program.name)
        assert (found["moves"], found["why"]) == (moves, None)
    assert program.end()["error"] == 0


def test_offline_arrays_leave_for_an_online_allocation_and_return(node: Node) -> None:
    program = Mover(node, node.tenant("offline", memory=13 * GIB, park_after=0.0), 12, 1024, "array")
    program.ready()
    until(lambda: residency(node, program.name).get("way") == "checkpoint", "the driver said that it can")
    online = Mover(node, node.tenant("online", memory=16 * GIB), 15)
    online.ready()
    until(lambda: where(node, program.name) == "parked", "it is parked")
    assert residency(node, program.name)["why"] in ("room", "no-room")  # soon it wants to return
    assert online.end()["error"] == 0
    until(lambda: where(node, program.name) == "resident", "it is back")
    result = program.end()
    assert (result["wrong"], result["error"]) == (0, 0), result


def test_daemon_that_dies_leaves_it_away_and_the_next_one_brings_it_back(node: Node) -> None:
    program = sleeper(node)
    node.ask("request_move", name=program.name, leave=True)
    until(lambda: where(node, program.name) == "parked", "it is parked")
    node.kill_daemon()
    time.sleep(1.0)
    node.restart_daemon()
    until(lambda: where(node, program.name) == "parked", "the next daemon found it")
    assert residency(node, program.name)["checkpointed"] >= GIB
    result = program.end()
    assert (result["wrong"], result["error"]) == (0, 0), result


@pytest.mark.parametrize("seconds", [0.05, 0.3, 0.8])
def test_daemon_that_dies_while_it_leaves_loses_nothing(node: Node, seconds: float) -> None:
    program = sleeper(node)
    node.ask("request_move", name=program.name, leave=True)
    until(lambda: where(node, program.name) in ("leaving", "parked"), "it leaves")
    time.sleep(seconds)
    node.kill_daemon()
    time.sleep(1.0)
    node.restart_daemon()
    until(lambda: where(node, program.name) in ("parked", "resident"), "the next daemon found it")
    result = program.end()
    assert (result["wrong"], result["error"]) == (0, 0), result


def test_halted_program_goes_on_by_itself_where_the_daemon_is_gone(node: Node) -> None:
    """Before the driver was asked; after that only the next daemon knows."""
    program = sleeper(node, kind="bare")
    node.kill_daemon()
    allotment = Allotment(node.player.card().uuid, 2 * GIB, None)
    page = Page(Path(node.tenants[program.name]["folder"]) / "page", (allotment,))

    def halted() -> bool:
        page.beat(0, time.monotonic_ns())
        return page.move(0, 0).state == State.HALTED

    try:
        halted()
        page.order(0, 0, Order.HALT)
        until(halted, "its calls wait")
        result = program.end()
        assert (result["wrong"], result["error"]) == (0, 0), result
    finally:
        page.close()
        node.restart_daemon()


def permit(node: Node, name: str) -> None:
    """As a daemon does before it orders memory to leave."""
    assert node.pool is not None
    mover = MoverClient(node.pool, 0, os.environ)
    assert mover.leave(Leave(name, node.player.card().uuid, permitted=True))
    mover.close()


def test_order_that_a_tenant_writes_to_its_own_page_moves_nothing(node: Node) -> None:
    program = sleeper(node)
    page = Page(
        Path(node.tenants[program.name]["folder"]) / "page", (Allotment(node.player.card().uuid, 3 * GIB, None),)
    )
    try:
        page.order(0, 0, Order.LEAVE)
        until(lambda: page.move(0, 0).why == Why.BUSY, "the mover has refused it")
        assert (page.move(0, 0).state, page.move(0, 0).parked) == (State.RESIDENT, 0)
        page.order(0, 0, Order.STAY)
    finally:
        page.close()
    result = program.end()
    assert (result["wrong"], result["error"]) == (0, 0), result


def test_program_part_of_which_was_copied_away_halts_too(node: Node) -> None:
    program = sleeper(node)
    page = Page(
        Path(node.tenants[program.name]["folder"]) / "page", (Allotment(node.player.card().uuid, 3 * GIB, None),)
    )

    def is_so(state: State) -> bool:
        page.beat(0, time.monotonic_ns())
        return page.move(0, 0).state == state

    try:
        permit(node, program.name)
        page.order(0, 0, Order.LEAVE)
        until(lambda: page.move(0, 0).state == State.PARKED, "what can be copied is away")
        node.kill_daemon()
        is_so(State.PARKED)
        page.order(0, 0, Order.HALT)
        until(lambda: is_so(State.HALTED), "its calls wait")
    finally:
        page.close()
        node.restart_daemon()
    result = program.end()
    assert (result["wrong"], result["error"]) == (0, 0), result


@pytest.mark.parametrize(("text", "code"), [("checkpoint 801", 801), ("lock 600", 600)])
def test_refusal_of_the_driver_is_the_reason_and_the_program_goes_on(node: Node, text: str, code: int) -> None:
    program = sleeper(node)
    fault(node, text)
    node.ask("request_move", name=program.name, leave=True)
    detail = until(lambda: residency(node, program.name).get("detail"), "the driver refused it")
    assert detail.startswith("the driver's checkpoint refuses it: cuCheckpointProcess")
    assert f"error {code}" in detail
    until(lambda: where(node, program.name) == "resident", "it is on the card")
    assert residency(node, program.name)["why"] == "unmovable"
    fault(node, None)
    assert node.ask("request_move", name=program.name, leave=True) is None  # it is tried again at once
    until(lambda: where(node, program.name) == "parked", "it is parked")
    assert program.end()["error"] == 0


def test_process_that_cannot_be_restored_now_is_restored_later(node: Node) -> None:
    program = sleeper(node)
    node.ask("request_move", name=program.name, leave=True)
    until(lambda: where(node, program.name) == "parked", "it is parked")
    fault(node, "restore 2")
    node.ask("request_move", name=program.name, leave=False)
    until(lambda: where(node, program.name) == "returning", "it is tried")
    until(lambda: where(node, program.name) == "parked", "it failed")
    fault(node, None)
    result = program.end()
    assert (result["wrong"], result["error"]) == (0, 0), result


def test_process_that_dies_while_it_is_away_leaves_nothing(node: Node) -> None:
    program = sleeper(node)
    node.ask("request_move", name=program.name, leave=True)
    until(lambda: where(node, program.name) == "parked", "it is parked")
    program.kill()
    until(lambda: where(node, program.name) is None, "it is forgotten")
    other = sleeper(node, 2)
    assert other.end()["error"] == 0
