"""Which orders lead from what was to what shall be."""

from __future__ import annotations

import pytest

from aliquot.arbiter.differing import Ordered, difference
from aliquot.arbiter.orders import Arm, Hold, Order, Pause, Resume, SetSlice
from aliquot.arbiter.roster import Context, Reading

QUIET, BUSY = Context("a", "a"), Context("a", "a", idle_for=0.0, reading=Reading(1, True))
SETTLING = Context("a", "a", idle_for=0.0, reading=Reading(1, True), settling=True)


def orders(context: Context, was: Ordered, *, may: bool, online: bool = False, held: bool = False) -> list[Order]:
    return difference(
        {"a": was}, [context], {"a": 1000}, {"a"} if may else (), online={"a"} if online else (), held=held
    )


@pytest.mark.parametrize(
    ("context", "online", "held", "armed"),
    [
        (QUIET, True, False, True),
        (QUIET, True, True, False),  # it is read often
        (BUSY, True, False, False),
        (BUSY, True, True, False),
        (QUIET, False, True, True),
        (BUSY, False, False, False),
    ],
)
def test_what_is_quiet_is_armed_once(context: Context, online: bool, held: bool, armed: bool) -> None:
    was = Ordered(1000, True)
    assert orders(context, was, may=True, online=online, held=held) == ([Arm("a")] if armed else [])
    assert was.armed is armed
    assert orders(context, was, may=True, online=online, held=held) == []


@pytest.mark.parametrize(
    ("context", "was", "may", "made"),
    [
        (BUSY, Ordered(), True, [SetSlice("a", 1000), Resume("a")]),
        (BUSY, Ordered(), False, [Pause("a"), SetSlice("a", 1000)]),
        (BUSY, Ordered(999, True), True, [SetSlice("a", 1000)]),
        (BUSY, Ordered(1000, True), True, []),
        (BUSY, Ordered(1000, True), False, [Pause("a")]),
        (BUSY, Ordered(1000, False), False, []),
        (BUSY, Ordered(1000, False), True, [Resume("a")]),
        (SETTLING, Ordered(1000, True), False, [Hold("a")]),
        (SETTLING, Ordered(1000, False, held=True), False, []),
        (SETTLING, Ordered(1000, False), False, []),  # it is paused already
        (BUSY, Ordered(1000, False, held=True), False, [Pause("a")]),  # it can be paused now
        (SETTLING, Ordered(1000, False, held=True), True, [Resume("a")]),
    ],
)
def test_only_what_differs_is_ordered(context: Context, was: Ordered, may: bool, made: list[Order]) -> None:
    assert orders(context, was, may=may) == made
    assert (was.microseconds, was.enabled, was.armed) == (1000, may, False)
    assert orders(context, was, may=may) == []


@pytest.mark.parametrize(("length", "made"), [(2, [Resume("b"), Pause("a")]), (1, [Pause("a"), Resume("b")])])
def test_of_tiny_slices_no_two_are_enabled_at_once(length: int, made: list[Order]) -> None:
    was = {"a": Ordered(1000, True), "b": Ordered(length, False)}
    second = Context("b", "b", idle_for=0.0, reading=Reading(1, True))
    assert difference(was, [BUSY, second], {"a": 1000, "b": length}, {"b"}, online=(), held=False) == made


@pytest.mark.parametrize(
    ("first", "length", "made"),
    [
        (None, 2, [Resume("b"), Resume("c"), Pause("a")]),
        ("b", 2, [Resume("b"), Pause("a"), Resume("c")]),
        ("c", 2, [Resume("c"), Pause("a"), Resume("b")]),
        ("d", 2, [Resume("b"), Resume("c"), Pause("a")]),  # it runs already, or is gone
        ("c", 1, [Pause("a"), Resume("c"), Resume("b")]),
    ],
)
def test_first_one_is_alone_when_the_former_stops(first: str | None, length: int, made: list[Order]) -> None:
    was = {"a": Ordered(1000, True), "b": Ordered(length, False), "c": Ordered(length, False)}
    others = [Context(name, "b", idle_for=0.0, reading=Reading(1, True)) for name in "bc"]
    lengths = {"a": 1000, "b": length, "c": length}
    assert difference(was, [BUSY, *others], lengths, {"b", "c"}, online=(), held=False, first=first) == made
