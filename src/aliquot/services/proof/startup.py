"""Tries the control of cards while they are idle, when the daemon or the agent starts or later: once for each model of
card, driver and boot. A thread of its own, which ends when nothing is left to try.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from aliquot.adapters.gpu.nvml import Nvml, NvmlError
from aliquot.adapters.host.hostmemory import host_memory_mib
from aliquot.adapters.storage.verdicts import Verdicts
from aliquot.model.control import FORCED, TRUSTED, CardControl, ControlLevel, ControlReason
from aliquot.model.device import Card
from aliquot.services.proof.contest import Contest, Found, InterruptedContestError

_FILE = "control.json"
_IDLE = 1.0  # seconds without work of a tenant that is there
_LOOK = 0.25  # seconds between two looks whether a card is idle
_SOONEST, _LATEST = 1.0, 60.0  # seconds until the next trial after one without a verdict: each is twice as late
_LEAST_MIB = 1000  # a process with a context has up to some 300 MiB; a container beyond its limit is ended
_MOST_UNCLEAR = 5  # trials whose figures say neither; after these none follow until the next start

log = logging.getLogger(__name__)


class Mode(StrEnum):
    """Settings of `--control`."""

    AUTO = "auto"  # the driver's control, tried on an idle card with contexts of our own
    PROVE = "prove"  # ... and with tenants that compete, where no idle moment came before
    TRUST = "trust"  # the driver's control, never tried
    GATE = "gate"


class ControlPlan(NamedTuple):
    """What the arbiter begins with."""

    controls: Mapping[str, CardControl]
    tries_control: bool
    proof: StartupProof | None


def plan_control(
    mode: Mode, cards: Sequence[Card], nvml: Nvml, *, state: Path, run: Path, shim: str, simulated: bool
) -> ControlPlan:
    """`state` outlives a boot, `run` holds sockets."""
    if mode is Mode.GATE:
        return ControlPlan({card.uuid: FORCED for card in cards}, False, None)
    if mode is Mode.TRUST:
        return ControlPlan({card.uuid: TRUSTED for card in cards}, False, None)
    try:
        driver = nvml.driver()
    except NvmlError:
        driver = "unknown"
    proof = StartupProof(cards, nvml, Verdicts(state / _FILE, driver), run, shim, simulated=simulated)
    return ControlPlan(proof.known(), mode is Mode.PROVE, proof)


class Cards(Protocol):
    """The arbiter, as far as it is needed here. Any thread."""

    def work(self, uuid: str) -> tuple[frozenset[int], int, bool]:
        """The processes on the card, how much they have launched so far, and whether any has work now."""

    def set_control(self, uuid: str, control: CardControl) -> None:
        """What is known of the card from now on."""

    def controls(self) -> Mapping[str, CardControl]: ...


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
        self._quiet: dict[str, tuple[int, float]] = {}  # launches so far, and since when there were no more
        self._unclear = 0
        self._decided: set[str] = set()  # models

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
        """Until everything is known, or `stopping` is set."""
        if not self._simulated and host_memory_mib() < _LEAST_MIB:
            for card in self._untried(cards):
                cards.set_control(card.uuid, CardControl(ControlLevel.UNPROVEN, ControlReason.NO_MEMORY))
            return
        delay, due = _SOONEST, 0.0
        while not stopping.is_set() and (left := self._untried(cards)):
            idle = next((card for card in left if self._clock() >= due and self._is_idle(cards, card)), None)
            if idle is None:
                stopping.wait(_LOOK)
            elif not self._try(cards, idle, stopping):
                due, delay = self._clock() + delay, min(_LATEST, 2 * delay)
                if self._unclear >= _MOST_UNCLEAR:
                    return

    def _untried(self, cards: Cards) -> list[Card]:
        controls = cards.controls()
        return [
            card
            for card in self._cards
            if card.model not in self._decided and controls[card.uuid].level is ControlLevel.UNPROVEN
        ]

    def _is_idle(self, cards: Cards, card: Card) -> bool:
        """Nobody is on it, or nobody has had work for a while."""
        pids, launches, busy = cards.work(card.uuid)
        now = self._clock()
        before, since = self._quiet.get(card.uuid, (-1, now))
        if busy or launches != before:
            self._quiet[card.uuid] = (launches, now)
            if busy or pids:
                return False
        elif pids and now - since < _IDLE:
            return False
        return self._strangers_rest(card, pids)

    def _strangers_rest(self, card: Card, known: frozenset[int]) -> bool:
        """Whether processes that are not tenants leave the card alone too."""
        try:
            strangers = self._nvml.processes(card.uuid).keys() - known
            return not strangers or self._nvml.utilisation(card.uuid) == 0
        except NvmlError:
            return False

    def _try(self, cards: Cards, card: Card, stopping: threading.Event) -> bool:
        """Whether a verdict was found."""
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
        except InterruptedContestError as error:
            log.debug("control_trial_interrupted", extra={"data": {"card": card.uuid, "why": str(error)}})
            return False
        except Exception:  # the next trial must come
            log.exception("control_trial_failed", extra={"data": {"card": card.uuid}})
            return False
        finally:
            self._contest = None
        self._log(card, found)
        self._remember(cards, card.model, found.control)
        return found.control.level is not ControlLevel.UNPROVEN

    def _remember(self, cards: Cards, model: str, control: CardControl) -> None:
        if control.level is ControlLevel.UNPROVEN:
            self._unclear += 1
        else:
            self._decided.add(model)
        if model in self._decided and control.reason is not ControlReason.REFUSED:
            try:
                self._verdicts.set(model, control)
            except OSError as error:
                log.warning("control_not_stored", extra={"data": {"why": str(error)}})
        for same in self._cards:
            if same.model == model:
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
