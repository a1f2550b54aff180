"""Which cards are healthy: from the driver's errors (Xids) as they happen, and from a check of each card every second.

Two threads, since NVML may hang: one checks, the other receives errors and notices when the first hangs. What takes a
card out and what brings it back is decided in model/cardstate/health.py.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from aliquot.adapters.gpu.nvml import NvmlError, Xid
from aliquot.model.cardstate.health import PATIENCE, Health, answered, hit, inventory, missed
from aliquot.model.device import Card

_EVERY = 1.0
_RELIST = 5  # checks until the cards are listed again: MIG mode may have been switched on or off
_HANGS = 10.0  # seconds without any answer that count as a missed check
_REST = 100  # errors to read when a watch ends
# Checks until NVML is reopened to find out whether a lost card was reset; each time twice as many, up to the second:
# while it is reopened the other cards' errors are not received.
_REOPEN, _SELDOM = 5, 80

log = logging.getLogger(__name__)


class Errors(Protocol):
    """What Nvml.watch returns."""

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

    `why` has the reason of each that is out, `xids` the error of each that an Xid took out.
    `ignored`: Xids that take no card out on this node, in addition to those that are the application's fault anyway.
    """

    def __init__(self, nvml: Driver, *, remembered: Sequence[Card] = (), ignored: Set[int] = frozenset()) -> None:
        self._nvml = nvml
        self._ignored = ignored
        self._lock = threading.Lock()  # guards what follows
        self._cards = {card.uuid: card for card in inventory(remembered, self._listed())}
        self._health = {uuid: _at_first(card) for uuid, card in self._cards.items()}
        self._checks = 0
        self._asking: tuple[str, float] | None = None  # the card that the check waits for, and since when
        self._over = threading.Event()
        self._listening = threading.Event()
        self._watch: Errors | None = None  # of the listening thread alone
        self._renew = threading.Event()  # the watch must be renewed ...
        self._reopen = threading.Event()  # ... after NVML was reopened
        self._dark, self._patience = 0, _REOPEN  # checks with a card lost since the last reopening, until the next
        self._threads = [
            threading.Thread(target=self._check_on, name="card-health", daemon=True),
            threading.Thread(target=self._listen, name="card-errors", daemon=True),
        ]
        self.cards: tuple[Card, ...] = ()
        self.why: Mapping[str, str] = {}
        self.xids: Mapping[str, int] = {}
        self._publish()

    def start(self) -> None:
        """Start. Errors that happen after this returned are received."""
        for thread in self._threads:
            thread.start()
        self._listening.wait(_EVERY)  # not for ever: NVML may hang

    def stop(self) -> None:
        """Stop. A thread that hangs in the driver is left behind."""
        self._over.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=3)

    # --- the thread that checks --------------------------------------------------------------------------------

    def _check_on(self) -> None:
        while not self._over.wait(_EVERY):
            try:
                self.check()
                if self._is_time_to_reopen():
                    self._reopen.set()
            except Exception:  # the next check must come
                log.exception("card_check_failed")

    def _is_time_to_reopen(self) -> bool:
        """Called after each check."""
        if not any(health.misses >= PATIENCE for health in self._health.values()):
            self._dark, self._patience = 0, _REOPEN
            return False
        self._dark += 1
        if self._dark < self._patience:
            return False
        self._dark, self._patience = 0, min(_SELDOM, 2 * self._patience)
        return True

    def check(self) -> None:
        """Ask each card once."""
        for uuid in self._cards:
            self._asking = (uuid, time.monotonic())
            try:
                self._nvml.memory(uuid)
            except NvmlError as error:
                self._update(uuid, partial(missed, why=_silence(error), lost=error.lost))
            else:
                self._update(uuid, answered)
            finally:
                self._asking = None
        self._checks += 1
        if self._checks % _RELIST == 0:
            self._read_modes()
        self._publish_changes()

    def _read_modes(self) -> None:
        """Read again which cards are withheld."""
        listed = {card.uuid: card.withheld for card in self._listed() if card.healthy}
        with self._lock:
            for uuid in listed.keys() & self._cards.keys():
                self._cards[uuid] = replace(self._cards[uuid], withheld=listed[uuid])

    # --- the thread that listens -------------------------------------------------------------------------------

    def _listen(self) -> None:
        logged = ""
        while not self._over.is_set():
            try:
                watch = self._up_to_date()
                self._listening.set()
                error = watch.wait(_EVERY)
                if error is not None:
                    self.record(error)
                logged = ""
            except NvmlError as trouble:
                if str(trouble) != logged:  # cards are still checked every second
                    log.warning("xid_watch_failed", extra={"data": {"why": str(trouble)}})
                logged = str(trouble)
                self._pause()
            except Exception:
                log.exception("xid_watch_failed")
                self._pause()
            self.notice_hang(time.monotonic())
        self._end(self._watch)

    def _pause(self) -> None:
        self._listening.set()
        self._end(self._watch)
        self._watch = None
        self._over.wait(_EVERY)

    def _up_to_date(self) -> Errors:
        """The watch, renewed where it must be. NVML is reopened here, where no watch can be open."""
        if self._reopen.is_set():
            self._reopen.clear()
            self._end(self._watch)
            self._watch = None
            self._nvml.reopen()
        former = self._watch
        if former is None or self._renew.is_set():
            self._renew.clear()
            self._watch = self._nvml.watch(tuple(self._cards))
            self._end(former)  # now, not before: an error in between is received twice, and not never
        assert self._watch is not None
        return self._watch

    def _end(self, watch: Errors | None) -> None:
        """Read the rest, and close it."""
        if watch is None:
            return
        with contextlib.suppress(NvmlError):
            for _ in range(_REST):
                if (error := watch.wait(0)) is None:
                    break
                self.record(error)
        watch.close()

    def record(self, error: Xid) -> None:
        """The driver reported an error."""
        log.warning("xid", extra={"data": {"card": error.uuid, "xid": error.number}})
        self._update(error.uuid, lambda health: hit(health, error.number, ignored=self._ignored))
        self._publish_changes()

    def notice_hang(self, now: float) -> None:
        """The check has waited for a card for too long."""
        asking = self._asking
        if asking is not None and now - asking[1] > _HANGS:
            self._update(asking[0], partial(missed, why="the driver hangs when asked about this card", lost=True))
            self._publish_changes()

    # --- both --------------------------------------------------------------------------------------------------

    def _listed(self) -> tuple[Card, ...]:
        try:
            return self._nvml.cards()
        except NvmlError as error:
            log.warning("cards_not_listed", extra={"data": {"why": str(error)}})
            return ()

    def _update(self, uuid: str, change: Callable[[Health], Health]) -> None:
        with self._lock:
            if uuid in self._health:
                self._health[uuid] = change(self._health[uuid])

    def _publish_changes(self) -> None:
        """Publish the cards, and log which went out and came back."""
        back = {card.uuid for card in self.cards if not card.healthy and not self._health[card.uuid].is_out}
        if back:
            self._renew.set()  # a lost card was not watched
            self._measure(back)
        before = (self.cards, self.why)
        with self._lock:
            self._publish()
            changed = before[0] != self.cards
        if not changed:
            return
        for card in self.cards:
            if card.uuid in self.why.keys() - before[1].keys():
                fields = {"card": card.index, "uuid": card.uuid, "why": self.why[card.uuid]}
                log.warning("card_out", extra={"data": fields})
            if card.uuid in before[1].keys() - self.why.keys():
                log.warning("card_back", extra={"data": {"card": card.index, "uuid": card.uuid}})

    def _measure(self, uuids: Set[str]) -> None:
        """Read the inventory of cards that answer again."""
        listed = self._listed()
        with self._lock:
            for card in listed:
                if card.uuid in uuids and card.healthy:
                    self._cards[card.uuid] = replace(card, index=self._cards[card.uuid].index)

    def _publish(self) -> None:
        health = self._health
        self.xids = {uuid: state.xid for uuid, state in health.items() if state.xid is not None}
        self.why = {uuid: state.why for uuid, state in health.items() if state.why is not None}
        self.cards = tuple(replace(card, healthy=not health[uuid].is_out) for uuid, card in self._cards.items())


def _at_first(card: Card) -> Health:
    return Health() if card.healthy else Health("the driver does not answer for this card", misses=PATIENCE)


def _silence(error: NvmlError) -> str:
    return f"the driver does not answer for this card: {error.reason}"
