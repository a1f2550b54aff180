"""Rounds of services/runtime/elastic/checkpoints.py in virtual time: a real page, on which the test writes what shims
would, and a driver that answers what the test says."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aliquot.adapters.gpu.page import Order, State, Why
from aliquot.adapters.host.hostmemory import Room
from aliquot.arbiter.residency import UNHEARD
from aliquot.model.claim import AppClass
from aliquot.model.residency import Way, Where
from aliquot.services.mover.checkpoint import Answer, What
from aliquot.services.runtime.processes.registration import Process
from kit.cards.checkpointrig import AWAY, FAILED, GIB, LOCKED, PIDS, RUNNING, Rig


def test_work_that_is_parkable_by_its_class_alone_is_left_on_the_card(rig: Rig) -> None:
    rig.tenancy.tenant = replace(rig.tenancy.tenant, app_class=AppClass.OFFLINE, park_after=None)
    rig.rounds(3.0)
    rig.states(State.HALTED, State.HALTED)  # a false claim
    rig.rounds(3.0)
    assert (rig.asked, rig.shown.way) == ([], None)
    assert rig.parking.request("arrays", leave=True) == (
        "it has memory of a kind that cannot be moved, and only `--park` or the annotation aliquot.dev/park allows the "
        "driver's checkpoint"
    )


def test_way_there_and_back(rig: Rig) -> None:
    rig.able()
    assert (rig.shown.way, rig.shown.why, rig.shown.resident) == (Way.CHECKPOINT, None, 8 * GIB)
    rig.leave()
    assert (rig.orders, rig.asked[-1], rig.steps[-1].pids) == ([Order.AWAY] * 2, What.TAKE, PIDS)
    assert rig.shown.where is Where.LEAVING
    rig.rounds(4.0)
    rig.answer(AWAY, AWAY)
    rig.rounds()
    shown = rig.shown
    assert (shown.where, shown.parked, shown.checkpointed, shown.resident) == (Where.PARKED, 8 * GIB, 8 * GIB, 0)
    assert shown.last_out == pytest.approx(4.3, abs=0.3)
    rig.write(1, wanted=1)
    rig.rounds()
    assert rig.asked[-1] is What.BRING
    rig.rounds(2.0)
    rig.answer(RUNNING, RUNNING)
    assert (rig.orders, rig.shown.where) == ([Order.RETURN] * 2, Where.RETURNING)
    rig.states(State.RESIDENT, State.RESIDENT)
    rig.rounds()
    assert (rig.shown.where, rig.shown.parked, rig.shown.moves) == (Where.RESIDENT, 0, 1)


def test_tenant_that_is_back_after_long_leaves_in_the_same_way_again(rig: Rig) -> None:
    """The look at the host's memory is too old by then. The part that can be copied must not leave alone."""
    rig.write(0, movable=64 << 20)
    rig.able()
    for times in (1, 2):
        rig.leave()
        rig.answer(AWAY, AWAY)
        rig.rounds(15)
        assert rig.parking.request("arrays", leave=False) is None
        rig.rounds()
        rig.answer(RUNNING, RUNNING)
        rig.states(State.RESIDENT, State.RESIDENT)
        assert (rig.shown.way, rig.shown.moves) == (Way.CHECKPOINT, times)


def test_tenant_asked_to_leave_before_the_driver_has_said_whether_it_can_leaves_once_it_has(rig: Rig) -> None:
    rig.write(0, movable=64 << 20)
    rig.rounds()
    assert rig.parking.request("arrays", leave=True) is None
    rig.rounds(3)
    assert Order.LEAVE not in rig.orders
    rig.answer(RUNNING, RUNNING)
    rig.rounds()
    assert rig.orders == [Order.HALT, Order.HALT]


def test_tenant_without_movable_memory_is_not_refused_before_the_driver_has_said_whether_it_can(rig: Rig) -> None:
    rig.rounds()
    assert rig.parking.request("arrays", leave=True) is None
    rig.rounds(1)
    rig.answer(RUNNING, RUNNING)
    rig.rounds()
    assert rig.orders == [Order.HALT, Order.HALT]


