"""Permits to leave: the mover takes memory only of tenants that the daemon ordered to leave. A tenant's page does not
prove that, because the tenant itself can write to it."""

from __future__ import annotations

from collections.abc import Mapping

from aliquot.model.residency import Where
from aliquot.services.mover.client import MoverClient
from aliquot.services.mover.control import Leave
from aliquot.services.runtime.elastic.sightings import RECONNECTED, Key, Sighting


class Permits:
    """For one thread without the arbiter's lock: calls wait for the mover. `began`: when the daemon started."""

    def __init__(self, mover: MoverClient, began: float) -> None:
        self._mover, self._began = mover, began
        self._holder: int | None = None  # pid of the mover that has all permits in `_given`
        self._known: set[Key] = set()
        self._given: set[Key] = set()  # as far as we know

    def give(self, key: Key) -> bool:
        """Before the order to leave. False: the mover did not answer."""
        if not self._mover.leave(Leave(*key, permitted=True)):
            return False
        self._given.add(key)
        return True

    def renew(self, seen: Mapping[Key, Sighting]) -> bool:
        """Give all permits to a mover that was started since: without them it refuses tenants that are leaving. False:
        it did not answer."""
        state = self._mover.state
        if self._holder is None or (state is not None and state.pid == self._holder):
            return True
        return all(self.give(key) for key in sorted(self._given) if _leaves(seen.get(key)))

    def withdraw(self, seen: Mapping[Key, Sighting], now: float) -> None:
        """From all tenants that no longer leave. A tenant that is new here may have a permit from the previous daemon,
        and not all of its processes may have connected yet."""
        self._given |= seen.keys() - self._known
        self._known = set(seen)
        if self._mover.state is None or not self.renew(seen):  # there is no mover, so nothing can be taken
            return
        self._holder = self._mover.state.pid
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
