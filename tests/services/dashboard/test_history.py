"""The dashboard's charts: ten minutes by the second, a day by the minute."""

from __future__ import annotations

from aliquot.model.status.dashboard import SERIES, Point, SeriesValues
from aliquot.services.dashboard.history import Recorder

ZERO: dict[str, float | None] = dict.fromkeys(SERIES, 0.0)


def recorded(values: list[dict[str, float | None]], began: float = 6000.0) -> Recorder:
    recorder = Recorder()
    for at, point in enumerate(values):
        recorder.add(Point(began + at, **{**ZERO, **point}))
    return recorder


def test_an_empty_history_has_every_series() -> None:
    history = Recorder().history("10m")
    assert (history.step, history.times) == (1, [])
    assert history.series == SeriesValues(**{name: [] for name in SERIES})


def test_history_keeps_points_in_order() -> None:
    history = recorded([{"memory": 1.0}, {"memory": 2.0}]).history("10m")
    assert history.times == [6000.0, 6001.0]
    assert history.series.memory == [1.0, 2.0]


def test_history_keeps_ten_minutes_by_the_second() -> None:
    history = recorded([{"core": float(at)} for at in range(700)]).history("10m")
    assert len(history.times) == 600
    assert history.series.core[0] == 100.0


def test_history_averages_a_minute() -> None:
    history = recorded([{"waiting": float(at % 60)} for at in range(130)]).history("24h")
    assert history.step == 60
    assert history.times == [6059.0, 6119.0, 6129.0]  # the last is not over yet
    assert history.series.waiting[:2] == [29.5, 29.5]


def test_history_keeps_a_day_by_the_minute() -> None:
    recorder = Recorder()
    for minute in range(1500):
        recorder.add(Point(60.0 * minute, **ZERO))
    assert len(recorder.history("24h").times) == 1441


def test_history_averages_known_values_only() -> None:
    history = recorded([{"busy": None}, {"busy": 50.0}, {"fragmentation": None}]).history("24h")
    assert history.series.busy == [25.0]  # of the two that are known
    assert recorded([{"busy": None}]).history("24h").series.busy == [None]
