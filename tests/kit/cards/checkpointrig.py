"""One card with a tenant of two processes, whose memory leaves by the driver's checkpoint, in virtual time.

The page is real, and the test writes on it what shims would; the driver answers what the test says.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from aliquot.adapters.gpu.page import Order, Page, State, Stays
from aliquot.adapters.host.hostmemory import Room
from aliquot.model.claim import AppClass
from aliquot.model.residency import Residency
from aliquot.model.tenant import Allotment, SharingRules, Tenant
from aliquot.services.mover.checkpoint import Answer, ProcessState, What
from aliquot.services.runtime.elastic.checkpoints import Checkpoints
from aliquot.services.runtime.elastic.parking import Parking
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
        """Start the parking anew, as a daemon that starts does."""
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
        """The driver answers the last step with these states. None: it does not know the process."""
        answered = dict(zip(PIDS, states, strict=False))
        known = {pid: state for pid, state in answered.items() if state is not None}
        self.steps[-1].answer = Answer(known, refusal, code, lasting, [pid for pid in answered if pid not in known])
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
        """Ask the tenant to leave; both of its processes have halted."""
        assert self.parking.request("arrays", leave=True) is None
        self.rounds()
        assert self.orders == [Order.HALT, Order.HALT]
        self.states(State.HALTED, State.HALTED)
