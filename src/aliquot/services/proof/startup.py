"""Tries the control of cards while they are idle, when the daemon or the agent starts or later: once for each model of
card, driver and boot. A thread of its own, which ends when nothing is left to try.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from aliquot.adapters.gpu.nvml import Nvml, NvmlError
from aliquot.adapters.host.hostmemory import host_memory_mib
from aliquot.adapters.storage.folders import remove_folder
from aliquot.adapters.storage.verdicts import Verdicts
from aliquot.model.cardstate.control import FORCED, TRUSTED, CardControl, ControlLevel, ControlReason
from aliquot.model.device import Card
from aliquot.services.proof.contest import (
    PREFIX,
    REFUSED,
    Contest,
    DisturbedContestError,
    Found,
    InterruptedContestError,
)
from aliquot.services.runtime.cards.work import CardWork

_FILE = "control.json"
_IDLE = 1.0  # seconds without work of a tenant that is there
_LOOK = 0.25  # seconds between two looks whether a card is idle
_SOONEST, _LATEST = 1.0, 60.0  # seconds until the next trial after one without a verdict: each is twice as late
_LEAST_MIB = 1000  # a process with a context has up to some 300 MiB; a container beyond its limit is ended
# Bytes of a card with processes of others that must be free: each of our contexts has up to 0.9 GB. Half of a small
# card, whose contexts are smaller and whose others may be a desktop, is enough.
_ROOM = 4 << 30
_MOST_UNCLEAR = 5  # trials of a card without a verdict, not by a tenant; after these none until the next start
_MOST_INTERRUPTED = 5  # trials that had no result: the machine may be too busy, as after a boot. After these they ...
_SELDOM = 600.0  # ... come in so many seconds
_REFUSALS = 2  # in a row, until one counts
_EXCLUSIVE = CardControl(ControlLevel.UNPROVEN, ControlReason.EXCLUSIVE)

log = logging.getLogger(__name__)


class Mode(StrEnum):
    """Settings of `--control`."""

    AUTO = "auto"  # the driver's control, tried on an idle card with contexts of our own
    TRUST = "trust"  # the driver's control, never tried
    GATE = "gate"


class ControlPlan(NamedTuple):
    """What the arbiter begins with."""

    controls: Mapping[str, CardControl]
    proof: StartupProof | None


def plan_control(
    mode: Mode, cards: Sequence[Card], nvml: Nvml, *, state: Path, run: Path, shim: str, simulated: bool
) -> ControlPlan:
    """`state` outlives a boot, `run` holds sockets."""
    for left in run.glob(f"{PREFIX}*"):  # of a daemon that was killed during a trial
        remove_folder(left)
    if mode is Mode.GATE:
        return ControlPlan({card.uuid: FORCED for card in cards}, None)
    if mode is Mode.TRUST:
        return ControlPlan({card.uuid: TRUSTED for card in cards}, None)
    try:
        driver = nvml.driver()
    except NvmlError:
        driver = "unknown"
    proof = StartupProof(cards, nvml, Verdicts(state / _FILE, driver), run, shim, simulated=simulated)
    return ControlPlan(proof.known(), proof)


class Cards(Protocol):
    """The arbiter, as far as it is needed here. Any thread."""

    def work(self, uuid: str) -> CardWork:
        """What the tenants of the card did on it so far."""

    def set_control(self, uuid: str, control: CardControl) -> None:
        """What is known of the card from now on."""

    def controls(self) -> Mapping[str, CardControl]: ...


@dataclass(slots=True)
class _Trials:
    """The trials of one card."""

    due: float = 0.0  # no sooner than that
    delay: float = _SOONEST
    unclear: int = 0  # without a verdict, for reasons that are not a tenant's
    interrupted: int = 0
    refused: int = 0  # in a row
    decided: bool = False

    def postpone(self, now: float) -> None:
        self.due, self.delay = now + self.delay, min(_LATEST, 2 * self.delay)


class StartupProof:
    """See the head of the file. `own` may be read by any thread."""

    def __init__(
        self,
        cards: Sequence[Card],
        nvml: Nvml,
        verdicts: Verdicts,
        folder: Path,
        shim: str,
        *,
        simulated: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cards = [card for card in cards if card.healthy and not card.withheld]
        self._nvml, self._verdicts, self._folder, self._shim = nvml, verdicts, folder, shim
        self._simulated, self._clock = simulated, clock
        self._contest: Contest | None = None
        self._quiet: dict[str, tuple[CardWork, float]] = {}  # what was done so far, and since when there was no more
        self._trials = {card.uuid: _Trials() for card in self._cards}

    def known(self) -> dict[str, CardControl]:
        """What an earlier daemon found out, by card."""
        found = {card.uuid: self._verdicts.of(card.model) for card in self._cards}
        return {uuid: control for uuid, control in found.items() if control is not None}

    @property
    def own(self) -> frozenset[int]:
        """Processes of ours on the cards."""
        contest = self._contest
        return frozenset() if contest is None else contest.pids

    def run(self, cards: Cards, stopping: threading.Event) -> None:
        """Try the cards until everything is known, or until `stopping` is set."""
        if not self._simulated and host_memory_mib() < _LEAST_MIB:
            for card in self._untried(cards):
                cards.set_control(card.uuid, CardControl(ControlLevel.UNPROVEN, ControlReason.NO_MEMORY))
            return
        while not stopping.is_set() and (left := self._untried(cards)):
            due = (card for card in left if self._clock() >= self._trials[card.uuid].due)
            idle = next((card for card in due if self._is_idle(cards, card)), None)
            if idle is None:
                stopping.wait(_LOOK)
            else:
                self._try(cards, idle, stopping)

    def _untried(self, cards: Cards) -> list[Card]:
        """Also where the driver refuses control of a tenant's context: that may be the tenant's doing."""
        controls = cards.controls()
        return [
            card
            for card in self._cards
            if not (trials := self._trials[card.uuid]).decided
            and trials.unclear < _MOST_UNCLEAR
            and (controls[card.uuid].level is ControlLevel.UNPROVEN or controls[card.uuid] == REFUSED)
        ]

    def _is_idle(self, cards: Cards, card: Card) -> bool:
        """No tenant is on it, or none has had work for a while."""
        work, now = cards.work(card.uuid), self._clock()
        before, since = self._quiet.get(card.uuid, (None, now))
        if work.busy or work != before:
            self._quiet[card.uuid] = (work, now)
            if work.busy or work.pids:
                return False
        elif work.pids and now - since < _IDLE:
            return False
        return self._strangers_rest(card, work.pids)

    def _strangers_rest(self, card: Card, known: frozenset[int]) -> bool:
        """Whether processes that are not tenants leave the card alone too, and would not miss the memory of a trial:
        another device plugin's Pod may have counted on all of it."""
        try:
            strangers = self._nvml.processes(card.uuid).keys() - known
            if not strangers:
                return True
            used, total = self._nvml.memory(card.uuid)
            has_room = total == 0 or total - used >= min(_ROOM, total // 2)  # 0: the driver does not know
            return self._nvml.utilisation(card.uuid) == 0 and has_room
        except NvmlError:
            return False

    def _try(self, cards: Cards, card: Card, stopping: threading.Event) -> None:
        trials = self._trials[card.uuid]
        if self._is_exclusive(card):
            if cards.controls()[card.uuid] != _EXCLUSIVE:
                cards.set_control(card.uuid, _EXCLUSIVE)
            trials.postpone(self._clock())  # its owner may change that
            return
        before = cards.work(card.uuid)
        self._contest = Contest(
            card.uuid,
            self._folder,
            self._shim,
            simulated=self._simulated,
            is_free=lambda: not stopping.is_set() and cards.work(card.uuid) == before,
        )
        try:
            found = self._contest.run()
        except DisturbedContestError as error:  # the next comes when the card is idle again
            log.debug("control_trial_disturbed", extra={"data": {"card": card.uuid, "why": str(error)}})
        except InterruptedContestError as error:
            trials.refused = 0
            trials.interrupted += 1
            if trials.interrupted >= _MOST_INTERRUPTED:
                trials.delay = _SELDOM
            log.info("control_trial_interrupted", extra={"data": {"card": card.uuid, "why": str(error)}})
        except Exception:
            trials.unclear += 1
            log.exception("control_trial_failed", extra={"data": {"card": card.uuid}})
        else:
            self._log(card, found)
            self._conclude(cards, card, found.control)
        finally:
            self._contest = None
        trials.postpone(self._clock())

    def _is_exclusive(self, card: Card) -> bool:
        try:
            return self._nvml.is_exclusive(card.uuid)
        except NvmlError:
            return False

    def _conclude(self, cards: Cards, card: Card, control: CardControl) -> None:
        """A refusal is of this card, and must show twice in a row; every other verdict holds for the model."""
        trials = self._trials[card.uuid]
        trials.refused = trials.refused + 1 if control == REFUSED else 0
        if control == REFUSED:
            if trials.refused >= _REFUSALS:
                trials.decided = True
                cards.set_control(card.uuid, control)
            return
        if control.level is ControlLevel.UNPROVEN:
            trials.unclear += 1
            cards.set_control(card.uuid, control)
            return
        try:
            self._verdicts.set(card.model, control)
        except OSError as error:
            log.warning("control_not_stored", extra={"data": {"why": str(error)}})
        for same in self._cards:
            if same.model == card.model and not self._trials[same.uuid].decided:
                self._trials[same.uuid].decided = True
                cards.set_control(same.uuid, control)

    def _log(self, card: Card, found: Found) -> None:
        shares = [{stage.value: round(one.share, 3) for stage, one in stages.items()} for stages in found.passes]
        log.info(
            "control_tried",
            extra={
                "data": {
                    "card": card.uuid,
                    "model": card.model,
                    "level": found.control.level,
                    "reason": found.control.reason or "-",
                    "seconds": round(found.seconds, 3),
                    "shares_of_the_first": shares,
                }
            },
        )
