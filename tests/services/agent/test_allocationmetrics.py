"""What the kubelet asks is counted, whatever becomes of it."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from aliquot.services.agent.allocationmetrics import ALLOCATE, PRESTART, CountedDesk
from aliquot.services.agent.deviceplugins import Allocation, Refused
from aliquot.services.daemon.calls import Calls

IDS = frozenset({"GPU-a-_-0"})


class _Desk:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[tuple[str, frozenset[str]]] = []

    def allocate(self, resource: str, ids: frozenset[str]) -> Allocation:
        self._heard(resource, ids)
        return Allocation(cdi=("aliquot.dev/gpu-mem=1",))

    async def prepare(self, resource: str, ids: frozenset[str]) -> None:
        self._heard(resource, ids)

    def _heard(self, resource: str, ids: frozenset[str]) -> None:
        self.asked.append((resource, ids))
        if self.error is not None:
            raise self.error


def counted(desk: _Desk) -> tuple[CountedDesk, Calls]:
    calls, clock = Calls(lambda: "now", (ALLOCATE, PRESTART)), count(0.0, 0.25)
    return CountedDesk(desk, calls, lambda: next(clock)), calls


def test_what_is_asked_reaches_the_desk_and_its_answer_comes_back() -> None:
    desk = _Desk()
    front, calls = counted(desk)
    assert front.allocate("gpu-mem", IDS).cdi == ("aliquot.dev/gpu-mem=1",)
    asyncio.run(front.prepare("gpu-mem", IDS))
    assert desk.asked == [("gpu-mem", IDS)] * 2
    assert calls.outcomes == {(ALLOCATE, "ok"): 1, (PRESTART, "ok"): 1}


def test_how_long_it_took_is_kept() -> None:
    front, calls = counted(_Desk())
    asyncio.run(front.prepare("gpu-mem", IDS))
    assert calls.seconds == {ALLOCATE: 0.0, PRESTART: 0.25}


@pytest.mark.parametrize(("error", "outcome"), [(Refused("no card"), "refused"), (OSError("disk"), "error")])
def test_a_refusal_is_no_error_and_both_are_passed_on(error: Exception, outcome: str) -> None:
    front, calls = counted(_Desk(error))
    with pytest.raises(type(error)):
        front.allocate("gpu-mem", IDS)
    with pytest.raises(type(error)):
        asyncio.run(front.prepare("gpu-mem", IDS))
    assert calls.outcomes == {(ALLOCATE, outcome): 1, (PRESTART, outcome): 1}
