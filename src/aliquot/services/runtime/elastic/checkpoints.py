"""Tenants that only the driver's checkpoint can move: whole processes, to their own host memory.

    resident -> halting   the shims move out what they can, and have every call wait
             -> taking    the driver takes the processes off the card (services/mover/checkpoint.py)
             -> away      until one of their calls, or somebody, asks for their return
             -> bringing  the driver brings them back
             -> coming    the shims bring back their part, and let the calls go on

What a page says and what the driver says of each process is all that is needed to go on: a daemon that finds halted
processes asks the driver, and either leaves them away or brings them back. Whatever fails ends in `bringing`, which is
tried until it succeeds: no process stays locked. Processes that run again by then do not wait for the others. Where the
driver was asked for nothing but states, all go on at once.

Only tenants that asked to be parked: a call that the shim does not hook waits in the driver until somebody wakes them.

`Checkpoints.view` shows such a tenant to parking.py as one whose memory moves like any other's. One thread, which holds
the arbiter's lock, except for `start`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from aliquot.adapters.gpu.page import Move, Order, State, Use
from aliquot.adapters.host.hostmemory import Room, room_of
from aliquot.model.residency import Way
from aliquot.model.tenant import Tenant
from aliquot.services.mover.checkpoint import OUT_OF_MEMORY, Answer, ProcessState, What
from aliquot.services.mover.checkpointer import Checkpointer, patience
from aliquot.services.mover.client import MoverClient
from aliquot.services.runtime.elastic.ability import Ability, Rooms, refusal_words
from aliquot.services.runtime.elastic.backoff import Backoff
from aliquot.services.runtime.elastic.moves import stays_of
from aliquot.services.runtime.elastic.stepping import Counted, Stepper, Steps
from aliquot.services.runtime.processes.registration import Tenancy
from aliquot.wording.parking import checkpoint_unasked_words, checkpoint_unstopped_words

_LOOK = 20.0  # seconds for the driver to say in which state processes are
_AGAIN = 2.0  # seconds until what must be done is tried again
_STOP = 30.0  # seconds for calls and work that are under way, and for room that others are about to give
_STOPPED = 600.0  # seconds until one is looked at again that did not obey: it is stopped, or its page lies

Key = tuple[str, str]  # tenant and card
log = logging.getLogger(__name__)


class Phase(Enum):
    """See the head of the file."""

    RESIDENT = auto()
    HALTING = auto()
    TAKING = auto()
    AWAY = auto()
    BRINGING = auto()
    COMING = auto()
    FINDING = auto()  # halted when we came: the driver is asked


_SHOWN = {
    Phase.RESIDENT: State.RESIDENT,  # its page claims to be halted, and it was looked at a moment ago
    Phase.HALTING: State.LEAVING, Phase.TAKING: State.LEAVING, Phase.AWAY: State.PARKED,
    Phase.FINDING: State.RETURNING, Phase.BRINGING: State.RETURNING, Phase.COMING: State.RETURNING,
}  # fmt: skip
_GONE = frozenset({Phase.AWAY, Phase.FINDING, Phase.BRINGING})
_RUN = (ProcessState.RUNNING, ProcessState.FAILED)


@dataclass(slots=True)
class _Past:
    """Moves that have ended."""

    moves: int = 0
    out: float | None = None  # seconds that the last one took
    back: float | None = None


@dataclass(slots=True)
class _Record:
    """One tenant on one card."""

    phase: Phase = Phase.RESIDENT
    pids: list[int] = field(default_factory=list)
    size: int = 0  # bytes that the driver moves
    eligible: bool = False  # it would leave in this way, by what was last seen of it
    undecided: bool = False  # whether it would is known in a moment
    ability: Ability = field(default_factory=Ability)
    step: Counted | None = None
    began: float = 0.0  # its move
    since: float = 0.0  # in HALTING and COMING
    ordered: set[int] = field(default_factory=set)  # processes that were ordered to halt
    undo: bool = False  # it could not be taken: it is brought back without being asked for
    tries: Backoff = field(default_factory=lambda: Backoff(_AGAIN, 30.0, soon=4))  # to bring it back, or to find it
    finds: Backoff = field(default_factory=lambda: Backoff(_AGAIN, 600.0))  # halted: a page can say so at any time
    past: _Past = field(default_factory=_Past)

    def successor(self) -> _Record:
        """Of the tenant's next processes: they do not begin anew what is done less and less often."""
        return _Record(finds=self.finds, ability=Ability(looks=self.ability.looks))


