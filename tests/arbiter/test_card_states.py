"""What a context of a card is said to do, when its orders take effect, and how often it is read."""

from __future__ import annotations

import pytest

from aliquot.arbiter import slices
from aliquot.arbiter.card import DOZE, REST, SAMPLE, CardArbiter
from aliquot.arbiter.orders import Arm, Pause, Resume
from aliquot.arbiter.roster import IDLE_AFTER, Reading
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import State
from kit.cards.arbiters import BEST, BURST, FIXED, NORMAL, OFFLINE, ONLINE, card, look, stopped

# --- what a context does ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("idle_for", "outstanding", "settling", "state"),
    [
        (0.0, False, False, State.RUNNING),
        (0.0, True, True, State.RUNNING),
        (IDLE_AFTER - 0.001, False, False, State.RUNNING),
        (IDLE_AFTER, False, False, State.IDLE),
        (IDLE_AFTER, True, False, State.RUNNING),  # in a long kernel, as far as is known
        (IDLE_AFTER, True, True, State.IDLE),
    ],
)
def test_context_runs_while_it_was_heard_of_or_has_work_that_may_be_stopped(
    idle_for: float, outstanding: bool, settling: bool, state: State
) -> None:
    arbiter = card(a=NORMAL)
    context = arbiter.roster.contexts["a/1"]
    context.idle_for, context.settling, context.reading = idle_for, settling, Reading(1, False, outstanding)
    assert arbiter.state("a/1") is state


def test_context_is_paused_for_online_work_and_waits_for_all_others() -> None:
    held = look(card(BEST, 0.1, on=ONLINE, a=OFFLINE), 1.0, "on a")
    assert held.state("a/1") is State.PAUSED
    free = look(card(BEST, 0.0, on=ONLINE, a=OFFLINE, b=OFFLINE), 1.0, "a b")
    assert (free.state("a/1"), free.state("b/1")) == (State.RUNNING, State.WAITING)
    windows = look(card(FIXED, a=NORMAL, b=NORMAL), 1.0, "a b")
    assert (windows.state("a/1"), windows.state("b/1")) == (State.RUNNING, State.WAITING)


def test_ordinary_work_that_waits_while_offline_work_has_its_turn_is_not_paused() -> None:
    arbiter = look(card(BEST, 0.0, on=ONLINE, a=OFFLINE, n=NORMAL), 1.0, "a n")
    assert (arbiter.state("a/1"), arbiter.state("n/1")) == (State.RUNNING, State.WAITING)


def test_unknown_context_is_idle() -> None:
    assert CardArbiter().state("a/1") is State.IDLE


def test_weights_are_fair_where_no_slice_was_ordered_and_without_those_that_may_not_run() -> None:
    arbiter = look(card(BEST, 0.1, on=ONLINE, a=OFFLINE), 1.0, "on a")
    assert arbiter.weights() == ({"on/1": slices.LONG}, {})
    arbiter.forget("a/1")
    assert arbiter.weights() == ({"on/1": slices.LONG}, {"a/1": slices.FAIR})


# --- when orders took effect --------------------------------------------------------------------------------------


def test_window_begins_with_the_first_process_that_runs_and_ends_with_the_last_that_stops() -> None:
    arbiter = card(FIXED, a=NORMAL, b=NORMAL)
    for name in ("a/2", "b/2"):
        arbiter.join(name, name[0])
    look(arbiter, 5.0, "a b")
    look(arbiter, 5.025, "a b")
    assert stopped(arbiter) == ["a/1", "a/2"]
    arbiter.performed(
        [
            (Pause("a/1"), 5.026),
            (Pause("a/2"), 5.027),
            (Resume("b/1"), 5.028),
            (Resume("b/2"), 5.029),
            (Pause("x"), 9.0),
        ]
    )
    arbiter.tick(5.052)
    assert stopped(arbiter) == ["a/1", "a/2"]
    assert arbiter.deadline == pytest.approx(5.053)
    arbiter.tick(5.053)
    assert stopped(arbiter) == ["a/1", "a/2", "b/1", "b/2"]
    look(arbiter, 5.1, "a b")
    arbiter.tick(5.122)
    assert stopped(arbiter) == ["b/1", "b/2"]
    assert arbiter.deadline == pytest.approx(5.123), "the first had 2 ms more"


# --- how often ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isolation", "classes", "busy", "seconds"),
    [
        (BEST, {"a": NORMAL, "b": NORMAL}, "", REST),
        (BEST, {"a": NORMAL, "b": NORMAL}, "a", DOZE),  # nothing is decided by it
        (BURST, {"a": NORMAL, "b": NORMAL}, "a b", DOZE),
        (FIXED, {"a": NORMAL, "b": NORMAL}, "a", SAMPLE),
        (BEST, {"on": ONLINE, "b": OFFLINE}, "b", SAMPLE),
        (BEST, {"on": ONLINE, "b": OFFLINE}, "on", SAMPLE),
        (BEST, {"on": ONLINE, "b": NORMAL}, "b", DOZE),
        (BEST, {"on": ONLINE, "b": OFFLINE}, "", REST),
    ],
)
def test_activity_is_read_often_only_where_it_decides_something(
    isolation: Isolation, classes: dict[str, AppClass], busy: str, seconds: float
) -> None:
    assert look(card(isolation, **classes), 5.0, busy).deadline == 5.0 + seconds


@pytest.mark.parametrize(
    ("delay", "armed"),
    [
        (0.0, ["on/1"]),  # it was let go: its next launch is to be heard of at once
        (0.1, []),  # it holds the card and is read often
    ],
)
def test_online_work_is_armed_as_soon_as_it_rests_and_others_when_they_are_quiet(
    delay: float, armed: list[str]
) -> None:
    arbiter = card(BEST, delay, on=ONLINE, n=NORMAL, a=OFFLINE)
    look(arbiter, 4.9, "")
    names = ("on/1", "n/1", "a/1")
    arbiter.read({name: Reading(2, False) for name in names}, 5.0)
    arbiter.tick(5.0)
    arbiter.read({name: Reading(2, False) for name in names}, 5.01)
    assert [order.context for order in arbiter.tick(5.01) if isinstance(order, Arm)] == armed
