"""Which moves of tenants' memory are noted, and which are reported."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aliquot.adapters.gpu.page import Move, State
from aliquot.model.residency import Arrival, ParkReason, Where
from aliquot.services.runtime.elastic.moves import Arrivals, MovePace

KEY = ("u1", "GPU-0")
LEFT = Arrival(*KEY, Where.PARKED, 12 << 30, 0.4, ParkReason.IDLE)
BACK = Arrival(*KEY, Where.RESIDENT, 12 << 30, 0.3, away=5.0)


class TestArrivals:
    @staticmethod
    def note(arrivals: Arrivals, *path: Where, is_new: bool = True, state: State = State.RESIDENT) -> list[Arrival]:
        move = Move(0, state, 0, 0, 0, 0, 2, 0, 400_000_000, 300_000_000, 0)
        for now, where in enumerate(path):
            parked = 12 << 30 if where is not Where.RESIDENT else 0
            arrivals.note(KEY, where, [move], parked, ParkReason.IDLE, 5.0 * now, is_new=is_new)
        return arrivals.take()

    def test_way_out_and_way_back_are_noted_when_they_have_ended(self) -> None:
        arrivals = Arrivals()
        assert self.note(arrivals, Where.LEAVING, Where.PARKED, Where.RETURNING, Where.RESIDENT) == [
            LEFT,
            Arrival(*KEY, Where.RESIDENT, 12 << 30, 0.3, away=10.0),
        ]
        assert arrivals.take() == []

    def test_moves_that_gave_up_are_not_noted(self) -> None:
        arrivals = Arrivals()
        assert self.note(arrivals, Where.LEAVING, Where.RESIDENT) == []
        assert self.note(arrivals, Where.LEAVING, Where.PARKED, Where.RETURNING, Where.PARKED) == [LEFT]

    def test_memory_that_was_parked_before_we_came_has_only_its_way_back(self) -> None:
        arrivals = Arrivals()
        assert self.note(arrivals, Where.PARKED, is_new=False) == []
        (back,) = self.note(arrivals, Where.RESIDENT)
        assert (back.where, back.size, back.away) == (Where.RESIDENT, 12 << 30, None)

    def test_lost_memory_is_not_noted_as_back(self) -> None:
        assert self.note(Arrivals(), Where.PARKED, Where.RESIDENT, state=State.LOST) == [LEFT]

    def test_next_process_of_a_tenant_that_ended_while_parked_leaves_anew(self) -> None:
        arrivals = Arrivals()
        assert self.note(arrivals, Where.PARKED) == [LEFT]
        arrivals.forget(KEY)
        assert self.note(arrivals, Where.RESIDENT, Where.PARKED) == [LEFT]

    def test_arrivals_that_are_never_taken_are_bounded(self) -> None:
        assert len(self.note(Arrivals(), *[Where.PARKED, Where.RESIDENT] * 5000)) == 1000


class TestMovePace:
    def test_first_pair_is_reported_at_once(self) -> None:
        pace = MovePace()
        assert pace.choose([LEFT], 100.0) == [(LEFT, 0)]
        assert pace.choose([BACK], 105.0) == [(BACK, 0)]
        assert MovePace().choose([LEFT, BACK], 100.0) == [(LEFT, 0), (BACK, 0)]

    def test_pairs_of_the_same_minute_are_counted_and_left_out(self) -> None:
        pace = MovePace()
        pace.choose([LEFT, BACK], 100.0)
        assert pace.choose([LEFT, BACK, LEFT, BACK], 130.0) == []
        assert pace.choose([LEFT], 161.0) == [(LEFT, 4)]
        assert pace.choose([BACK], 162.0) == [(BACK, 0)]

    def test_memory_that_stays_away_is_reported_when_the_minute_is_over(self) -> None:
        pace = MovePace()
        pace.choose([LEFT, BACK], 100.0)
        assert [pace.choose(new, now) for new, now in (([LEFT], 110.0), ([], 159.0), ([], 160.0), ([], 161.0))] == [
            [],
            [],
            [(LEFT, 0)],
            [],
        ]
        assert pace.choose([BACK], 165.0) == [(BACK, 0)]

    def test_long_absence_ends_with_a_report(self) -> None:
        pace = MovePace()
        pace.choose([LEFT], 100.0)
        assert pace.choose([BACK], 4000.0) == [(BACK, 0)]

    def test_return_of_memory_that_was_parked_before_we_came_is_reported(self) -> None:
        pace = MovePace()
        assert pace.choose([BACK], 100.0) == [(BACK, 0)]
        assert pace.choose([LEFT], 110.0) == []

    @given(st.lists(st.tuples(st.floats(0, 100), st.booleans())))
    def test_a_minute_has_one_pair_every_move_counts_and_the_last_report_is_true(
        self, steps: list[tuple[float, bool]]
    ) -> None:
        """A process may end while its memory is parked: then two ways out follow each other."""
        pace, now, state = MovePace(), 0.0, Where.RESIDENT
        reported: list[tuple[float, Arrival, int]] = []
        moves = 0
        for pause, ends in steps:
            now += pause
            arrival = LEFT if state is Where.RESIDENT or ends else BACK
            state = arrival.where
            moves += 1
            reported += [(now, *one) for one in pace.choose([arrival], now)]
        now += 61.0
        reported += [(now, *one) for one in pace.choose([], now)]
        for where in (Where.PARKED, Where.RESIDENT):
            assert [one.where for _, one, _ in reported].count(where) <= now / 60 + 1
        starts = [at for at, one, _ in reported if one.where is Where.PARKED]
        assert all(later - sooner >= 60.0 for sooner, later in pairwise(starts))
        assert len(reported) + sum(left_out for *_, left_out in reported) + pace.left_out == moves
        assert not steps or reported[-1][1].where is state