class Checkpoints:
    """See the head of the file. `stepper` None: the driver is never asked."""

    def __init__(self, stepper: Stepper | None, room: Rooms) -> None:
        self._steps, self._room = None if stepper is None else Steps(stepper), room
        self._records: dict[Key, _Record] = {}
        self._former: dict[Key, _Record] = {}  # of tenants without a process

    # --- what parking.py sees -----------------------------------------------------------------------------------

    def view(
        self, tenancy: Tenancy, uuid: str, moves: list[Move], uses: list[Use], now: float, *, may_leave: bool
    ) -> list[Move]:
        """Goes on with what is under way, and shows the tenant's moves with what the driver does for it."""
        if self._steps is None or not _has_asked(tenancy.tenant):
            return moves
        key = tenancy.tenant.id, uuid
        record = self._records.get(key)
        halted = any(move.state == State.HALTED for move in moves)
        if record is None:
            if not halted and not (may_leave and _needs_driver(moves, uses)):
                return moves
            record = self._records[key] = self._former.pop(key, _Record())
        record.pids = sorted(process.pid for process in tenancy.processes if process.slot is not None)
        if record.phase is Phase.RESIDENT:
            record.size = min(_rest(moves, uses), _most(tenancy, uuid))
            if halted and record.finds.is_due(now):
                record.finds.note(now)
                if any(move.order in (Order.AWAY, Order.RETURN) for move in moves):
                    self._begin(key, record, Phase.FINDING, What.LOOK, now)
                else:  # the driver was not asked for anything yet
                    _return(tenancy, uuid, record, now)
        else:
            self._go_on(tenancy, uuid, record, moves, now)
        if record.phase is Phase.RESIDENT:
            needed = may_leave and _needs_driver(moves, uses)
            can = needed and self._can(key, record, now)
            record.undecided = can is None and not record.eligible
            record.eligible = record.eligible if can is None else can
            if not record.eligible:
                return _counted(record, moves)
        return _shown(record, moves)

    def is_undecided(self, key: Key) -> bool:
        """Whether it is not known yet if the driver can take it: to have it leave otherwise would be too soon."""
        record = self._records.get(key)
        return record is not None and record.phase is Phase.RESIDENT and record.undecided

    def size(self, key: Key) -> int:
        """Bytes that the driver moves; 0: it moves nothing of this tenant."""
        record = self._records.get(key)
        return 0 if record is None or self._way(record) is None else record.size

    def is_away(self, key: Key) -> bool:
        """Whether these are off the card."""
        record = self._records.get(key)
        return record is not None and record.phase in _GONE

    def is_moving(self, key: Key) -> bool:
        """Whether the driver moves it now: no progress can be seen, and there is a deadline."""
        record = self._records.get(key)
        return record is not None and record.step is not None and record.phase is not Phase.RESIDENT

    def way(self, key: Key) -> Way | None:
        """CHECKPOINT, or None: not this way."""
        record = self._records.get(key)
        return None if record is None else self._way(record)

    def detail(self, tenant: Tenant, uuid: str) -> str | None:
        """Why not this way, where that is known."""
        if self._steps is not None and not _has_asked(tenant):
            return checkpoint_unasked_words()
        record = self._records.get((tenant.id, uuid))
        return None if record is None or self._way(record) is not None else record.ability.why_not

    def forgive(self, tenant: str) -> bool:
        """Try again at once what the driver refused before. False: there is nothing to try."""
        resident = [
            record for (name, _), record in self._records.items() if name == tenant and record.phase is Phase.RESIDENT
        ]
        forgiven = [record.ability.forgive() for record in resident]
        return any(forgiven)

    def forget(self, key: Key) -> None:
        """It has no process any more."""
        record = self._records.pop(key, None)
        if record is not None and self._steps is not None:
            self._steps.abandon(record.step)
            self._former[key] = record.successor()

    def tidy(self, tenants: Collection[str], now: float) -> None:
        """Forget all tenants but these, and end abandoned steps whose time is over."""
        self._former = {key: record for key, record in self._former.items() if key[0] in tenants}
        if self._steps is not None:
            self._steps.reap(now)

    @staticmethod
    def _way(record: _Record) -> Way | None:
        return Way.CHECKPOINT if record.phase is not Phase.RESIDENT or record.eligible else None

    def start(self) -> None:
        """Start the driver's steps that were decided upon, and look at the host's memory for tenants that may leave.
        The lock is not held: this starts processes and reads files."""
        if self._steps is not None:
            self._steps.start()
            for record in self._records.values():
                record.ability.look_at_room(self._room)

    # --- orders -------------------------------------------------------------------------------------------------

    def leave(self, tenancy: Tenancy, uuid: str, now: float) -> bool:
        """Begin. False: it does not go this way."""
        record = self._records.get((tenancy.tenant.id, uuid))
        if record is None or self._way(record) is None:
            return False
        if record.phase is Phase.RESIDENT:
            record.phase, record.began, record.since, record.undo = Phase.HALTING, now, now, False
            record.ordered = set(record.pids)
            _order(tenancy, uuid, Order.HALT, record.ordered)
        return True

    def come(self, tenancy: Tenancy, uuid: str, now: float) -> bool:
        """Begin to return. False: it is not away this way."""
        record = self._records.get((tenancy.tenant.id, uuid))
        if record is None or record.phase is Phase.RESIDENT:
            return False
        if record.phase is Phase.AWAY and record.tries.is_due(now):
            record.began = now
            self._begin((tenancy.tenant.id, uuid), record, Phase.BRINGING, What.BRING, now)
        return True

    # --- going on -----------------------------------------------------------------------------------------------

    def _begin(self, key: Key, record: _Record, phase: Phase, what: What, now: float) -> None:
        """Where too many others go on, the step is None until there is a place for it."""
        assert self._steps is not None
        self._steps.abandon(record.step)
        seconds = _LOOK if what is What.LOOK else patience(record.size)
        record.phase, record.step = phase, self._steps.begin(key[0], what, record.pids, now + seconds)

    def _go_on(self, tenancy: Tenancy, uuid: str, record: _Record, moves: list[Move], now: float) -> None:
        if record.phase is Phase.HALTING:
            self._halt(tenancy, uuid, record, moves, now)
        elif record.phase is Phase.COMING:
            if all(move.state in (State.RESIDENT, State.PARKED, State.LOST) for move in moves):
                record.phase, record.past.back = Phase.RESIDENT, now - record.began
            elif _is_late(tenancy, uuid, record, moves, now):  # one was stopped: it obeys when it runs again
                record.phase, record.finds.due = Phase.RESIDENT, now + _STOPPED
        elif record.step is not None:
            answer = record.step.poll(now)
            if answer is not None:
                record.step = None
                self._ended(tenancy, uuid, record, answer, now)
        elif (record.phase is not Phase.AWAY or record.undo) and record.tries.is_due(now):
            found = record.phase is Phase.FINDING
            phase, what = (Phase.FINDING, What.LOOK) if found else (Phase.BRINGING, What.BRING)
            self._begin((tenancy.tenant.id, uuid), record, phase, what, now)

    def _halt(self, tenancy: Tenancy, uuid: str, record: _Record, moves: list[Move], now: float) -> None:
        """Once all processes have halted, the driver takes them."""
        joined = set(record.pids) - record.ordered
        if joined and not _is_late(tenancy, uuid, record, moves, now):
            record.ordered |= joined
            _order(tenancy, uuid, Order.HALT, joined)
            return
        unheard = any(move.order != Order.HALT or move.state == State.LOST for move in moves)
        if unheard or _is_late(tenancy, uuid, record, moves, now):  # none leaves
            record.ability.refuse(checkpoint_unstopped_words(), now)
            _return(tenancy, uuid, record, now)
        elif any(move.why for move in moves):  # one cannot now
            _return(tenancy, uuid, record, now)
        elif all(move.state == State.HALTED for move in moves):
            assert self._steps is not None
            if not self._steps.has_place(tenancy.tenant.id, What.TAKE):
                return
            _order(tenancy, uuid, Order.AWAY)
            at = tenancy.page.index[uuid]
            if all(tenancy.page.move(slot, at).state == State.HALTED for slot in _slots(tenancy)):
                self._begin((tenancy.tenant.id, uuid), record, Phase.TAKING, What.TAKE, now)
            else:  # it had given us up a moment before
                _return(tenancy, uuid, record, now)

    def _ended(self, tenancy: Tenancy, uuid: str, record: _Record, answer: Answer, now: float) -> None:
        key = tenancy.tenant.id, uuid
        data = {"tenant": tenancy.tenant.id, "card": uuid, "bytes": record.size, "why": answer.refusal}
        if record.phase is Phase.TAKING:
            if answer.are_all(ProcessState.CHECKPOINTED):
                record.phase, record.past.out = Phase.AWAY, now - record.began
                record.past.moves += 1
                record.ability.succeed()
                return
            log.warning("checkpoint_refused", extra={"data": data})
            record.ability.refuse(refusal_words(answer), now, lasting=answer.lasting)
            if answer.untouched:
                _return(tenancy, uuid, record, now)
                return
            record.undo = True
            self._begin(key, record, Phase.BRINGING, What.BRING, now)
        elif record.phase is Phase.FINDING:
            if answer.refusal is not None and not answer.states:
                record.tries.note(now)
                return
            record.tries.reset()
            if answer.are_all(ProcessState.CHECKPOINTED):
                record.phase, record.ability.can = Phase.AWAY, True
            else:
                self._begin(key, record, Phase.BRINGING, What.BRING, now)
        elif record.phase is Phase.BRINGING:
            if answer.are_all(*_RUN):
                if ProcessState.FAILED in answer.states.values():  # its calls get the driver's errors from now on
                    log.error("checkpoint_failed", extra={"data": data})
                    record.ability.refuse(refusal_words(answer), now, lasting=answer.lasting)
                _return(tenancy, uuid, record, now)
                record.past.back = now - record.began
                record.tries.reset()
                return
            log.warning("checkpoint_not_restored", extra={"data": data})
            _order(tenancy, uuid, Order.RETURN, [pid for pid, state in answer.states.items() if state in _RUN])
            record.phase = Phase.AWAY
            # Without room it waits like others until there is some; anything else is tried again at once.
            if answer.code == OUT_OF_MEMORY:
                record.tries.due = now + _AGAIN
            else:
                record.undo = True
                record.tries.note(now)

    def _can(self, key: Key, record: _Record, now: float) -> bool | None:
        """Whether the driver can take it; None: not known yet. Asks it once, and again after a refusal."""
        assert self._steps is not None
        ability = record.ability
        if record.step is not None:
            answer = record.step.poll(now)
            if answer is None:
                return None
            record.step = None
            ability.note(answer, now)
        ability.ask_for_room(record.pids, now)
        if ability.is_refused(now):
            return False
        if not ability.can:
            if ability.looks.is_due(now) and self._steps.has_place(key[0], What.LOOK):
                ability.looks.note(now)
                record.step = self._steps.begin(key[0], What.LOOK, record.pids, now + _LOOK)
                return None
            return False
        return ability.has_room(record.size, record.pids, now)