def test_moves_by_the_driver_stay_counted_when_it_cannot_any_more(rig: Rig) -> None:
    rig.write(0, movable=64 << 20)
    rig.able()
    rig.leave()
    rig.answer(AWAY, AWAY)
    rig.parking.request("arrays", leave=False)
    rig.rounds()
    rig.answer(RUNNING, RUNNING)
    rig.states(State.RESIDENT, State.RESIDENT)
    rig.room = Room(1, True)
    rig.rounds(5)
    assert (rig.shown.way, rig.shown.moves) == (Way.COPY, 1)


@pytest.mark.parametrize(
    ("room", "words"),
    [
        (Room(3 * GIB, True), "the driver's checkpoint needs 8 GiB of host memory: its memory cgroup has 3 GiB left"),
        (Room(3 * GIB, False), "the driver's checkpoint needs 8 GiB of host memory: the machine has 3 GiB left"),
        (None, "the driver's checkpoint needs 8 GiB of host memory, and how much it may take cannot be seen here"),
    ],
)
def test_without_room_in_the_host_it_stays_and_the_figure_is_reported(rig: Rig, room: Room | None, words: str) -> None:
    rig.room = room
    rig.able()
    assert (rig.shown.way, rig.shown.detail) == (None, words)
    refused = rig.parking.request("arrays", leave=True)
    assert refused == f"it has memory of a kind that cannot be moved, and {words}"
    rig.room = Room(9 * GIB, True)
    rig.rounds(3.0)
    rig.leave()


def test_refusal_brings_all_back_and_is_tried_again_less_and_less_often(rig: Rig) -> None:
    rig.able()
    rig.leave()
    rig.answer(RUNNING, RUNNING, refusal="error 801", code=801)
    assert rig.asked[-1] is What.BRING
    rig.answer(RUNNING, RUNNING)
    assert rig.orders == [Order.RETURN] * 2
    rig.states(State.RESIDENT, State.RESIDENT)
    rig.rounds()
    assert (rig.shown.way, rig.shown.detail) == (None, "the driver's checkpoint refuses it: error 801")
    rig.rounds(25.0)
    assert rig.shown.way is None
    rig.rounds(10.0)
    assert rig.shown.way is Way.CHECKPOINT


def test_host_memory_is_looked_at_now_and_then_and_is_known_when_a_refusal_is_forgiven(rig: Rig) -> None:
    rig.able()
    rig.leave()
    rig.steps[-1].answer = Answer(dict.fromkeys(PIDS, RUNNING), "error 600", 600, untouched=True)
    rig.rounds()
    rig.states(State.RESIDENT, State.RESIDENT)
    del rig.rooms[:]
    rig.rounds(20.0)
    assert 16 <= len(rig.rooms) <= 22  # every 2 s, for two processes
    assert rig.shown.way is None
    assert rig.parking.request("arrays", leave=True) is None
    rig.rounds()
    assert rig.orders == [Order.HALT, Order.HALT]


def test_host_memory_is_looked_at_again_when_a_process_joins(rig: Rig) -> None:
    rig.able()
    assert rig.shown.way is Way.CHECKPOINT
    del rig.rooms[:]
    process = Process("arrays", 103, rig.tenancy.listener, -1, cast(Any, SimpleNamespace()), slot=2)
    rig.tenancy.processes.add(process)
    rig.rounds(0.3)
    assert rig.rooms == [*PIDS, 103]
    assert rig.shown.way is Way.CHECKPOINT
    rig.room = Room(7 * GIB, True)
    rig.rounds(3.0)
    assert rig.shown.way is None


def test_process_that_joins_while_the_others_halt_leaves_with_them(rig: Rig) -> None:
    rig.able()
    assert rig.parking.request("arrays", leave=True) is None
    rig.rounds()
    process = Process("arrays", 103, rig.tenancy.listener, -1, cast(Any, SimpleNamespace()), slot=2)
    rig.tenancy.processes.add(process)
    rig.rounds(0.2)
    assert [rig.page.move(slot, 0).order for slot in range(3)] == [Order.HALT] * 3
    rig.states(State.HALTED, State.HALTED)
    assert rig.asked[-1] is What.LOOK  # not before all have halted
    rig.states(State.HALTED, State.HALTED, State.HALTED)
    assert (rig.asked[-1], rig.steps[-1].pids) == (What.TAKE, (*PIDS, 103))


