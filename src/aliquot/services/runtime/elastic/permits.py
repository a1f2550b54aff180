"""Tells the mover whose memory was ordered to leave: it takes no other. A tenant's page cannot tell: it is the tenant's
own."""

from __future__ import annotations

from collections.abc import Mapping

from aliquot.model.residency import Where
from aliquot.services.mover.client import MoverClient
from aliquot.services.mover.control import Leave
from aliquot.services.runtime.elastic.sightings import Key, Sighting


class Permits:
    """One thread, without the arbiter's lock: the mover is waited for."""

    def __init__(self, mover: MoverClient) -> None:
        self._mover = mover
        self._known: set[Key] = set()
        self._given: set[Key] = set()  # as far as we know

    def give(self, key: Key) -> None:
        """It will be ordered to leave. The mover may be another one than the last time."""
        self._mover.leave(Leave(*key, permitted=True))
        self._given.add(key)

    def withdraw(self, seen: Mapping[Key, Sighting]) -> None:
        """From all that do not leave any more. Whoever is new here may have a permit of the daemon before us."""
        self._given |= seen.keys() - self._known
        self._known = set(seen)
        if self._mover.state is None:  # there is nobody who would take anything
            return
        for key in [key for key in self._given if not _leaves(seen.get(key))]:
            if not self._mover.leave(Leave(*key, permitted=False)):
                return
            self._given.discard(key)


def _leaves(seen: Sighting | None) -> bool:
    """Whether its order to leave stands. One that is parked has left, and may have more that follows."""
    if seen is None or seen.errand.leave is not None:
        return seen is not None and seen.errand.leave is True
    return seen.where is Where.PARKED