def checkpoints_beside(mover: MoverClient, *, simulated: bool) -> Checkpoints:
    """Those of a daemon that has this mover. Simulated memory has hardly any contents, so it needs no room."""
    return Checkpoints(Checkpointer(mover), (lambda _pid: Room(1 << 62, False)) if simulated else room_of)


def _has_asked(tenant: Tenant) -> bool:
    return tenant.park_after is not None


def _slots(tenancy: Tenancy) -> list[int]:
    return [process.slot for process in tenancy.processes if process.slot is not None]


def _order(tenancy: Tenancy, uuid: str, order: Order, pids: Collection[int] | None = None) -> None:
    """Give the order to these processes; None: to all."""
    at = tenancy.page.index[uuid]
    for process in tenancy.processes:
        if process.slot is not None and (pids is None or process.pid in pids):
            tenancy.page.order(process.slot, at, order)


def _return(tenancy: Tenancy, uuid: str, record: _Record, now: float) -> None:
    _order(tenancy, uuid, Order.RETURN)
    record.phase, record.since = Phase.COMING, now


def _is_late(tenancy: Tenancy, uuid: str, record: _Record, moves: list[Move], now: float) -> bool:
    """Whether the shims had the time for their part."""
    movable = min(sum(move.movable for move in moves), _most(tenancy, uuid))
    return now - record.since > _STOP + patience(movable)


