"""What the kubelet asks, counted and timed on its way to the usher."""

from __future__ import annotations

from collections.abc import Callable

from aliquot.services.agent.deviceplugins import Allocation, Desk, Refused
from aliquot.services.daemon.calls import Calls

ALLOCATE, PRESTART = "allocate", "prestart"  # once per container; before each of its starts; and once per resource


class CountedDesk:
    """A desk in front of the desk."""

    def __init__(self, desk: Desk, calls: Calls, clock: Callable[[], float]) -> None:
        self._desk, self._calls, self._clock = desk, calls, clock

    def allocate(self, resource: str, ids: frozenset[str]) -> Allocation:
        began, outcome = self._clock(), "error"
        try:
            answer = self._desk.allocate(resource, ids)
            outcome = "ok"
            return answer
        except Refused:
            outcome = "refused"
            raise
        finally:
            self._calls.count(ALLOCATE, outcome, self._clock() - began)

    async def prepare(self, resource: str, ids: frozenset[str]) -> None:
        began, outcome = self._clock(), "error"
        try:
            await self._desk.prepare(resource, ids)
            outcome = "ok"
        except Refused:
            outcome = "refused"
            raise
        finally:
            self._calls.count(PRESTART, outcome, self._clock() - began)
