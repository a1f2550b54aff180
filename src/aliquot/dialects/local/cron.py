"""The schedule of a CronJob, as Kubernetes reads it: five fields, lists, ranges, steps, names, and macros. Pure.

    minute 0-59, hour 0-23, day of the month 1-31, month 1-12 or JAN-DEC, day of the week 0-6 (0 is Sunday) or SUN-SAT

Where both days are restricted, either is enough. Times are those of a wall clock; its time zone is the caller's matter.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {
    name: at
    for at, name in enumerate(["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"], 1)
}
_DAYS = {name: at for at, name in enumerate(["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"])}
_PART = re.compile(r"(?:(?P<all>[*?])|(?P<low>\w+)(?:-(?P<high>\w+))?)(?:/(?P<step>\d{1,4}))?", re.ASCII)
_LONGEST = 200  # characters
_YEARS = 28  # after which the calendar repeats: February 29 on a given weekday comes within
ALLOWED = 'five fields such as "*/5 * * * *" (minute, hour, day of the month, month, day of the week), or @hourly'


class Moment(NamedTuple):
    """A minute on a wall clock."""

    year: int
    month: int
    day: int
    hour: int
    minute: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The values at which each field matches."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool

    def _matches(self, day: int, weekday: int) -> bool:
        in_month, in_week = day in self.days, weekday in self.weekdays
        return in_month or in_week if self.either_day else in_month and in_week


def parse_schedule(text: object) -> Schedule | None:
    """The schedule; None if it is none (ALLOWED says what is). Accepts any JSON, never raises."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        return None
    fields = _MACROS.get(text.strip(), text).split()
    if len(fields) != 5:
        return None
    minutes, hours = _values(fields[0], 0, 59), _values(fields[1], 0, 23)
    days, months = _values(fields[2], 1, 31), _values(fields[3], 1, 12, _MONTHS)
    weekdays = _values(fields[4], 0, 6, _DAYS)
    if minutes is None or hours is None or days is None or months is None or weekdays is None:
        return None
    either = not fields[2].startswith(("*", "?")) and not fields[4].startswith(("*", "?"))
    return Schedule(tuple(sorted(minutes)), tuple(sorted(hours)), days, months, weekdays, either)


def _values(field: str, least: int, most: int, names: dict[str, int] | None = None) -> frozenset[int] | None:
    found: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            return None
        low, high, step = least, most, int(match["step"] or 1)
        if match["low"]:
            first, last = _number(match["low"], names), _number(match["high"] or match["low"], names)
            if first is None or last is None:
                return None
            low, high = first, most if match["step"] and not match["high"] else last
        if not least <= low <= high <= most or not step:
            return None
        found.update(range(low, high + 1, step))
    return frozenset(found)


def _number(word: str, names: dict[str, int] | None) -> int | None:
    return int(word) if word.isdigit() and len(word) <= 4 else (names or {}).get(word.upper())


def next_after(schedule: Schedule, moment: Moment) -> Moment | None:
    """The first minute after `moment` that the schedule names; None: there is none, such as February 30."""
    for year, month, day in _days_from(schedule, moment):
        today = (year, month, day) == moment[:3]
        for hour in schedule.hours:
            if today and hour < moment.hour:
                continue
            for minute in schedule.minutes:
                if not today or (hour, minute) > (moment.hour, moment.minute):
                    return Moment(year, month, day, hour, minute)
    return None


def _days_from(schedule: Schedule, moment: Moment) -> Iterator[tuple[int, int, int]]:
    """The days that match, that of `moment` first."""
    for year in range(moment.year, moment.year + _YEARS + 1):
        for month in sorted(schedule.months):
            if (year, month) < (moment.year, moment.month):
                continue
            monday_based, length = calendar.monthrange(year, month)
            for day in range(1, length + 1):
                weekday = (monday_based + day) % 7  # of Sunday 0
                if (year, month, day) >= moment[:3] and schedule._matches(day, weekday):
                    yield year, month, day
