"""The timelines of a machine's cards, with tenants by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aliquot.arbiter.timeline import Came, Left, Record, Taken
from aliquot.model.status.machine import TenantStatus
from aliquot.services.dashboard.timelines import Timelines
from kit.machines import fakedaemon


def a_tenant(name: str, **more: Any) -> TenantStatus:
    return msgspec.convert(fakedaemon.a_tenant(name, **more), TenantStatus)


def held(name: str, at: float) -> list[Record]:
    return [Came("p", f"id-{name}", offline=False), (at, at + 0.1, {"p": 1.0}, False), Left("p")]


def keys(timelines: Timelines, now: float) -> list[str]:
    timeline = timelines.since(["GPU-0"], None, now, now)
    assert timeline is not None
    return [lane.key for lane in timeline.cards["GPU-0"].tenants]


def test_timeline_keeps_the_name_of_an_ended_tenant_while_it_is_drawn() -> None:
    timelines = Timelines()
    timelines.add({"GPU-0": []}, [a_tenant("a")])
    timelines.add({"GPU-0": held("a", 100.0)}, [])
    assert keys(timelines, 110.0) == ["a"]
    assert keys(timelines, 200.0) == []


def test_timelines_forget_the_names_of_ended_tenants() -> None:
    timelines = Timelines()
    for number in range(2000):
        at = 100.0 + number
        timelines.add({"GPU-0": held(f"run-{number}", at)}, [a_tenant(f"run-{number}")])
    assert len(timelines._names) < 400
    assert keys(timelines, 2100.0)[-1] == "run-1999"


def test_no_timeline_without_a_trace() -> None:
    assert Timelines().since(["GPU-0"], None, 100.0, 100.0) is None


def test_timeline_joins_two_runs_of_one_name() -> None:
    timelines = Timelines()
    for at, number in ((100.0, "1"), (101.0, "2")):
        timelines.add({"GPU-0": held(f"serve{number}", at)}, [a_tenant("serve", id=f"id-serve{number}")])
    assert keys(timelines, 110.0) == ["serve"]
    timeline = timelines.since(["GPU-0"], 1000, 102.0, 102.0)
    assert timeline is not None
    assert sum(timeline.cards["GPU-0"].tenants[0].shares) == 200


def first_mark(timelines: Timelines, now: float, today: float) -> float:
    timeline = timelines.since(["GPU-0"], None, now, today)
    assert timeline is not None
    return timeline.cards["GPU-0"].preemptions[0].at


@pytest.mark.parametrize(
    ("read_late", "moved"),
    [
        pytest.param(0.3, 0.0, id="the machine is busy: our clock was read later than the time of day"),
        pytest.param(-0.02, 0.0, id="the time of day is a little ahead"),
        pytest.param(-0.2, 0.2, id="the time of day was set ahead"),
        pytest.param(3600.0, -3600.0, id="the time of day was set back"),
    ],
)
def test_timeline_keeps_times_unless_the_time_of_day_was_set(read_late: float, moved: float) -> None:
    timelines = Timelines()
    timelines.add({"GPU-0": [Taken(100.0, None, ("id-a",))]}, [a_tenant("a")])
    assert first_mark(timelines, 101.0, 5001.0) == 5000.0
    assert first_mark(timelines, 102.0, 5002.0 - read_late) == pytest.approx(5000.0 + moved)
