"""The dashboard's charts: ten minutes by the second, a day by the minute."""

from __future__ import annotations

from aliquot.services.dashboard.history import SERIES, History, Values

ZERO: dict[str, float | None] = dict.fromkeys(SERIES, 0.0)


def a_history(values: list[Values], began: float = 6000.0) -> History:
    history = History()
    for at, each in enumerate(values):
        history.add(began + at, {**ZERO, **each})
    return history


def test_an_empty_history_has_every_series() -> None:
    told = History().told("10m")
    assert told == {"step": 1, "times": [], "series": {name: [] for name in SERIES}}


def test_points_come_in_order() -> None:
    told = a_history([{"memory": 1.0}, {"memory": 2.0}]).told("10m")
    assert told["times"] == [6000.0, 6001.0]
    assert told["series"]["memory"] == [1.0, 2.0]


def test_ten_minutes_are_kept_by_the_second() -> None:
    told = a_history([{"core": float(at)} for at in range(700)]).told("10m")
    assert len(told["times"]) == 600
    assert told["series"]["core"][0] == 100.0


def test_a_minute_is_told_as_its_mean() -> None:
    told = a_history([{"waiting": float(at % 60)} for at in range(130)]).told("24h")
    assert told["step"] == 60
    assert told["times"] == [6059.0, 6119.0, 6129.0]  # the last is not over yet
    assert told["series"]["waiting"][:2] == [29.5, 29.5]


def test_a_day_is_kept_by_the_minute() -> None:
    history = History()
    for minute in range(1500):
        history.add(60.0 * minute, ZERO)
    assert len(history.told("24h")["times"]) == 1441


def test_what_nobody_knows_is_not_taken_for_nothing() -> None:
    told = a_history([{"busy": None}, {"busy": 50.0}, {"fragmentation": None}]).told("24h")
    assert told["series"]["busy"] == [25.0]  # of the two that are known
    assert a_history([{"busy": None}]).told("24h")["series"]["busy"] == [None]
