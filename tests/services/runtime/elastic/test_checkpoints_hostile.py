"""Rounds of services/runtime/elastic/checkpoints.py with pages that lie, processes that do not answer, and steps that
never end."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aliquot.adapters.gpu.page import Order, State
from aliquot.arbiter.residency import UNHEARD
from aliquot.model.residency import Way, Where
from aliquot.services.mover.checkpoint import Answer, What
from aliquot.services.runtime.elastic.stepping import Steps
from kit.cards.checkpointrig import AWAY, GIB, PIDS, RUNNING, Rig, Step


def test_page_that_claims_to_be_halted_again_and_again_costs_few_processes(rig: Rig) -> None:
    rig.able()
    for _ in range(200):
        rig.states(State.HALTED, State.HALTED)
        rig.answer(RUNNING, RUNNING)
        rig.answer(RUNNING, RUNNING)
        rig.states(State.RESIDENT, State.RESIDENT)
    assert rig.now > 1060
    assert len(rig.steps) < 20


def test_page_that_claims_to_be_halted_for_ever_is_asked_about_once(rig: Rig) -> None:
    rig.able()
    rig.states(State.HALTED, State.HALTED)
    rig.answer(RUNNING, RUNNING)
    rig.answer(RUNNING, RUNNING)
    asked = len(rig.steps)
    rig.rounds(100.0)
    assert len(rig.steps) == asked
    assert rig.shown.where is Where.RESIDENT  # it has no order to move


def test_page_that_claims_more_than_it_may_have_does_not_move_the_deadline(rig: Rig) -> None:
    rig.page._write(rig.page._at(0, 0), struct.pack("<Q", (1 << 64) - 1))
    rig.able()
    rig.leave()
    assert rig.steps[-1].deadline <= rig.now + 20 + 2 * 20 * GIB / 0.5e9


def test_step_of_processes_that_have_ended_is_looked_after_until_it_ends(rig: Rig) -> None:
    rig.rounds()
    rig.tenancy.processes.clear()
    rig.rounds(5.0)
    assert rig.steps[-1].polled == rig.now  # else its deadline would never kill it


def test_tenant_whose_processes_come_and_go_costs_few_steps(rig: Rig) -> None:
    processes = set(rig.tenancy.processes)
    for state in (State.RESIDENT, State.HALTED):
        before = len(rig.steps)
        for _ in range(200):
            rig.tenancy.processes |= processes
            rig.write(0, state=state, order=Order.AWAY)
            rig.rounds()
            if rig.steps:
                rig.answer(refusal="no such process")
            rig.tenancy.processes.clear()
            rig.rounds()
        assert len(rig.steps) - before < 12


def test_driver_that_never_brings_it_back_is_asked_less_and_less_often(rig: Rig) -> None:
    rig.able()
    rig.leave()
    rig.answer(refusal="error 999", code=999)
    before = len(rig.steps)
    for _ in range(600):
        rig.answer(AWAY, AWAY, refusal="error 999", code=999)
        rig.rounds(0.9)
    assert 20 < len(rig.steps) - before < 40


def test_only_a_few_steps_go_on_at_a_time_and_one_of_each_tenant() -> None:
    begun: list[Step] = []

    class Driver:
        def begin(self, what: What, pids: Sequence[int], deadline: float) -> Step:
            begun.append(Step(what, pids, deadline))
            return begun[-1]

    steps = Steps(Driver())
    looks = [steps.begin(f"looks-{n}", What.LOOK, [n], 0.0) for n in range(100)]
    brings = [steps.begin(f"brings-{n % 2}", What.BRING, [n], 0.0) for n in range(100)]
    assert not begun
    steps.start()
    assert [step.what for step in begun] == [What.LOOK, What.LOOK, What.BRING, What.BRING]
    assert (sum(step is not None for step in looks), sum(step is not None for step in brings)) == (2, 2)
    assert steps.begin("another", What.BRING, [1], 0.0) is None
    begun[0].answer = Answer({})
    assert looks[0] is not None
    assert looks[0].poll(1.0) == Answer({})
    assert steps.begin("brings-0", What.BRING, [1], 0.0) is None
    assert steps.begin("another", What.BRING, [1], 0.0) is not None


def test_step_that_is_not_wanted_any_more_is_not_started() -> None:
    begun: list[Step] = []
    steps = Steps(cast(Any, SimpleNamespace(begin=lambda *how: begun.append(Step(*how)))))
    steps.abandon(steps.begin("one", What.BRING, [1], 0.0))
    steps.start()
    assert not begun
    assert steps.has_place("one", What.BRING)


def test_process_whose_state_the_driver_does_not_say_does_not_keep_the_other_halted(rig: Rig) -> None:
    rig.able()
    rig.leave()
    rig.answer(AWAY, AWAY)
    rig.parking.request("arrays", leave=False)
    rig.rounds()
    rig.answer(RUNNING, None, refusal="error 999", code=999)
    assert rig.orders == [Order.RETURN, Order.AWAY]
    rig.states(State.RESIDENT, State.HALTED)
    tried = len(rig.steps)
    rig.rounds(3.0)
    assert (len(rig.steps), rig.asked[-1]) == (tried + 1, What.BRING)
    rig.answer(RUNNING, RUNNING)
    assert rig.orders == [Order.RETURN] * 2
    rig.states(State.RESIDENT, State.RESIDENT)
    rig.rounds()
    assert rig.shown.where is Where.RESIDENT


def test_processes_of_which_the_driver_touched_none_all_go_on_at_once(rig: Rig) -> None:
    rig.able()
    rig.leave()
    assert rig.orders == [Order.AWAY] * 2
    rig.steps[-1].answer = Answer({PIDS[0]: RUNNING}, "error 999", 999, unknown=[PIDS[1]], untouched=True)
    rig.rounds()
    assert (rig.orders, rig.asked[-1]) == ([Order.RETURN] * 2, What.TAKE)
    rig.states(State.RESIDENT, State.RESIDENT)
    rig.rounds()
    assert rig.shown.where is Where.RESIDENT


def test_processes_one_of_which_is_not_known_are_not_taken_for_away(rig: Rig) -> None:
    rig.able()
    rig.leave()
    rig.answer(AWAY, None, refusal="error 999", code=999)
    rig.start()
    rig.rounds()
    rig.answer(AWAY, None, refusal="error 999", code=999)
    assert rig.asked[-3:] == [What.BRING, What.LOOK, What.BRING]


@pytest.mark.parametrize("state", [State.RESIDENT, State.PARKED])
def test_process_that_does_not_hear_is_not_asked_again_soon(rig: Rig, state: State) -> None:
    """It runs meanwhile, and so its next launch says that it hears."""
    rig.able()
    assert rig.parking.request("arrays", leave=True) is None
    rig.rounds()
    rig.states(State.HALTED, state)
    rig.rounds(UNHEARD + 1)
    assert rig.orders == [Order.RETURN] * 2
    rig.states(State.RESIDENT, State.RESIDENT)
    rig.rounds()
    assert (rig.shown.way, rig.shown.detail) == (None, "not all of its processes stopped for the driver's checkpoint")
    rig.rounds(25.0)
    assert rig.shown.way is None
    rig.rounds(10.0)
    assert rig.shown.way is Way.CHECKPOINT


@pytest.mark.parametrize(("state", "seconds"), [(State.LOST, 1.0), (State.LEAVING, 60.0)])
def test_process_that_never_halts_does_not_keep_the_other_halted(rig: Rig, state: State, seconds: float) -> None:
    rig.able()
    assert rig.parking.request("arrays", leave=True) is None
    rig.rounds()
    rig.states(State.HALTED, state)
    rig.rounds(seconds)
    assert rig.orders == [Order.RETURN] * 2
    assert What.TAKE not in rig.asked


def test_process_that_is_stopped_on_its_way_back_does_not_keep_the_tenant_from_being_seen(rig: Rig) -> None:
    rig.able()
    rig.leave()
    rig.answer(AWAY, AWAY)
    rig.parking.request("arrays", leave=False)
    rig.rounds()
    rig.answer(RUNNING, RUNNING)
    rig.states(State.RESIDENT, State.HALTED)
    rig.rounds(60.0)
    assert (rig.shown.where, rig.shown.resident) == (Where.RESIDENT, 8 * GIB)


def test_next_daemon_resumes_processes_that_the_driver_was_not_asked_about(rig: Rig) -> None:
    rig.able()
    assert rig.parking.request("arrays", leave=True) is None
    rig.rounds()
    for slot in (0, 1):
        rig.write(slot, state=State.HALTED)
    rig.start()
    rig.steps.clear()
    rig.rounds()
    assert (rig.orders, rig.asked) == ([Order.RETURN] * 2, [])


def test_tenant_most_of_whose_memory_can_be_copied_by_now_is_copied(rig: Rig) -> None:
    rig.able()
    ways = [rig.shown.way]
    for slot in (0, 1):
        rig.page._write(rig.page._at(slot, 0), struct.pack("<Q", 10 * GIB))
        rig.write(slot, movable=6 * GIB)
    rig.rounds()
    assert [*ways, rig.shown.way] == [Way.CHECKPOINT, Way.COPY]
    cast(Any, rig.parking.mover.state).free = 14 * GIB
    assert rig.parking.request("arrays", leave=True) is None
    rig.rounds()
    assert rig.orders == [Order.LEAVE] * 2
