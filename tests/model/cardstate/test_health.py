"""What takes a card out, and what brings it back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.cardstate.health import OF_THE_APPLICATION, PROBATION, Health, answered, describe_xid, hit, missed

WELL = Health()
FELL_OFF = hit(WELL, 79)
BAD_MEMORY = hit(WELL, 48)


def answers(health: Health, times: int) -> Health:
    for _ in range(times):
        health = answered(health)
    return health


@pytest.mark.parametrize("xid", sorted(OF_THE_APPLICATION))
def test_an_xid_of_the_application_takes_no_card_out(xid: int) -> None:
    assert hit(WELL, xid) == WELL
    assert hit(FELL_OFF, xid) == FELL_OFF, "nor does it say anything of one that is out"


def test_ignored_xids_are_those_of_nvidias_device_plugin() -> None:
    assert {13, 31, 43, 45, 68, 109} == OF_THE_APPLICATION


@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 94, 95, 119, 120, 999])
def test_any_other_xid_even_unknown_takes_the_card_out_at_once(xid: int) -> None:
    assert hit(WELL, xid).is_out
    assert str(xid) in (hit(WELL, xid).why or "")


def test_node_owner_can_ignore_more_xids() -> None:
    assert not hit(WELL, 94, ignored={94}).is_out


def test_xid_reason_has_words_where_known() -> None:
    assert FELL_OFF.why == "Xid 79, it fell off the bus"
    assert describe_xid(999) == "Xid 999"


def test_first_xid_is_the_cause() -> None:
    assert hit(hit(WELL, 79), 45).why == FELL_OFF.why
    assert hit(hit(WELL, 79), 119).why == FELL_OFF.why


def test_answers_alone_do_not_bring_back_what_an_xid_took_out() -> None:
    """It may answer and compute wrong results."""
    assert answers(BAD_MEMORY, 1000).is_out


def test_one_missed_answer_is_not_a_reset() -> None:
    assert answers(missed(BAD_MEMORY, "busy"), 1000).is_out


def test_reset_card_is_back_after_three_answers() -> None:
    """The card was gone after the Xid, and it answers again: an operator reset it."""
    back = missed(BAD_MEMORY, "GPU is lost", lost=True)
    assert answers(back, PROBATION - 1).is_out
    assert not answers(back, PROBATION).is_out


def test_card_silent_for_a_while_is_back_after_three_answers() -> None:
    assert not answers(missed(missed(BAD_MEMORY, "x"), "x"), PROBATION).is_out


def test_card_that_fell_off_the_bus_and_answers_counts_as_reset() -> None:
    assert answers(FELL_OFF, PROBATION - 1).is_out
    assert not answers(FELL_OFF, PROBATION).is_out


def test_xid_after_a_reset_takes_the_card_out_again() -> None:
    back = answers(missed(BAD_MEMORY, "GPU is lost", lost=True), 1)
    assert answers(hit(back, 48), 1000).is_out
    assert answers(hit(answers(back, PROBATION), 48), 1000).why == describe_xid(48)


def test_late_xid_is_still_the_cause() -> None:
    """The look was faster than the event."""
    late = hit(missed(WELL, "GPU is lost", lost=True), 119)
    assert late.why == describe_xid(119)
    assert answers(late, PROBATION - 1).is_out
    assert not answers(late, PROBATION).is_out


def test_one_missed_answer_is_forgiven_and_two_are_not() -> None:
    once = missed(WELL, "timeout")
    assert not once.is_out
    assert not missed(answered(once), "timeout").is_out
    assert missed(once, "timeout").why == "timeout"


def test_a_card_that_the_driver_lost_is_out_at_once() -> None:
    assert missed(WELL, "GPU is lost", lost=True).why == "GPU is lost"


def test_a_silent_card_is_back_after_three_answers_running() -> None:
    out = missed(WELL, "GPU is lost", lost=True)
    assert answers(out, PROBATION - 1).is_out
    assert not answers(out, PROBATION).is_out
    flapping = missed(answers(out, PROBATION - 1), "timeout")
    assert answers(flapping, PROBATION - 1).is_out, "it has to begin anew"


_events = st.lists(
    st.one_of(
        st.just(answered),
        st.just(lambda health: missed(health, "timeout")),
        st.just(lambda health: missed(health, "lost", lost=True)),
        st.sampled_from([13, 48, 79]).map(lambda xid: lambda health: hit(health, xid)),
    )
)


@given(_events)
def test_reset_and_three_answers_always_bring_the_card_back(events: list) -> None:  # type: ignore[type-arg]
    health = WELL
    for event in events:
        before, health = health, event(health)
        assert before.is_out or not health.is_out or health.answers == 0, "an answer takes no card out"
    assert not answers(missed(health, "lost", lost=True), PROBATION).is_out
