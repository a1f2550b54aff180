"""Amounts for people: "10 GiB", "1.5 GiB", "512 MiB", "30%", "2m05s". cli/amounts.py parses what people type.

Imported by `aliquot run`: nothing heavy.
"""

from __future__ import annotations


def in_units(amount: int, per: int) -> int | float:
    """The amount in a larger unit, to two decimals: for JSON and for columns that name their unit."""
    return _plain(round(amount / per, 2))


def at_most(amount: int, per: int) -> int | float:
    """The same, rounded down: 3,071 MiB free must not look like the 3 GiB that are needed."""
    return _plain(amount * 100 // per / 100)


def _plain(number: float) -> int | float:
    return int(number) if number == int(number) else number


def memory(mib: int) -> str:
    """MiB below 1 GiB, else GiB to one decimal. Nothing is "0 GiB", also in tables: "-" means that it is not known."""
    return f"{mib} MiB" if 0 < mib < 1024 else f"{_plain(round(mib / 1024, 1))} GiB"


def memory_at_most(mib: int) -> str:
    """The same, rounded down."""
    return f"{mib} MiB" if 0 < mib < 1024 else f"{_plain(mib * 10 // 1024 / 10)} GiB"


def needed_and_had(needed: int, had: int) -> tuple[str, str]:
    """Two amounts of memory of which the second is too small. They never look alike: in MiB where rounding hides it."""
    words = memory(needed), memory_at_most(had)
    return words if words[0] != words[1] or needed <= had else (f"{needed} MiB", f"{had} MiB")


def unlike(one: int, another: int) -> tuple[str, str]:
    """Two different amounts of memory. They never look alike either."""
    words = memory(one), memory(another)
    return words if words[0] != words[1] or one == another else (f"{one} MiB", f"{another} MiB")


def memory_of(used: int, total: int) -> str:
    """ "18 of 24 GiB", also for thousands of cards."""
    unit, per = ("MiB", 1) if 0 < total < 1024 else ("GiB", 1024)
    used_units, total_units = (in_units(mib, per) for mib in (used, total))
    return f"{used_units:,} of {total_units:,} {unit}"


def percent(milli: int) -> str:
    """Thousandths of a card."""
    return f"{milli / 10:g}%"


def cpus(milli: int) -> str:
    """Thousandths of a CPU."""
    return f"{in_units(milli, 1000)}"


def count(number: int, noun: str) -> str:
    """A number with its noun, as in "1 card", "2,000 cards"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def release_delay(seconds: float | None) -> str:
    """ "100ms"; None: "auto"."""
    return "auto" if seconds is None else duration(seconds)


def duration(seconds: float) -> str:
    """A time in one or two units: "100ms", "5s", "2m05s", "3h00m", "2d01h"."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    if seconds < 60:
        return f"{round(seconds, 3):g}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 48 else f"{hours // 24}d{hours % 24:02d}h"
