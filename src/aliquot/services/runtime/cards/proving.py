"""Whether the hardware's control of a card has an effect: watches for contention, runs the trial, applies the verdict.

Part of a card's loop, and used by its thread alone. The verdict itself is `arbiter/proof.py`. `card_work` is for the
trial on an idle card (services/proof): what tenants did there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aliquot.arbiter.card import CardArbiter
from aliquot.arbiter.proof import Phase, Trial
from aliquot.arbiter.roster import Reading
from aliquot.model.cardstate.control import CardControl, ControlLevel
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Level
from aliquot.services.runtime.processes.contextcontrol import set_gate
from aliquot.services.runtime.processes.contexts import Context
from aliquot.services.runtime.processes.registration import Tenancy

_CONTENTION = 0.2  # seconds that two contexts must have had work without a break
_SOONEST, _LATEST = 1.0, 60.0  # seconds until the next trial after one without a verdict: each is twice as late

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Streak:
    """Since when a context has had work at every reading but single ones."""

    since: float
    launches: int  # then
    missed: int = 0


class Proving:
    """`control` may be read by any thread."""

    def __init__(self, uuid: str, control: CardControl, *, tries: bool) -> None:
        self.control = control
        self._tries = tries  # tenants' own work is the sensor, and they may fool it: only where the owner asks for it
        self.trials = 0  # that ended with a verdict or without
        self._uuid = uuid
        self._streaks: dict[str, _Streak] = {}
        self._next = 0.0
        self._delay = _SOONEST
        self._gated: list[Context] = []

    @property
    def gate_only(self) -> bool:
        """Whether no context of the card may be controlled by the driver."""
        return self.control.level is ControlLevel.GATE

    def round(
        self, arbiter: CardArbiter, contexts: Mapping[str, Context], readings: Mapping[str, Reading], now: float
    ) -> bool:
        """After each reading. True: the card is to be held at the gate from now on."""
        if not self._tries or self.control.level is not ControlLevel.UNPROVEN:
            return False
        self._follow(readings, now)
        trial = arbiter.trial
        if trial is None:
            self._start(arbiter, contexts, now)
            return False
        if not {trial.sensor, *trial.others} <= self._streaks.keys() & contexts.keys():
            self._end(arbiter)
            self._postpone(now, "a tenant that takes part has no more work")
            return False
        before = trial.phase
        verdict = trial.step(readings[trial.sensor].launches, now)
        if verdict is None:
            if trial.phase is not before:
                self._open_gates()
            return False
        self._end(arbiter)
        self.trials += 1
        found = verdict.control()
        self.control = found
        if found.level is ControlLevel.UNPROVEN:
            self._postpone(now, "the figures say neither")
            return False
        log.info(
            "control_tried", extra={"data": {"card": self._uuid, "level": found.level, "reason": found.reason or "-"}}
        )
        return found.level is ControlLevel.GATE

    def stop(self, arbiter: CardArbiter) -> None:
        """End a trial without a verdict."""
        if arbiter.trial is not None:
            self._end(arbiter)

    def _follow(self, readings: Mapping[str, Reading], now: float) -> None:
        for name in [name for name in self._streaks if name not in readings]:
            del self._streaks[name]
        for name, reading in readings.items():
            streak = self._streaks.get(name)
            if reading.outstanding or reading.waiting:
                if streak is None:
                    self._streaks[name] = _Streak(now, reading.launches)
                else:
                    streak.missed = 0
            elif streak is not None:
                streak.missed += 1
                if streak.missed > 1:
                    del self._streaks[name]

    def _start(self, arbiter: CardArbiter, contexts: Mapping[str, Context], now: float) -> None:
        if now < self._next or len(self._streaks) < 2:
            return
        if arbiter.roster.of_class(AppClass.ONLINE):  # its latency is worth more than a verdict
            return
        roster = arbiter.roster.contexts
        rates: dict[str, float] = {}
        for name, streak in self._streaks.items():
            member = roster.get(name)
            if name not in contexts or member is None or member.settling:
                continue
            if contexts[name].level is not Level.HARDWARE or now - streak.since < _CONTENTION or member.reading is None:
                return  # a tenant is there that slices do not bind, or that has just begun
            rates[name] = (member.reading.launches - streak.launches) / (now - streak.since)
        if len(rates) < 2:
            return
        sensor = max(rates, key=lambda name: rates[name])
        trial = Trial(sensor, frozenset(rates) - {sensor})
        trial.begin(now)
        arbiter.trial = trial

    def close_gates(self, trial: Trial | None, contexts: Mapping[str, Context]) -> None:
        """Those of the others, if this is the phase for it. After the round's orders: a resume opens the gate."""
        if trial is not None and trial.phase is Phase.GATED and not self._gated:
            self._gated = [contexts[name] for name in trial.others if name in contexts]
            for context in self._gated:
                set_gate(context, closed=True)

    def _open_gates(self) -> None:
        gated, self._gated = self._gated, []
        for context in gated:
            set_gate(context, closed=False)

    def _end(self, arbiter: CardArbiter) -> None:
        self._open_gates()
        arbiter.trial = None
        arbiter.deadline = 0.0  # slices and pauses as the policy has them

    def _postpone(self, now: float, why: str) -> None:
        self._next, self._delay = now + self._delay, min(_LATEST, 2 * self._delay)
        log.debug("control_not_proven", extra={"data": {"card": self._uuid, "why": why}})


class CardWork(NamedTuple):
    """What tenants did on a card so far. Two that are equal: nothing happened in between."""

    pids: frozenset[int] = frozenset()
    busy: bool = False  # some process has work now
    launches: int = 0
    memory: int = 0  # bytes that they have allocated
    seen: int = 0  # channel groups that were registered


def card_work(tenancies: Iterable[Tenancy], uuid: str) -> CardWork:
    """Under the lock of the tenancies."""
    pids, busy, launches, memory, seen = set[int](), False, 0, 0, 0
    for tenancy in tenancies:
        at = tenancy.page.index.get(uuid)
        for process in tenancy.processes if at is not None else ():
            pids.add(process.pid)
            seen += process.seen
            if process.slot is not None and at is not None:
                use = tenancy.page.use(process.slot, at)
                busy |= bool(use.busy_since_ns or use.waiting)
                launches += use.launches
                memory += use.memory
    return CardWork(frozenset(pids), busy, launches, memory, seen)
