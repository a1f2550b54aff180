"""Who held a card in the last minute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.arbiter.timeline import BUCKETS, STEP, Came, Left, Record, Stretch, Taken, Timeline, _track

SERVER, TRAINING = Came("p1", "server", offline=False), Came("p2", "training", offline=True)


def a_timeline(*records: Record) -> Timeline:
    timeline = Timeline()
    timeline.add([SERVER, TRAINING, *records])
    return timeline


def shares(timeline: Timeline, tenant: str, now: float = 101.0, since: float = 100.0) -> list[int]:
    return [*timeline.window(round(since / STEP), now).tracks[tenant].shares]


def test_a_stretch_counts_in_the_buckets_it_lies_in() -> None:
    timeline = a_timeline((100.05, 100.25, {"p1": 0.5, "p2": 0.25}, False))
    assert shares(timeline, "server") == [25, 50, 25, 0, 0, 0, 0]
    assert shares(timeline, "training") == [12, 25, 12, 0, 0, 0, 0]


def test_a_tenants_processes_count_together() -> None:
    timeline = a_timeline(Came("p3", "server", offline=False), (100.0, 100.1, {"p1": 0.5, "p3": 0.25}, False))
    assert shares(timeline, "server")[:2] == [75, 0]


def test_offline_work_that_may_not_run_while_online_work_has_the_card_is_paused() -> None:
    window = a_timeline((100.0, 100.2, {"p1": 1.0}, True)).window(1000, 101.0)
    assert window.tracks["training"].paused[:3] == (1, 1, 0)
    assert window.tracks["server"].paused[:3] == (0, 0, 0)


def test_a_context_that_waits_for_its_turn_is_not_drawn_as_paused() -> None:
    window = a_timeline((100.0, 100.2, {"p1": 1.0}, False)).window(1000, 101.0)
    assert window.tracks["training"].paused[:3] == (0, 0, 0)


def test_less_than_half_a_bucket_is_no_pause_worth_drawing() -> None:
    window = a_timeline((100.06, 100.24, {"p1": 1.0}, True)).window(1000, 101.0)
    assert window.tracks["training"].paused[:3] == (0, 1, 0)


def test_a_tenant_that_left_is_still_drawn_where_it_was() -> None:
    timeline = a_timeline((100.0, 100.1, {"p1": 1.0}, False), Left("p1"))
    assert shares(timeline, "server")[0] == 100
    assert "server" not in timeline.window(1001, 101.0).tracks


def test_a_preemption_is_marked_when_it_happened() -> None:
    mark = Taken(100.42, "server", ("training",))
    timeline = a_timeline(mark)
    assert timeline.window(1000, 101.0).marks == (mark,)
    assert timeline.window(1005, 101.0).marks == ()
    edges = [Taken(at, "server", ()) for at in (99.5, 100.0, 100.5, 101.0)]
    assert a_timeline(*edges).window(1000, 101.3).marks == (edges[1], edges[2]), "buckets 1000 to before 1010"


def test_window_returns_only_buckets_that_will_not_change() -> None:
    window = a_timeline().window(None, 101.0)
    assert (window.first, window.end) == (1010 - 3 - BUCKETS, 1010 - 3)
    for since, first in ((0, 1007 - BUCKETS), (1007 - BUCKETS, 1007 - BUCKETS), (1006, 1006), (1008, 1007)):
        assert a_timeline().window(since, 101.0).first == first
    assert window.end * STEP <= 101.0 - 2 * STEP


def test_windows_in_pieces_equal_one_window() -> None:
    timeline = a_timeline(*[(100 + at / 10, 100.1 + at / 10, {"p1": at / 10}, False) for at in range(10)])
    first, rest = timeline.window(1000, 100.8), timeline.window(1005, 101.3)
    assert first.end == 1005
    assert first.tracks["server"].shares + rest.tracks["server"].shares == tuple(shares(timeline, "server", 101.3))


def test_a_stretch_longer_than_all_that_is_kept_costs_no_more_than_that() -> None:
    timeline = a_timeline((0.0, 1e6, {"p1": 1.0}, False))
    window = timeline.window(None, 1e6 + 0.3)
    assert window.tracks["server"].shares == (100,) * BUCKETS
    assert len(timeline._buckets) <= BUCKETS + 1


def test_timeline_keeps_no_more_than_the_last_minute_while_no_viewer_looks() -> None:
    timeline = a_timeline()
    for at in range(5000):
        timeline.add([(at / 10, (at + 1) / 10, {"p1": 1.0}, False)])
    assert len(timeline._buckets) <= BUCKETS + 1
    assert timeline.drawn() == {"server", "training"}


def test_keep_drops_contexts_whose_leaving_was_lost() -> None:
    timeline = a_timeline()
    timeline.keep({"server"})
    assert timeline.window(None, 101.0).tracks.keys() == {"server"}


def test_a_bucket_shows_the_whole_card_at_most() -> None:
    """Two stretches may overlap a little, when the clock was read between them."""
    timeline = a_timeline((100.0, 100.1, {"p1": 1.0}, False), (100.09, 100.2, {"p1": 1.0}, False))
    assert shares(timeline, "server")[:2] == [100, 100]


@given(st.integers(0, 1024))
def test_a_tenant_is_paused_in_a_bucket_of_which_it_was_held_off_half(part: int) -> None:
    """In 1024ths of the first bucket, whose ends are exact."""
    window = a_timeline((0.0, STEP * part / 1024, {}, True)).window(0, 1.0)
    assert window.tracks["training"].paused[0] == (part >= 512)


_parts = st.dictionaries(st.sampled_from(["p1", "p2", "stranger"]), st.floats(0.0, 0.5))
_stretches = st.lists(st.tuples(st.floats(0.0, 1.0), _parts, st.booleans()), max_size=50)


@given(_stretches)
def test_timeline_draws_no_more_than_was_held(steps: list[tuple[float, dict[str, float], bool]]) -> None:
    now, had, records = 100.0, 0.0, list[Stretch]()
    for length, parts, held in steps:
        records.append((now, now + length, parts, held))
        had += length * parts.get("p1", 0.0)
        now += length
    drawn = sum(a_timeline(*records).window(None, now + 0.5).tracks["server"].shares) / 100 * STEP
    assert drawn == pytest.approx(had, abs=0.006 * STEP * len(steps) * 12 + 1e-6)


def test_track_shows_percent_and_pauses_of_half_a_bucket() -> None:
    track = _track([None, [STEP / 4, STEP / 2], [STEP * 2, 0.0], [0.0, 0.49 * STEP]])
    assert (track.shares, track.paused) == ((0, 25, 100, 0), (0, 1, 0, 0))


def test_drawn_are_those_that_are_there_had_the_card_or_are_marked() -> None:
    timeline = Timeline()
    timeline.add([Came("p", "gone", offline=False), (1.0, 2.0, {"p": 1.0}, False), Left("p"), SERVER])
    timeline.add([Taken(1.5, None, ("loser",)), Taken(1.6, "winner", ())])
    assert timeline.drawn() == {"gone", "server", "loser", "winner"}
