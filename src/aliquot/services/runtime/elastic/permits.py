"""Tells the mover whose memory was ordered to leave: it takes no other. A tenant's page cannot tell: it is the tenant's
own."""

from __future__ import annotations

from collections.abc import Mapping

from aliquot.model.residency import Where
from aliquot.services.mover.client import MoverClient
from aliquot.services.mover.control import Leave
from aliquot.services.runtime.elastic.sightings import RECONNECTED, Key, Sighting


class Permits:
    """One thread, without the arbiter's lock: the mover is waited for. `began`: when the daemon did."""

    def __init__(self, mover: MoverClient, began: float) -> None:
        self._mover, self._began = mover, began
        self._told: int | None = None  # the mover's process that has all permits that are given
        self._known: set[Key] = set()
        self._given: set[Key] = set()  # as far as we know

    def give(self, key: Key) -> bool:
        """It will be ordered to leave. The mover may be another one than the last time. False: it did not hear."""
        if not self._mover.leave(Leave(*key, permitted=True)):
            return False
        self._given.add(key)
        return True

    def renew(self, seen: Mapping[Key, Sighting]) -> bool:
        """Give again what another mover than the present one was told: it would refuse those that are leaving. False:
        it did not hear all."""
        state = self._mover.state
        if self._told is None or (state is not None and state.pid == self._told):
            return True
        return all(self.give(key) for key in sorted(self._given) if _leaves(seen.get(key)))

    def withdraw(self, seen: Mapping[Key, Sighting], now: float) -> None:
        """From all that do not leave any more. Whoever is new here may have a permit of the daemon before us; of that
        one's tenants not all processes may have connected yet."""
        self._given |= seen.keys() - self._known
        self._known = set(seen)
        if self._mover.state is None or not self.renew(seen):  # there is nobody who would take anything
            return
        self._told = self._mover.state.pid
        if now - self._began < RECONNECTED:
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
