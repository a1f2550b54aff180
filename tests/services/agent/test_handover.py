"""A stopping agent waits for the scheduler's acknowledgement and for Pods that are already bound."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from aliquot.services.agent import handover
from aliquot.services.agent.handover import hand_over
from aliquot.services.agent.podcache import PodCache
from kit.clusters.watchobjects import as_pod, pod_json

COMES = as_pod(pod_json("p", on="n1"))
TAKEN = as_pod({**pod_json("p", on="n1"), "status": {"phase": "Pending", "startTime": "2026-11-15T12:00:00Z"}})


class Reporter:
    def __init__(self, *, announced: bool = True, answers_at: int = 0) -> None:
        self._announced, self._answers_at, self._looks = announced, answers_at, 0

    async def announce_departure(self) -> bool:
        return self._announced

    @property
    def acknowledged(self) -> bool:
        self._looks += 1
        return self._looks > self._answers_at


class Pods:
    """The Pods of the node, one list per refresh."""

    def __init__(self, *looks: list[Any]) -> None:
        self.looks = list(looks)
        self.seen = 0

    async def refresh(self) -> None:
        self.seen += 1

    def __iter__(self) -> Any:
        return iter(self.looks[min(self.seen, len(self.looks)) - 1])


def go(reporter: Reporter, pods: Pods, patience: float = 5.0) -> int:
    """How often it refreshed the Pods before it stopped."""
    asyncio.run(hand_over(reporter, cast(PodCache, pods), patience=patience))
    return pods.seen


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_LOOK", 0.001)


def test_handover_ends_at_once_when_acknowledged_and_no_pod_arrives() -> None:
    assert go(Reporter(), Pods([])) == 1


def test_handover_waits_for_the_acknowledgement() -> None:
    assert go(Reporter(answers_at=20), Pods([])) == 1


def test_handover_waits_for_a_bound_pod_that_the_kubelet_has_not_started() -> None:
    assert go(Reporter(), Pods([COMES], [COMES], [TAKEN])) == 3


def test_handover_gives_up_waiting_for_the_acknowledgement() -> None:
    assert go(Reporter(answers_at=10**9), Pods([TAKEN]), patience=0.05) == 1


def test_handover_gives_up_waiting_for_an_absent_kubelet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_LONGEST", 0.05)
    assert go(Reporter(), Pods([COMES])) > 1


def test_handover_ends_at_once_when_the_departure_cannot_be_announced() -> None:
    assert go(Reporter(announced=False), Pods([COMES])) == 0
