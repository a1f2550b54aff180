"""Rounds of runtime/elastic/parking.py in virtual time: a real page, on which the test writes what a shim would."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aliquot.adapters.gpu.page import OVERHEAD, Order, Page, State, Why
from aliquot.arbiter.residency import RETRY_MOST
from aliquot.model.claim import AppClass
from aliquot.model.residency import ParkReason, Where
from aliquot.model.tenant import Allotment, SharingRules, Tenant
from aliquot.services.mover.control import Leave
from aliquot.services.runtime.elastic.parking import ROOM_WAIT, Parking
from aliquot.services.runtime.processes.registration import Process, Tenancy

MIB, GIB = 1 << 20, 1 << 30
CARD = "GPU-0"


class Rig:
    """One card of 24 GiB; one tenant may be parked, and another, that is online, waits for room."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.used = 20 * GIB
        self.tenancies: dict[str, Tenancy] = {}
        self.sleeper = self._tenancy(folder, "sleeper", AppClass.OFFLINE, movable=20 * GIB)
        self.online = self._tenancy(folder, "online", AppClass.ONLINE)
        self.notices: list[
            tuple[str, bool, int]
        ] = []  # to the mover: tenant, whether it may leave, and the order that the sleeper had then
        self.hears = True  # the mover
        self.start()

    def start(self) -> None:
        """As a daemon that starts."""
        nvml = SimpleNamespace(memory=lambda uuid: (self.used, 24 * GIB))
        loop = SimpleNamespace(drain=lambda name, draining: None)
        mover = SimpleNamespace(
            state=SimpleNamespace(free=64 * GIB, parked=0, pid=1), living=lambda message: True, leave=self._leave,
            keeps=lambda: False, size=0,
        )  # fmt: skip
        self.parking = Parking(
            threading.RLock(), self.tenancies, cast(Any, {CARD: loop}), cast(Any, nvml), cast(Any, mover),
            clock=lambda: self.now,
        )  # fmt: skip
        self.parking.configure(SharingRules(oversubscribe=2.0, host_pool=64 * GIB))

    def _leave(self, message: Leave) -> bool:
        if not self.hears:
            return False
        self.notices.append((message.tenant, message.permitted, self.sleeper.page.move(0, 0).order))
        return True

    def _tenancy(self, folder: Path, name: str, app_class: AppClass, movable: int = 0) -> Tenancy:
        allotments = (Allotment(CARD, 20 * GIB, None),)
        page = Page(folder / name, allotments)
        made = Tenancy(Tenant(name, name, app_class, allotments, 0), folder, page, socket.socket())
        made.processes.add(Process(name, 1, made.listener, -1, cast(Any, None), slot=0))
        self.tenancies[name] = made
        self.write(made, movable=movable)
        return made

    def write(self, tenancy: Tenancy, slot: int = 0, **fields: int) -> None:
        """What a shim writes to its page."""
        names = ("order", "state", "wanted", "why", "movable", "parked", "moves", "stays", "out_ns", "in_ns", "room")
        page, move = tenancy.page, tenancy.page.move(slot, 0)
        values = [fields.get(name, getattr(move, name)) for name in names]
        page._write(page._move_at(slot, 0), struct.pack("<4I2Q2I3Q", *values))

    @property
    def order(self) -> tuple[int, int]:
        """What the sleeper has to do, and why it did not."""
        move = self.sleeper.page.move(0, 0)
        return move.order, move.why

    def rounds(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.now += 0.1
            self.parking.round(self.now)

    def close(self) -> None:
        for tenancy in self.tenancies.values():
            tenancy.listener.close()
            tenancy.page.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("why", [Why.BUSY, Why.CAPTURE])
def test_tenant_that_cannot_leave_is_asked_less_and_less_often_until_it_has_left(rig: Rig, why: Why) -> None:
    rig.write(rig.online, room=10 * GIB)
    asked: list[float] = []

    def ask_for(seconds: float) -> None:
        end = rig.now + seconds
        while rig.now < end:
            rig.rounds(0.1)
            if rig.order == (Order.LEAVE, Why.NOTHING):
                asked.append(rig.now)
                rig.write(rig.sleeper, why=why)  # it tried

    ask_for(200)
    gaps = [round(later - before) for before, later in pairwise(asked)]
    assert gaps[:4] == [1, 2, 4, 8]
    assert set(gaps[4:]) == {round(RETRY_MOST)}
    assert 3 * RETRY_MOST < ROOM_WAIT  # an allocation that comes right after a try sees more of them

    rig.rounds(RETRY_MOST + 1)
    rig.write(rig.sleeper, state=State.PARKED, parked=20 * GIB, moves=1)
    rig.write(rig.online, room=0)
    rig.rounds(1)
    rig.write(rig.sleeper, state=State.RESIDENT, parked=0)
    rig.write(rig.online, room=10 * GIB)
    asked.clear()
    ask_for(5)
    assert round(asked[1] - asked[0]) == 1  # it has left since: as if it never failed


def test_mover_knows_of_an_order_to_leave_before_the_tenant_and_of_its_end(rig: Rig) -> None:
    rig.rounds(6)
    rig.notices.clear()
    rig.write(rig.online, room=10 * GIB)
    rig.rounds(0.5)
    assert (rig.notices, rig.order[0]) == ([("sleeper", True, Order.STAY)], Order.LEAVE)
    rig.write(rig.sleeper, state=State.LEAVING, parked=GIB)
    rig.rounds(0.5)
    rig.write(rig.sleeper, state=State.PARKED, parked=20 * GIB, moves=1)
    rig.write(rig.online, room=0)
    rig.rounds(0.5)
    assert len(rig.notices) == 1
    rig.used = 0
    rig.write(rig.sleeper, wanted=1)
    rig.rounds(0.5)
    assert (rig.notices[1:], rig.order[0]) == ([("sleeper", False, Order.RETURN)], Order.RETURN)


def test_tenant_that_says_it_leaves_unasked_has_no_permit(rig: Rig) -> None:
    rig.rounds(0.5)
    rig.write(rig.sleeper, order=Order.LEAVE, state=State.LEAVING, parked=GIB)
    rig.rounds(5.0)
    rig.write(rig.sleeper, state=State.PARKED, parked=20 * GIB)
    rig.rounds(5.0)
    assert [notice for notice in rig.notices if notice[1]] == []


@pytest.mark.parametrize(("state", "parked", "withdrawn"), [
    (State.RESIDENT, 0, True), (State.RETURNING, GIB, True), (State.LEAVING, GIB, False), (State.PARKED, GIB, False),
])  # fmt: skip
def test_permit_of_the_daemon_before_is_withdrawn_unless_the_tenant_leaves(
    rig: Rig, state: State, parked: int, withdrawn: bool
) -> None:
    rig.write(rig.sleeper, state=state, parked=parked)
    rig.notices.clear()
    rig.start()
    rig.rounds(6)
    assert [notice[:2] for notice in rig.notices if notice[0] == "sleeper"] == [("sleeper", False)] * withdrawn


@pytest.mark.parametrize("by_hand", [True, False])
def test_tenant_is_ordered_to_leave_only_after_the_mover_knows(rig: Rig, by_hand: bool) -> None:
    rig.rounds(6)
    rig.hears = False
    if by_hand:
        assert rig.parking.request("sleeper", leave=True) is None
    else:
        rig.write(rig.online, room=10 * GIB)
    rig.rounds(3)
    assert rig.order == (Order.STAY, Why.NOTHING)
    rig.hears = True
    rig.rounds(1.2)
    assert rig.order == (Order.LEAVE, Why.NOTHING)
    assert rig.notices[-1] == ("sleeper", True, Order.STAY)


def test_restarted_mover_learns_which_tenants_leave(rig: Rig) -> None:
    rig.rounds(6)
    rig.write(rig.online, room=10 * GIB)
    rig.rounds(0.5)
    rig.notices.clear()
    cast(Any, rig.parking.mover.state).pid = 2
    rig.hears = False
    rig.rounds(0.5)
    rig.hears = True
    rig.rounds(0.5)
    assert [notice[:2] for notice in rig.notices] == [("sleeper", True)]
    rig.write(rig.sleeper, state=State.PARKED, parked=20 * GIB, moves=1)
    rig.write(rig.online, room=0)
    rig.rounds(0.5)
    cast(Any, rig.parking.mover.state).pid = 3
    rig.rounds(0.5)
    assert [notice[:2] for notice in rig.notices] == [("sleeper", True)] * 2


def test_mover_started_for_a_connection_learns_first_which_tenants_leave(rig: Rig) -> None:
    rig.rounds(6)
    rig.write(rig.online, room=10 * GIB)
    rig.rounds(0.5)
    rig.notices.clear()
    notices_before: list[int] = []
    mover = cast(Any, rig.parking.mover)
    mover.state, mover.serve = None, lambda connection, request: notices_before.append(len(rig.notices))
    ours, shims = socket.socketpair()
    with shims:
        rig.parking.hand_over(rig.sleeper, ours, 0, 1, 0)
        while not rig.parking._inbox.empty():
            rig.parking._take(rig.parking._inbox.get_nowait())
    assert notices_before == [1]
    assert rig.notices[0][:2] == ("sleeper", True)


def test_permit_stays_where_the_process_that_leaves_connects_to_a_new_daemon_after_another(rig: Rig) -> None:
    rig.rounds(6)
    rig.notices.clear()
    rig.write(rig.sleeper, slot=1, movable=GIB, state=State.LEAVING, order=Order.LEAVE)
    rig.start()
    rig.rounds(1)
    rig.sleeper.processes.add(Process("sleeper", 2, rig.sleeper.listener, -1, cast(Any, None), slot=1))
    rig.rounds(10)
    assert [notice for notice in rig.notices if notice[0] == "sleeper"] == []
    rig.write(rig.sleeper, slot=1, state=State.RESIDENT, order=Order.STAY)
    rig.rounds(0.5)
    assert [notice[:2] for notice in rig.notices if notice[0] == "sleeper"] == [("sleeper", False)]


def test_park_by_hand_waits_for_memory_that_is_on_its_way_back(rig: Rig) -> None:
    rig.write(rig.sleeper, order=Order.RETURN, state=State.RETURNING, parked=20 * GIB)
    rig.rounds(0.2)
    assert rig.parking.request("sleeper", leave=True) is None
    rig.rounds(0.5)
    assert rig.order[0] == Order.RETURN
    rig.write(rig.sleeper, state=State.RESIDENT, parked=0)
    rig.rounds(0.2)
    there = rig.parking.residency("sleeper", CARD)
    assert there is not None
    assert there.where is Where.RESIDENT
    assert rig.order[0] == Order.LEAVE


def test_memory_that_has_just_returned_may_leave_again(rig: Rig) -> None:
    """The pool's state is a second old: by it, all of the pool is taken."""
    rig.parking.mover.state = cast(Any, SimpleNamespace(free=4 * GIB, parked=20 * GIB, pid=1))
    rig.rounds(0.2)
    assert rig.parking.request("sleeper", leave=True) is None
    rig.rounds(0.2)
    assert rig.order == (Order.LEAVE, Why.NOTHING)


def test_allocation_is_not_refused_before_others_can_have_connected(rig: Rig) -> None:
    """A new daemon knows the processes of the one before it as they connect: any of them may make room."""
    sleeper = rig.tenancies.pop("sleeper")
    rig.write(rig.online, room=10 * GIB)
    rig.rounds(4)
    assert rig.online.page.move(0, 0).room == 10 * GIB
    rig.tenancies["sleeper"] = sleeper
    rig.rounds(0.2)
    assert rig.order == (Order.LEAVE, Why.NOTHING)
    assert rig.online.page.move(0, 0).room == 10 * GIB


def test_park_by_hand_is_not_forgotten_where_the_tenant_is_not_to_be_asked_yet(rig: Rig) -> None:
    rig.rounds(0.2)
    assert rig.parking.request("sleeper", leave=True) is None
    rig.parking._sightings.seen["sleeper", CARD].retry_at = rig.now + 2  # a try of a round before failed meanwhile
    rig.rounds(1)
    assert rig.order[0] == Order.STAY
    rig.rounds(2)
    assert rig.order == (Order.LEAVE, Why.NOTHING)


def test_wake_withdraws_an_order_to_leave_that_was_not_heard(rig: Rig) -> None:
    rig.rounds(0.2)
    assert rig.parking.request("sleeper", leave=True) is None
    rig.rounds(0.2)
    assert rig.order[0] == Order.LEAVE
    assert rig.parking.request("sleeper", leave=False) is None
    rig.rounds(1)
    assert rig.order[0] == Order.STAY


# --- pages that lie ---------------------------------------------------------------------------------------------------


def flips(rig: Rig, liar: Tenancy, step: int) -> None:
    rig.write(liar, state=State.LEAVING if step % 20 < 10 else State.RESIDENT)


def leaves_for_ever(rig: Rig, liar: Tenancy, step: int) -> None:
    rig.write(liar, state=State.LEAVING, parked=step % 3 * MIB)


def returns_for_ever(rig: Rig, liar: Tenancy, step: int) -> None:
    rig.write(liar, state=State.RETURNING, parked=6 * GIB + step % 3 * MIB)


def leaves_and_returns(rig: Rig, liar: Tenancy, step: int) -> None:
    rig.write(liar, state=State.LEAVING if step % 20 < 10 else State.RETURNING, parked=step % 3 * GIB)


def fails_and_flips(rig: Rig, liar: Tenancy, step: int) -> None:
    rig.write(liar, state=State.LEAVING if step % 2 else State.RESIDENT, why=step // 2 % 8)


@pytest.mark.parametrize("lie", [flips, leaves_for_ever, returns_for_ever, leaves_and_returns, fails_and_flips])
def test_tenant_whose_page_lies_does_not_keep_another_from_making_room(
    rig: Rig, tmp_path: Path, lie: Callable[[Rig, Tenancy, int], None]
) -> None:
    """It would be the one to leave: it is the smaller."""
    liar = rig._tenancy(tmp_path, "liar", AppClass.OFFLINE, movable=8 * GIB)
    rig.rounds(70)  # what it claims is not what a daemon before us ordered
    rig.write(rig.online, room=10 * GIB)
    for step in range(round(ROOM_WAIT / 0.1)):
        lie(rig, liar, step)
        rig.rounds(0.1)
        if rig.order == (Order.LEAVE, Why.NOTHING):
            break
    assert rig.order == (Order.LEAVE, Why.NOTHING)


def test_tenant_that_claims_to_leave_unasked_is_paused_as_others_are(rig: Rig) -> None:
    drained = []
    rig.parking._loops[CARD].drain = lambda name, draining: drained.append(draining)  # type: ignore[method-assign]
    rig.rounds(70)
    for step in range(300):
        leaves_for_ever(rig, rig.sleeper, step)
        rig.rounds(0.1)
    assert not any(drained)
    there = rig.parking.residency("sleeper", CARD)
    assert there is not None
    assert there.where in (Where.RESIDENT, Where.PARKED)


def test_memory_that_a_page_claims_to_have_parked_takes_no_room_in_the_pool(rig: Rig, tmp_path: Path) -> None:
    rig.parking.mover.state = cast(Any, SimpleNamespace(free=40 * GIB, parked=0, pid=1))
    liar = rig._tenancy(tmp_path, "liar", AppClass.OFFLINE, movable=40 * GIB)
    rig.write(liar, state=State.PARKED, parked=40 * GIB)
    rig.rounds(5)
    assert rig.parking.request("sleeper", leave=True) is None
    rig.rounds(0.2)
    assert rig.order == (Order.LEAVE, Why.NOTHING)


def test_moves_that_a_page_claims_fill_no_log_and_its_figures_stay_small(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for step in range(1000):
        rig.write(rig.sleeper, state=State.PARKED if step % 2 else State.RESIDENT, parked=2**64 - 1)
        at = rig.sleeper.page._at(0, 0)
        rig.sleeper.page._write(at + OVERHEAD, struct.pack("<Q", 2**64 - 1))
        rig.rounds(0.1)
    assert len([line for line in caplog.records if line.msg.startswith("memory_")]) <= 120
    there = rig.parking.residency("sleeper", CARD)
    assert there is not None
    assert there.resident < 2**63


def test_memory_that_is_back_does_not_show_why_it_left(rig: Rig) -> None:
    rig.rounds(0.2)
    assert rig.parking.request("sleeper", leave=True) is None
    rig.rounds(0.2)
    rig.write(rig.sleeper, state=State.PARKED, parked=20 * GIB, moves=1)
    rig.rounds(0.2)
    shown = rig.parking.residency("sleeper", CARD)
    assert shown is not None
    assert (shown.where, shown.why) == (Where.PARKED, ParkReason.ASKED)
    rig.write(rig.sleeper, state=State.RESIDENT, parked=0, order=Order.RETURN)
    rig.rounds(0.2)
    shown = rig.parking.residency("sleeper", CARD)
    assert shown is not None
    assert (shown.where, shown.why) == (Where.RESIDENT, None)
