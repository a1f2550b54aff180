"""Rounds of services/runtime/elastic/checkpoints.py in virtual time: a real page, on which the test writes what shims
would, and a driver that answers what the test says."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aliquot.adapters.gpu.page import Order, Page, State, Stays, Why
from aliquot.adapters.host.hostmemory import Room
from aliquot.arbiter.residency import UNHEARD
from aliquot.model.claim import AppClass
from aliquot.model.residency import Residency, Way, Where
from aliquot.model.tenant import Allotment, SharingRules, Tenant
from aliquot.services.mover.checkpoint import Answer, ProcessState, What
from aliquot.services.runtime.elastic.checkpoints import Checkpoints
from aliquot.services.runtime.elastic.parking import Parking
from aliquot.services.runtime.elastic.stepping import Steps
from aliquot.services.runtime.processes.registration import Process, Tenancy

GIB = 1 << 30
CARD, PIDS = "GPU-0", (101, 102)
RUNNING, LOCKED, AWAY, FAILED = ProcessState


class Step:
    def __init__(self, what: What, pids: Sequence[int], deadline: float) -> None:
        self.what, self.pids, self.deadline = what, tuple(pids), deadline
        self.answer: Answer | None = None
        self.polled = 0.0

    def poll(self, now: float) -> Answer | None:
        self.polled = now
        return self.answer


class Rig:
    """One card of 24 GiB; a tenant with two processes, each with arrays of 4 GiB."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        allotments = (Allotment(CARD, 20 * GIB, None),)
        self.page = Page(folder / "page", allotments)
        tenant = Tenant("arrays", "arrays", AppClass.NORMAL, allotments, 0, park_after=5.0)
        self.tenancy = Tenancy(tenant, folder, self.page, socket.socket())
        for slot, pid in enumerate(PIDS):
            self.tenancy.processes.add(
                Process("arrays", pid, self.tenancy.listener, -1, cast(Any, SimpleNamespace()), slot=slot)
            )
            self.page._write(self.page._at(slot, 0), struct.pack("<Q", 4 * GIB))
            self.write(slot, stays=int(Stays.OTHER))
        self.steps: list[Step] = []
        self.lock = threading.RLock()
        self.room: Room | None = Room(100 * GIB, True)
        self.rooms: list[int] = []  # pids for which it was asked
        self.start()

    def start(self) -> None:
        """As a daemon that starts."""
        nvml = SimpleNamespace(memory=lambda uuid: (8 * GIB, 24 * GIB))
        loop = SimpleNamespace(drain=lambda name, draining: None)
        state = SimpleNamespace(free=2 * GIB, parked=0, pid=1)
        mover = SimpleNamespace(
            state=state, living=lambda message: True, leave=lambda message: True, keeps=lambda: False, size=0
        )
        self.parking = Parking(
            self.lock, {"arrays": self.tenancy}, cast(Any, {CARD: loop}), cast(Any, nvml), cast(Any, mover),
            checkpoints=Checkpoints(self, self.room_of), clock=lambda: self.now,
        )  # fmt: skip
        self.parking.configure(SharingRules(oversubscribe=2.0, host_pool=2 * GIB))

    def is_unlocked(self) -> bool:
        with ThreadPoolExecutor(1) as others:
            free = others.submit(self.lock.acquire, blocking=False).result()
            if free:
                others.submit(self.lock.release).result()
        return free

    def room_of(self, pid: int) -> Room | None:
        assert self.is_unlocked(), "files are read, which takes time, with the arbiter's lock held"
        self.rooms.append(pid)
        return self.room

    def begin(self, what: What, pids: Sequence[int], deadline: float) -> Step:
        assert self.is_unlocked(), "a process is started, which takes time, with the arbiter's lock held"
        self.steps.append(Step(what, pids, deadline))
        return self.steps[-1]

    def write(self, slot: int, **fields: int) -> None:
        move = self.page.move(slot, 0)
        names = ("order", "state", "wanted", "why", "movable", "parked", "moves", "stays", "out_ns", "in_ns", "room")
        values = [fields.get(name, getattr(move, name)) for name in names]
        self.page._write(self.page._move_at(slot, 0), struct.pack("<4I2Q2I3Q", *values))

    def rounds(self, seconds: float = 0.1) -> None:
        for _ in range(max(1, round(seconds / 0.1))):
            self.now += 0.1
            self.parking.round(self.now)

    def answer(self, *states: int | None, refusal: str | None = None, code: int = 0, lasting: bool = False) -> None:
        """The driver's, to what it was asked last. None: it does not say."""
        told = dict(zip(PIDS, states, strict=False))
        known = {pid: state for pid, state in told.items() if state is not None}
        self.steps[-1].answer = Answer(known, refusal, code, lasting, [pid for pid in told if pid not in known])
        self.rounds()

    @property
    def asked(self) -> list[What]:
        return [step.what for step in self.steps]

    @property
    def shown(self) -> Residency:
        found = self.parking.residency("arrays", CARD)
        assert found is not None
        return found

    @property
    def orders(self) -> list[int]:
        return [self.page.move(slot, 0).order for slot in (0, 1)]

    def states(self, *states: State) -> None:
        for slot, state in enumerate(states):
            self.write(slot, state=state)
        self.rounds()

    def able(self) -> None:
        self.rounds()
        self.answer(RUNNING, RUNNING)

    def leave(self) -> None:
        """It is asked to, and both processes have halted."""
        assert self.parking.request("arrays", leave=True) is None
        self.rounds()
        assert self.orders == [Order.HALT, Order.HALT]
        self.states(State.HALTED, State.HALTED)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.tenancy.listener.close()
    made.page.close()


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
    assert rig.shown.where is Where.RESIDENT  # nobody told it to move


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


def test_next_daemon_lets_those_go_on_for_whom_the_driver_was_not_asked(rig: Rig) -> None:
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
