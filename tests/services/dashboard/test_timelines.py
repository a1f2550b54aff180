"""The timelines of a machine's cards, by people's names for the tenants."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.arbiter.timeline import Came, Left, Record, Taken
from aliquot.services.dashboard.timelines import Timelines


def a_tenant(name: str) -> dict[str, Any]:
    return {"id": f"id-{name}", "name": name, "class": "normal"}


def held(name: str, at: float) -> list[Record]:
    return [Came("p", f"id-{name}", offline=False), (at, at + 0.1, {"p": 1.0}, False), Left("p")]


def keys(timelines: Timelines, now: float) -> list[str]:
    told = timelines.told(["GPU-0"], None, now, now)
    assert told is not None
    return [tenant["key"] for tenant in told["cards"]["GPU-0"]["tenants"]]


def test_a_tenant_that_is_gone_keeps_its_name_while_it_is_drawn() -> None:
    timelines = Timelines()
    timelines.add({"GPU-0": []}, [a_tenant("a")])
    timelines.add({"GPU-0": held("a", 100.0)}, [])
    assert keys(timelines, 110.0) == ["a"]
    assert keys(timelines, 200.0) == []


def test_names_of_thousands_that_came_and_went_are_forgotten() -> None:
    timelines = Timelines()
    for number in range(2000):
        at = 100.0 + number
        timelines.add({"GPU-0": held(f"run-{number}", at)}, [a_tenant(f"run-{number}")])
    assert len(timelines._names) < 400
    assert keys(timelines, 2100.0)[-1] == "run-1999"


def test_without_a_trace_there_is_no_timeline() -> None:
    assert Timelines().told(["GPU-0"], None, 100.0, 100.0) is None


def test_two_runs_of_one_name_after_each_other_are_one_line() -> None:
    timelines = Timelines()
    for at, number in ((100.0, "1"), (101.0, "2")):
        tenant = {**a_tenant("serve"), "id": f"id-serve{number}"}
        timelines.add({"GPU-0": held(f"serve{number}", at)}, [tenant])
    assert keys(timelines, 110.0) == ["serve"]
    told = timelines.told(["GPU-0"], 1000, 102.0, 102.0)
    assert told is not None
    assert sum(told["cards"]["GPU-0"]["tenants"][0]["shares"]) == 200


def first_mark(timelines: Timelines, now: float, today: float) -> float:
    told = timelines.told(["GPU-0"], None, now, today)
    assert told is not None
    at: float = told["cards"]["GPU-0"]["preemptions"][0]["at"]
    return at


@pytest.mark.parametrize(
    ("read_late", "moved"),
    [
        pytest.param(0.3, 0.0, id="the machine is busy: our clock was read later than the time of day"),
        pytest.param(-0.02, 0.0, id="the time of day is a little ahead"),
        pytest.param(-0.2, 0.2, id="the time of day was set ahead"),
        pytest.param(3600.0, -3600.0, id="the time of day was set back"),
    ],
)
def test_what_is_told_again_has_the_same_time_unless_the_time_of_day_was_set(read_late: float, moved: float) -> None:
    timelines = Timelines()
    timelines.add({"GPU-0": [Taken(100.0, None, ("id-a",))]}, [a_tenant("a")])
    assert first_mark(timelines, 101.0, 5001.0) == 5000.0
    assert first_mark(timelines, 102.0, 5002.0 - read_late) == pytest.approx(5000.0 + moved)
