"""A thread that looks at the cards now and then, so that nobody who asks waits for NVML, which may hang."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aliquot.adapters.gpu.nvml import NvmlError
from aliquot.model.device import Card

_LOG = logging.getLogger("aliquot.lookout")
EVERY = 1.0


class Meter(Protocol):
    """The part of NVML that is used here."""

    def memory(self, uuid: str) -> tuple[int, int]: ...
    def utilisation(self, uuid: str) -> float | None: ...


class Lookout:
    """What was last seen of each card, by uuid; a card that does not answer is not in it."""

    def __init__(self, cards: Sequence[Card], nvml: Meter, *, every: float = EVERY) -> None:
        self._every = every
        self._cards = tuple(cards)
        self._nvml = nvml
        self._over = threading.Event()
        self._silent: set[str] = set()
        self.seen: Mapping[str, Mapping[str, Any]] = {}

    def start(self) -> None:
        """Begin, with a first look. The thread may hang in the driver: it is left behind when the process ends."""
        self._look()
        threading.Thread(target=self._run, name="lookout", daemon=True).start()

    def stop(self) -> None:
        """No more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._every):
            self._look()

    def _look(self) -> None:
        seen = {}
        for card in self._cards:
            try:
                used, _ = self._nvml.memory(card.uuid)
                seen[card.uuid] = {"memory_used_bytes": used, "utilisation": self._nvml.utilisation(card.uuid)}
                self._silent.discard(card.uuid)
            except NvmlError as error:
                if card.uuid not in self._silent:  # said once
                    _LOG.warning("card %d does not answer: %s", card.index, error)
                self._silent.add(card.uuid)
        self.seen = seen
