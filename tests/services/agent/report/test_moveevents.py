"""Events on Pods whose memory leaves the card and returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from aliquot.adapters.kubernetes.kube import Kube
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.claim import AppClass
from aliquot.model.device import Card
from aliquot.model.grant import Share
from aliquot.model.residency import Arrival, ParkReason, Where
from aliquot.model.tenancy import Tenancy
from aliquot.services.agent.report.node import NodeReporter
from aliquot.services.daemon.events import ObjectRef

POD = Tenancy("u1", "ml", "p", AppClass.OFFLINE, (Share(0, 5120, 300, uuid="GPU-0"),), 0.0)
LEFT = Arrival("u1", "GPU-0", Where.PARKED, 12 << 30, 0.412, ParkReason.IDLE)
BACK = Arrival("u1", "GPU-0", Where.RESIDENT, 12 << 30, 0.3, away=35.04)
PARKED = "12 GiB of its memory left card 0 (GPU-0) for the host pool in 412ms: it was idle, and others needed the room"
RETURNED = "12 GiB of its memory came back to card 0 (GPU-0) in 300ms after 35s in the host pool"


class Setup:
    """The reporter with a sink that keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []
        self.reporter = NodeReporter(cast("Kube", None), self, "n", changed=lambda: None)
        self.tenancies = {"u1": POD}

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None:
        self.events.append((f"{about.namespace}/{about.name} {about.uid}", reason, message, type))

    def look(self, now: float, *arrivals: Arrival) -> list[tuple[str, str, str, str]]:
        self.events.clear()
        self.reporter.events.report_moves(arrivals, self.tenancies, self.users, [Card(0, 16384, "GPU-0", "A30")], now)
        return list(self.events)

    @staticmethod
    def users(claim: str) -> list[PodObject]:
        assert claim == "u1"
        metadata: list[Any] = [{"name": name, "namespace": "ml", "uid": f"uid-{name}"} for name in ("a", "b")]
        return [msgspec.convert({"metadata": one}, PodObject) for one in metadata]


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_memory_that_leaves_and_returns_is_reported_on_the_pod(setup: Setup) -> None:
    assert setup.look(100.0, LEFT) == [("ml/p u1", "GPUMemoryParked", PARKED, "Normal")]
    assert setup.look(101.0) == []
    assert setup.look(135.0, BACK) == [("ml/p u1", "GPUMemoryReturned", RETURNED, "Normal")]


def test_event_says_how_many_moves_had_none(setup: Setup) -> None:
    setup.look(100.0, LEFT, BACK)
    assert setup.look(110.0, LEFT, BACK) == []
    assert [text for _, _, text, _ in setup.look(170.0, LEFT)] == [f"{PARKED}; 2 earlier moves not reported"]


def test_parked_memory_is_reported_later_without_another_move(setup: Setup) -> None:
    setup.look(100.0, LEFT, BACK)
    assert setup.look(110.0, LEFT) == []
    assert [reason for _, reason, _, _ in setup.look(160.0)] == ["GPUMemoryParked"]


def test_moves_of_a_claim_are_reported_on_its_pods(setup: Setup) -> None:
    setup.tenancies = {"u1": replace(POD, claim=True)}
    assert [about for about, *_ in setup.look(100.0, LEFT)] == ["ml/a uid-a", "ml/b uid-b"]


def test_gone_pod_has_no_event_and_is_forgotten(setup: Setup) -> None:
    setup.look(100.0, LEFT, BACK, LEFT)
    setup.tenancies = {}
    assert setup.look(170.0, BACK) == []
    setup.tenancies = {"u1": POD}
    assert setup.look(171.0) == []


def test_unknown_reason_and_absence_are_left_out_of_the_text(setup: Setup) -> None:
    texts = [text for _, _, text, _ in setup.look(1.0, replace(LEFT, why=None), replace(BACK, away=None))]
    assert texts == [PARKED.partition(":")[0], RETURNED.partition(" after")[0]]
