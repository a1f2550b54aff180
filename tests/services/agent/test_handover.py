"""An agent that is told to end goes when the scheduler has answered and the kubelet has decided about whoever came."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from aliquot.services.agent import handover
from aliquot.services.agent.handover import take_leave
from aliquot.services.agent.podcache import Shelf
from kit.watchobjects import as_pod, pod_json

COMES = as_pod(pod_json("p", on="n1"))
TAKEN = as_pod({**pod_json("p", on="n1"), "status": {"phase": "Pending", "startTime": "2026-11-15T12:00:00Z"}})


class Clerk:
    def __init__(self, *, told: bool = True, answers_at: int = 0) -> None:
        self._told, self._answers_at, self._looks = told, answers_at, 0

    async def leave(self) -> bool:
        return self._told

    @property
    def answered(self) -> bool:
        self._looks += 1
        return self._looks > self._answers_at


class Pods:
    """The Pods of the node, as they are from look to look."""

    def __init__(self, *looks: list[Any]) -> None:
        self.looks = list(looks)
        self.seen = 0

    async def refresh(self) -> None:
        self.seen += 1

    def __iter__(self) -> Any:
        return iter(self.looks[min(self.seen, len(self.looks)) - 1])


def go(clerk: Clerk, pods: Pods, patience: float = 5.0) -> int:
    """How often the Pods were looked at before it went."""
    asyncio.run(take_leave(clerk, cast(Shelf, pods), patience=patience))
    return pods.seen


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_LOOK", 0.001)


def test_it_goes_at_once_when_it_is_answered_and_nobody_comes() -> None:
    assert go(Clerk(), Pods([])) == 1


def test_it_waits_for_the_answer() -> None:
    assert go(Clerk(answers_at=20), Pods([])) == 1


def test_it_waits_for_a_pod_that_the_kubelet_has_not_decided_about() -> None:
    assert go(Clerk(), Pods([COMES], [COMES], [TAKEN])) == 3


def test_it_goes_without_an_answer_after_a_while() -> None:
    assert go(Clerk(answers_at=10**9), Pods([TAKEN]), patience=0.05) == 1


def test_it_does_not_wait_for_ever_for_a_kubelet_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_LONGEST", 0.05)
    assert go(Clerk(), Pods([COMES])) > 1


def test_it_goes_at_once_where_nobody_can_be_told() -> None:
    assert go(Clerk(told=False), Pods([COMES])) == 0
