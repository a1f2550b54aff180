"""A thread that samples memory and utilisation of the cards, so that no request waits for NVML, which may hang."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from aliquot.adapters.gpu.nvml import NvmlError
from aliquot.model.device import Card
from aliquot.model.status.machine import HardwareStatus
from aliquot.model.status.reading import CardReading
from aliquot.services.runtime.cards.trace import STEPS

EVERY = 1.0  # seconds

log = logging.getLogger(__name__)


class Driver(Protocol):
    """The part of NVML that is used here."""

    def memory(self, uuid: str) -> tuple[int, int]: ...
    def utilisation(self, uuid: str) -> float | None: ...
    def hardware(self, uuid: str) -> HardwareStatus | None: ...


class CardMeter:
    """`readings` has the last sample of each card, by uuid; a card that does not answer is not in it."""

    def __init__(self, cards: Sequence[Card], nvml: Driver, *, every: float = EVERY) -> None:
        self.readings: Mapping[str, CardReading] = {}
        self._every = every
        self._cards = tuple(cards)
        self._nvml = nvml
        self._stopping = threading.Event()
        self._silent: set[str] = set()

    def start(self) -> None:
        """Take a first sample and start. The thread may hang in the driver: it is left behind when the process ends."""
        self._sample()
        threading.Thread(target=self._run, name="meter", daemon=True).start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._every):
            self._sample()

    def _sample(self) -> None:
        readings, began = {}, time.monotonic()
        for card in self._cards:
            try:
                used, _ = self._nvml.memory(card.uuid)
                readings[card.uuid] = CardReading(
                    used, self._nvml.utilisation(card.uuid), self._nvml.hardware(card.uuid)
                )
                self._silent.discard(card.uuid)
            except NvmlError as error:
                if card.uuid not in self._silent:  # once per silence
                    log.warning("card_not_answering", extra={"data": {"card": card.index, "why": str(error)}})
                self._silent.add(card.uuid)
        self.readings = readings
        STEPS.add("meter", began, time.monotonic())
