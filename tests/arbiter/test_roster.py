"""Who is on the card, what is theirs, and who was active lately."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.arbiter.roster import _MEMORY, DOUBT_AFTER, IDLE_AFTER, Context, Member, Reading, Roster
from aliquot.model.claim import AppClass


def roster(**quotas: int | None) -> Roster:
    return Roster({name: Member(name, AppClass.NORMAL, milli) for name, milli in quotas.items()})


class TestQuotas:
    @given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.none() | st.integers(1, 1000), max_size=20))
    def test_quotas_are_parts_of_one_card(self, asked: dict[str, int | None]) -> None:
        found = roster(**asked).quotas(asked)
        assert found.keys() == asked.keys()
        assert sum(found.values()) <= 1.0 + 1e-9
        assert all(part > 0.0 for part in found.values())

    @given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 1000), min_size=1))
    def test_quotas_are_ordered_as_requested_and_never_more_than_requested(self, asked: dict[str, int]) -> None:
        found = roster(**asked).quotas(asked)
        for name, milli in asked.items():
            assert found[name] <= milli / 1000 + 1e-9
            assert all(found[name] <= found[other] for other in asked if milli < asked[other])

    @given(
        st.dictionaries(
            st.sampled_from("abcdefgh"), st.tuples(st.sampled_from(AppClass), st.none() | st.integers(1, 1000))
        )
    )
    def test_an_offline_quota_is_at_most_its_part_of_what_other_classes_leave(
        self, asked: dict[str, tuple[AppClass, int | None]]
    ) -> None:
        found = Roster({name: Member(name, *member) for name, member in asked.items()}).quotas(asked)
        assert sum(found.values()) <= 1.0 + 1e-9
        left = 1.0 - sum((milli or 0) / 1000 for kind, milli in asked.values() if kind is not AppClass.OFFLINE)
        for name, (kind, milli) in asked.items():
            if kind is AppClass.OFFLINE and milli is not None:
                assert 0.0 < found[name] <= max(milli / 1000 * left, 0.01) + 1e-9

    def test_quotas_that_fit_are_given_as_requested(self) -> None:
        assert roster(a=300, b=500).quotas(["a", "b"]) == {"a": 0.3, "b": 0.5}

    def test_tenants_without_a_quota_share_what_the_others_leave(self) -> None:
        assert roster(a=400, b=None, c=None).quotas("abc") == pytest.approx({"a": 0.4, "b": 0.3, "c": 0.3})

    def test_a_tenant_without_a_quota_gets_something_on_a_full_card(self) -> None:
        found = roster(a=600, b=400, c=None).quotas("abc")
        assert found["c"] == pytest.approx(0.01, rel=0.02)
        assert sum(found.values()) == pytest.approx(1.0)


class TestActivity:
    def of(self) -> tuple[Roster, Context]:
        context = Context("a/1", "a")
        return Roster({"a": Member("a", AppClass.NORMAL, None)}, {"a/1": context}), context

    def read(self, roster: Roster, now: float, reading: Reading, *, enabled: bool = True) -> None:
        roster.read({"a/1": reading}, ["a/1"] if enabled else [], now)

    def test_a_new_context_is_not_active(self) -> None:
        roster, context = self.of()
        self.read(roster, 0.0, Reading(70, False))
        assert not context.active

    def test_a_launch_is_activity(self) -> None:
        roster, context = self.of()
        self.read(roster, 0.0, Reading(70, False))
        self.read(roster, 0.01, Reading(71, False))
        assert context.active
        assert context.last_active == 0.01

    def test_a_context_that_waits_for_the_card_is_active_however_long(self) -> None:
        roster, context = self.of()
        for at in range(100):
            self.read(roster, at / 10, Reading(1, True))
        assert context.active

    def test_a_context_is_idle_after_a_while_without_launch_or_wait(self) -> None:
        roster, context = self.of()
        self.read(roster, 0.0, Reading(0, False))
        self.read(roster, 1.0, Reading(1, False))
        self.read(roster, 1.0 + IDLE_AFTER - 0.001, Reading(1, False))
        assert context.active
        self.read(roster, 1.0 + IDLE_AFTER + 0.001, Reading(1, False))
        assert not context.active

    def test_a_wait_that_ended_since_the_last_look_may_have_ended_just_now(self) -> None:
        roster, context = self.of()
        self.read(roster, 0.0, Reading(1, True))
        self.read(roster, 0.3, Reading(1, False, busy=0.3))
        assert context.last_active == 0.3

    def test_a_wait_that_ended_without_another_launch_ended_when_its_work_did(self) -> None:
        roster, context = self.of()
        self.read(roster, 0.0, Reading(1, True, outstanding=True))
        self.read(roster, 0.03, Reading(1, False, busy=0.02))
        assert (context.last_active, context.idle_for) == pytest.approx((0.02, 0.01))
        assert context.resting

    def test_a_wait_for_a_copy_may_have_ended_just_now(self) -> None:
        """Copies are no work: it says nothing about when it ended."""
        roster, context = self.of()
        self.read(roster, 0.0, Reading(1, True))
        self.read(roster, 0.03, Reading(1, False))
        assert context.last_active == 0.03

    def test_a_wait_that_ended_after_another_launch_may_have_ended_just_now(self) -> None:
        roster, context = self.of()
        self.read(roster, 0.0, Reading(1, True, outstanding=True))
        self.read(roster, 0.03, Reading(2, False, busy=0.02))
        assert context.last_active == 0.03

    def test_a_paused_context_stays_as_active_as_it_was(self) -> None:
        roster, context = self.of()
        self.read(roster, 0.0, Reading(1, True))
        self.read(roster, 10.0, Reading(1, False), enabled=False)
        assert context.active

    def test_work_that_was_not_seen_done_keeps_a_context_active(self) -> None:
        """A kernel of a second, handed over and not waited for: no launch, no wait, and the card is taken."""
        roster, context = self.of()
        self.read(roster, 0.0, Reading(0, False))
        self.read(roster, 0.01, Reading(1, False, outstanding=True))
        self.read(roster, 1.0, Reading(1, False, outstanding=True))
        assert context.active
        assert context.quiet  # so its next launch rings

    def test_unseen_work_is_doubtful_after_a_while(self) -> None:
        roster, context = self.of()
        self.read(roster, 0.0, Reading(0, False))
        self.read(roster, 1.0, Reading(1, False, outstanding=True))
        self.read(roster, 1.0 + DOUBT_AFTER + 0.01, Reading(1, False, outstanding=True))
        assert context.doubtful

    @given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.booleans(), st.booleans(), st.floats(-1.0, 1.0))))
    def test_roster_survives_any_reading_and_any_clock(self, readings: list[tuple[int, bool, bool, float]]) -> None:
        roster, context = self.of()
        now = 0.0
        for launches, waiting, outstanding, step in readings:
            now += step
            self.read(roster, now, Reading(launches, waiting, outstanding))
            assert context.idle_for >= 0.0


def test_a_context_without_a_tenant_is_ignored_until_its_tenant_is_known() -> None:
    roster = Roster({}, {"a/1": Context("a/1", "a")})
    assert roster.of_class(AppClass.NORMAL) == []
    roster.members["a"] = Member("a", AppClass.NORMAL, None)
    assert [context.name for context in roster.of_class(AppClass.NORMAL)] == ["a/1"]


def test_lately_returns_recently_active_contexts_or_all() -> None:
    first, second = Context("a", "a", last_active=10.0), Context("b", "b", last_active=9.5)
    assert Roster().lately([first, second], 10.7) == [first]
    assert Roster().lately([first, second], 99.0) == [first, second]


def test_part_of_the_time_in_which_a_context_had_work_follows_what_is_read() -> None:
    roster = Roster({"a": Member("a", AppClass.NORMAL, None)}, {"a/1": Context("a/1", "a")})
    context = roster.contexts["a/1"]
    for now, busy, enabled in ((0.0, 0.0, True), (0.5, 0.25, True), (1.0, 9.0, False), (1.0, 9.0, True)):
        roster.read({"a/1": Reading(1, False, busy=busy)}, ["a/1"] if enabled else [], now)
    weight = 0.5 / (0.5 + _MEMORY)
    assert context.part_busy == weight * 0.5
    context.ran(Reading(1, False, busy=9.0), 0.5)
    assert context.part_busy == pytest.approx(weight * 0.5 + weight * (1.0 - weight * 0.5))


def test_clock_that_went_back_makes_no_time_since_the_last_reading() -> None:
    found = Roster()
    assert found.unread(5.0) == 0.0
    found.read({}, [], 5.0)
    assert (found.unread(5.5), found.unread(4.0)) == (0.5, 0.0)