def _most(tenancy: Tenancy, uuid: str) -> int:
    """Bytes that it can have there, whatever its page says."""
    limit = next((one.memory_bytes for one in tenancy.tenant.allotments if one.uuid == uuid), None)
    return 1 << 40 if limit is None else limit * 2


def _rest(moves: list[Move], uses: list[Use]) -> int:
    """Bytes that the shims cannot move, with the contexts, which the driver takes as well."""
    memory, movable = sum(use.memory for use in uses), sum(move.movable for move in moves)
    return max(0, memory - movable) + sum(use.overhead for use in uses)


def _needs_driver(moves: list[Move], uses: list[Use]) -> bool:
    """Whether most of its memory cannot be moved otherwise."""
    memory, movable = sum(use.memory for use in uses), sum(move.movable for move in moves)
    return stays_of(moves) is not None and memory - movable > movable


def _counted(record: _Record, moves: list[Move]) -> list[Move]:
    """The driver's moves as if they were the first process's."""
    most = max(move.moves for move in moves)
    return [replace(moves[0], moves=most + record.past.moves), *moves[1:]]


def _shown(record: _Record, moves: list[Move]) -> list[Move]:
    """The driver's part as if it were the first process's."""
    moves = _counted(record, moves)
    shown = [replace(move, state=_SHOWN[record.phase]) if move.state == State.HALTED else move for move in moves]
    gone = record.size if record.phase in _GONE else 0
    first = shown[0]
    shown[0] = replace(
        first,
        movable=first.movable + record.size,
        parked=first.parked + gone,
        out_ns=first.out_ns if record.past.out is None else round(record.past.out * 1e9),
        in_ns=first.in_ns if record.past.back is None else round(record.past.back * 1e9),
    )
    return shown