def test_processes_that_join_again_and_again_do_not_keep_the_others_halted(rig: Rig) -> None:
    rig.able()
    assert rig.parking.request("arrays", leave=True) is None
    rig.rounds()
    for count in range(300):
        slot = 2 + count
        if slot < 250:
            process = Process("arrays", 1000 + count, rig.tenancy.listener, -1, cast(Any, SimpleNamespace()), slot=slot)
            rig.tenancy.processes.add(process)
        rig.rounds(0.3)
    assert rig.orders == [Order.RETURN] * 2


def test_driver_that_does_not_answer_is_asked_to_bring_them_back_until_it_does(rig: Rig) -> None:
    rig.able()
    rig.leave()
    assert rig.steps[-1].deadline == pytest.approx(rig.now + 20 + 8 * GIB / 0.5e9, abs=1)
    rig.answer(refusal="the driver did not answer in time")
    for _ in range(3):
        assert rig.asked[-1] is What.BRING
        tried = len(rig.steps)
        rig.answer(refusal="the driver did not answer in time")
        rig.rounds(3.0)
        assert len(rig.steps) == tried + 1
    rig.answer(RUNNING, RUNNING)
    assert rig.orders == [Order.RETURN] * 2


def test_driver_that_cannot_is_not_asked_again(rig: Rig) -> None:
    rig.rounds()
    rig.answer(refusal="no checkpoints", lasting=True)
    rig.rounds(3000.0)
    assert rig.asked == [What.LOOK]
    assert rig.parking.request("arrays", leave=True) is not None
    rig.rounds(1.0)
    assert rig.asked == [What.LOOK]


def test_process_that_does_not_hear_keeps_all_on_the_card(rig: Rig) -> None:
    rig.able()
    assert rig.parking.request("arrays", leave=True) is None
    rig.rounds()
    rig.states(State.HALTED, State.RESIDENT)
    rig.rounds(UNHEARD + 1)
    assert rig.orders == [Order.RETURN] * 2
    rig.states(State.RESIDENT, State.RESIDENT)
    rig.rounds()
    assert rig.shown.where is Where.RESIDENT
    assert What.TAKE not in rig.asked


def test_process_that_cannot_halt_keeps_all_on_the_card(rig: Rig) -> None:
    rig.able()
    assert rig.parking.request("arrays", leave=True) is None
    rig.rounds()
    rig.write(1, why=Why.BUSY)
    rig.states(State.HALTED, State.RESIDENT)
    assert rig.orders == [Order.RETURN] * 2
    assert What.TAKE not in rig.asked


def test_process_that_the_driver_lost_goes_on_with_its_errors(rig: Rig) -> None:
    rig.able()
    rig.leave()
    rig.answer(AWAY, AWAY)
    rig.parking.request("arrays", leave=False)
    rig.rounds()
    rig.answer(RUNNING, FAILED, refusal="error 999", code=999)
    assert rig.orders == [Order.RETURN] * 2


def test_without_room_on_the_card_it_waits_and_is_not_tried_at_once(rig: Rig) -> None:
    rig.able()
    rig.leave()
    rig.answer(AWAY, AWAY)
    rig.write(0, wanted=1)
    rig.rounds()
    rig.answer(LOCKED, AWAY, refusal="out of memory", code=2)
    assert rig.shown.where is Where.PARKED
    tried = len(rig.steps)
    rig.rounds(1.0)
    assert len(rig.steps) == tried
    rig.rounds(2.0)
    assert (len(rig.steps), rig.asked[-1]) == (tried + 1, What.BRING)


@pytest.mark.parametrize(
    ("found", "what"), [((AWAY, AWAY), None), ((LOCKED, LOCKED), What.BRING), ((AWAY, RUNNING), What.BRING)]
)
def test_next_daemon_goes_on_with_what_it_finds(rig: Rig, found: tuple[int, int], what: What | None) -> None:
    rig.able()
    rig.leave()
    rig.start()
    rig.steps.clear()
    rig.rounds()
    assert rig.asked == [What.LOOK]
    rig.answer(*found)
    rig.rounds()
    assert rig.asked[1:] == ([] if what is None else [what])
    if what is None:
        assert (rig.shown.where, rig.shown.checkpointed, rig.shown.way) == (Where.PARKED, 8 * GIB, Way.CHECKPOINT)
