"""Schedules of CronJobs, compared with a search minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.local.cron import Moment, Schedule, next_after, parse_schedule


def following(text: str, year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> Moment | None:
    schedule = parse_schedule(text)
    assert schedule is not None
    return next_after(schedule, Moment(year, month, day, hour, minute))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", (2026, 11, 16, 12, 31)),
        ("*/15 * * * *", (2026, 11, 16, 12, 45)),
        ("30 12 * * *", (2026, 11, 17, 12, 30)),
        ("5/20 * * * *", (2026, 11, 16, 12, 45)),
        ("0 9-17/4 * * *", (2026, 11, 16, 13, 0)),
        ("0 0 29 2 *", (2028, 2, 29, 0, 0)),
        ("0 0 * * SUN", (2026, 11, 22, 0, 0)),
        ("0 0 1 jan,jul *", (2027, 1, 1, 0, 0)),
        ("0 0 13 * 5", (2026, 11, 20, 0, 0)),  # either: a Friday comes first
        ("0 0 */2 * 1", (2026, 11, 23, 0, 0)),  # a step over all days is no restriction: both must hold
        ("@monthly", (2026, 12, 1, 0, 0)),
        ("@hourly", (2026, 11, 16, 13, 0)),
    ],
)
def test_the_next_run_follows_kubernetes(text: str, expected: tuple[int, ...]) -> None:
    assert following(text, 2026, 11, 16, 12, 30) == expected


def test_a_day_that_never_comes_has_no_next_run() -> None:
    assert following("0 0 30 2 *", 2026, 1, 1) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 7", "x * * * *",
        "5-1 * * * *", "*/0 * * * *", "@every 5m", "1,, * * * *", "* * * * SUNDAY", None, 5, ["*"], "9" * 300,
    ],
)  # fmt: skip
def test_what_is_no_schedule_is_none(text: object) -> None:
    assert parse_schedule(text) is None


def _field(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    ranges = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.tuples(st.just("*") | ranges, st.integers(1, 30)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    return st.lists(number.map(str) | ranges | steps | st.just("*"), min_size=1, max_size=2).map(",".join)


@given(
    st.tuples(_field(0, 59), _field(0, 23), _field(1, 31), _field(1, 12), _field(0, 6)).map(" ".join),
    st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)),
)
def test_the_next_run_is_the_first_minute_that_matches(text: str, at: datetime) -> None:
    schedule = parse_schedule(text)
    assert schedule is not None
    found = next_after(schedule, Moment(at.year, at.month, at.day, at.hour, at.minute))
    minute = at.replace(second=0, microsecond=0, tzinfo=UTC)
    for _ in range(3000):  # two days
        minute += timedelta(minutes=1)
        if _matches(schedule, minute):
            assert found == (minute.year, minute.month, minute.day, minute.hour, minute.minute)
            return
    assert found is None or datetime(*found, tzinfo=UTC) > minute


def _matches(schedule: Schedule, at: datetime) -> bool:
    in_month, in_week = at.day in schedule.days, at.isoweekday() % 7 in schedule.weekdays
    day = in_month or in_week if schedule.either_day else in_month and in_week
    return day and at.month in schedule.months and at.hour in schedule.hours and at.minute in schedule.minutes


@given(st.text(max_size=20) | st.none() | st.integers())
def test_any_value_is_read_without_an_error(value: object) -> None:
    parse_schedule(value)


@pytest.mark.parametrize(("text", "valid"), [("0000 * * * *", True), ("00000 * * * *", False), ("0 0 1 JAN *", True)])
def test_numbers_have_at_most_four_digits(text: str, valid: bool) -> None:
    assert (parse_schedule(text) is not None) is valid


def test_last_day_of_a_long_month() -> None:
    assert following("0 0 31 * *", 2026, 4, 1) == Moment(2026, 5, 31, 0, 0)
    assert parse_schedule("0 0 32 * *") is None
    assert parse_schedule("59 23 * 12 6") is not None
    assert parse_schedule("60 23 * 12 6") is None
