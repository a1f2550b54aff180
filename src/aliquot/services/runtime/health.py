"""Which cards are well: the driver's errors (Xids) as they happen, and a look at each card every second.

Two threads, since NVML may hang: one looks, the other hears of errors and notices when the first hangs. What takes a
card out and what brings it back is decided in model/health.py.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Protocol

from aliquot.adapters.gpu.nvml import NvmlError, Xid
from aliquot.model.device import Card
from aliquot.model.health import PATIENCE, Health, answered, hit, inventory, missed

_EVERY = 1.0
_HANGS = 10.0  # seconds of no answer at all that count as none
_REST = 100  # errors that are heard of when a watch ends
# Looks until NVML is opened anew to find out whether a lost card was reset; each time twice as many, up to the second:
# while it is opened nothing is heard of the other cards' errors.
_REOPEN, _SELDOM = 5, 80

log = logging.getLogger(__name__)


class Errors(Protocol):
    """What Nvml.watch gives."""

    def wait(self, seconds: float) -> Xid | None: ...
    def close(self) -> None: ...


class Driver(Protocol):
    """The part of NVML that is used here."""

    def cards(self) -> tuple[Card, ...]: ...
    def memory(self, uuid: str) -> tuple[int, int]: ...
    def watch(self, uuids: Sequence[str]) -> Errors: ...
    def reopen(self) -> None: ...


class CardHealth:
    """The cards of this boot, `remembered` ones included, with `healthy` as they are now.

    `why` has the reason of each that is out.
    `ignored`: Xids that take no card out on this node, beside those that are the application's own anyway.
    """

    def __init__(self, nvml: Driver, *, remembered: Sequence[Card] = (), ignored: Set[int] = frozenset()) -> None:
        self._nvml = nvml
        self._ignored = ignored
        self._lock = threading.Lock()  # over what follows
        self._cards = {card.uuid: card for card in inventory(remembered, self._listed())}
        self._health = {uuid: _at_first(card) for uuid, card in self._cards.items()}
        self._asking: tuple[str, float] | None = None  # whom the look is waiting for, since when
        self._over = threading.Event()
        self._listening = threading.Event()
        self._watch: Errors | None = None  # the listening thread's own
        self._renew = threading.Event()  # the watch is to be made anew ...
        self._reopen = threading.Event()  # ... after NVML was opened anew
        self._dark, self._patience = (
            0,
            _REOPEN,
        )  # looks with a card out of reach since then, and how many until the next
        self._threads = [
            threading.Thread(target=self._look_on, name="card-health", daemon=True),
            threading.Thread(target=self._listen, name="card-errors", daemon=True),
        ]
        self.cards: tuple[Card, ...] = ()
        self.why: Mapping[str, str] = {}
        self._publish()

    def start(self) -> None:
        """Begin. What happens after this returned is heard of."""
        for thread in self._threads:
            thread.start()
        self._listening.wait(_EVERY)  # not for ever: NVML may hang

    def stop(self) -> None:
        """No more. A thread that hangs in the driver is left behind."""
        self._over.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=3)

    # --- the thread that looks ---------------------------------------------------------------------------------

    def _look_on(self) -> None:
        while not self._over.wait(_EVERY):
            try:
                self.look()
                if self._is_time_to_reopen():
                    self._reopen.set()
            except Exception:  # the next look must come
                log.exception("looking at the cards failed")

    def _is_time_to_reopen(self) -> bool:
        """Asked after each look."""
        if not any(each.misses >= PATIENCE for each in self._health.values()):
            self._dark, self._patience = 0, _REOPEN
            return False
        self._dark += 1
        if self._dark < self._patience:
            return False
        self._dark, self._patience = 0, min(_SELDOM, 2 * self._patience)
        return True

    def look(self) -> None:
        """One look at each card."""
        for uuid in self._cards:
            self._asking = (uuid, time.monotonic())
            try:
                self._nvml.memory(uuid)
            except NvmlError as error:
                self._turn(uuid, partial(missed, why=_silence(error), lost=error.lost))
            else:
                self._turn(uuid, answered)
            finally:
                self._asking = None
        self._settle()

    # --- the thread that listens -------------------------------------------------------------------------------

    def _listen(self) -> None:
        said = ""
        while not self._over.is_set():
            try:
                watch = self._up_to_date()
                self._listening.set()
                error = watch.wait(_EVERY)
                if error is not None:
                    self.heard(error)
                said = ""
            except NvmlError as trouble:
                if str(trouble) != said:
                    log.warning("errors of the cards cannot be heard of, only looked for: %s", trouble)
                said = str(trouble)
                self._pause()
            except Exception:
                log.exception("listening to the cards' errors failed")
                self._pause()
            self.notice_hang(time.monotonic())
        self._end(self._watch)

    def _pause(self) -> None:
        self._listening.set()
        self._end(self._watch)
        self._watch = None
        self._over.wait(_EVERY)

    def _up_to_date(self) -> Errors:
        """The watch, made anew where it must be. NVML is opened anew here, where it is known that no watch is open."""
        if self._reopen.is_set():
            self._reopen.clear()
            self._end(self._watch)
            self._watch = None
            self._nvml.reopen()
        former = self._watch
        if former is None or self._renew.is_set():
            self._renew.clear()
            self._watch = self._nvml.watch(tuple(self._cards))
            self._end(former)  # now, not before: what happens between is heard of twice, and not never
        assert self._watch is not None
        return self._watch

    def _end(self, watch: Errors | None) -> None:
        """Hear the rest, and close it."""
        if watch is None:
            return
        with contextlib.suppress(NvmlError):
            for _ in range(_REST):
                if (error := watch.wait(0)) is None:
                    break
                self.heard(error)
        watch.close()

    def heard(self, error: Xid) -> None:
        """The driver told of an error."""
        log.warning("card %s: Xid %d", error.uuid, error.number)
        self._turn(error.uuid, lambda health: hit(health, error.number, ignored=self._ignored))
        self._settle()

    def notice_hang(self, now: float) -> None:
        """The look waits for a card, and has for too long."""
        asking = self._asking
        if asking is not None and now - asking[1] > _HANGS:
            self._turn(asking[0], partial(missed, why="the driver hangs when it is asked for it", lost=True))
            self._settle()

    # --- both --------------------------------------------------------------------------------------------------

    def _listed(self) -> tuple[Card, ...]:
        try:
            return self._nvml.cards()
        except NvmlError as error:
            log.warning("the cards cannot be listed: %s", error)
            return ()

    def _turn(self, uuid: str, turn: Callable[[Health], Health]) -> None:
        with self._lock:
            if uuid in self._health:
                self._health[uuid] = turn(self._health[uuid])

    def _settle(self) -> None:
        """Tell what changed."""
        back = {card.uuid for card in self.cards if not card.healthy and not self._health[card.uuid].is_out}
        if back:
            self._renew.set()  # who was lost was not listened to
            self._measure(back)
        before = (self.cards, self.why)
        with self._lock:
            self._publish()
            changed = before[0] != self.cards
        if not changed:
            return
        for card in self.cards:
            if card.uuid in self.why.keys() - before[1].keys():
                log.warning("card %d (%s) is out: %s", card.index, card.uuid, self.why[card.uuid])
            if card.uuid in before[1].keys() - self.why.keys():
                log.warning("card %d (%s) is back", card.index, card.uuid)

    def _measure(self, uuids: Set[str]) -> None:
        """What those who did not answer before have to tell."""
        listed = self._listed()
        with self._lock:
            for card in listed:
                if card.uuid in uuids and card.healthy:
                    self._cards[card.uuid] = replace(card, index=self._cards[card.uuid].index)

    def _publish(self) -> None:
        health = self._health
        self.why = {uuid: each.why for uuid, each in health.items() if each.why is not None}
        self.cards = tuple(replace(card, healthy=not health[uuid].is_out) for uuid, card in self._cards.items())


def _at_first(card: Card) -> Health:
    return Health() if card.healthy else Health("the driver does not answer for it", misses=PATIENCE)


def _silence(error: NvmlError) -> str:
    return f"the driver does not answer for it: {error.reason}"
