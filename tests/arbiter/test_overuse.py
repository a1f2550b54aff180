"""Who uses more memory than its limit, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.arbiter.overuse import (
    FORGET_AFTER,
    MARGIN,
    MARGINS,
    REPORT_AFTER,
    Overuse,
    ProcessUse,
    TenantUse,
    check,
    chosen,
    margin,
)

GIB = 1 << 30
LIMIT = 4 * GIB


def use(*memory: int, tenant: str = "a", limit: int | None = LIMIT, registered: bool = True) -> TenantUse:
    """A tenant with one process for each figure."""
    processes = (ProcessUse(10 + at, bytes_used, registered) for at, bytes_used in enumerate(memory))
    return TenantUse(tenant, limit, tuple(processes))


def run(
    looks: Sequence[tuple[float, TenantUse]], kill_after: float | None
) -> list[tuple[float, TenantUse, tuple[ProcessUse, ...], Overuse | None]]:
    """Each look with the processes that it ended, and the state after it."""
    over: dict[str, Overuse] = {}
    reports = []
    for now, seen in looks:
        verdict = check(over, [seen], now, kill_after)
        over = dict(verdict.over)
        reports.append((now, seen, tuple(process for _, process in verdict.end), over.get(seen.tenant)))
    return reports


uses = st.builds(
    TenantUse,
    st.just("a"),
    st.none() | st.integers(0, 8).map(lambda gib: gib * GIB),
    st.lists(
        st.builds(ProcessUse, st.integers(2, 99), st.integers(0, 12).map(lambda half: half * GIB // 2), st.booleans()),
        max_size=8,
        unique_by=lambda process: process.pid,
    ).map(tuple),
    st.booleans(),
)
gaps = st.floats(0.1, 5.0) | st.floats(50.0, 4000.0)
histories = st.lists(st.tuples(gaps, uses), max_size=40).map(
    lambda steps: [(sum(gap for gap, _ in steps[: at + 1]), seen) for at, (_, seen) in enumerate(steps)]
)


@given(histories, st.none() | st.floats(0.0, 20.0))
def test_only_tenants_over_their_limit_lose_processes_and_only_after_the_grace(
    looks: list[tuple[float, TenantUse]], kill_after: float | None
) -> None:
    seconds = 0.0  # over, by looks in a row, since the last process was ended
    before: tuple[float, TenantUse] | None = None
    for now, seen, ended, _ in run(looks, kill_after):
        if before is not None and before[1].excess and seen.excess:
            seconds += min(2.0, now - before[0])
        if ended:
            assert kill_after is not None
            assert seen.excess
            assert not seen.spared
            assert seconds >= max(kill_after, REPORT_AFTER) - 1e-6
            assert set(ended) <= set(seen.processes)
            seconds = 0.0
        before = (now, seen)


@given(uses)
def test_ending_the_chosen_processes_brings_a_tenant_within_its_limit_and_fewer_do_not(seen: TenantUse) -> None:
    ended = chosen(seen)
    left = tuple(process for process in seen.processes if process not in ended)
    assert not replace(seen, processes=left).excess
    assert bool(ended) == bool(seen.excess)
    if ended:
        assert replace(seen, processes=(*left, ended[-1])).excess


@given(st.floats(0.0, 30.0), st.floats(0.2, 2.0))
def test_tenant_that_stays_over_is_ended_soon_after_the_grace(kill_after: float, step: float) -> None:
    looks = [(at * step, use(6 * GIB)) for at in range(int(40 / step))]
    first = next(now for now, _, ended, _ in run(looks, kill_after) if ended)
    assert max(kill_after, REPORT_AFTER) - 1e-6 <= first <= max(kill_after, REPORT_AFTER) + 2 * step


def test_tenant_that_goes_back_for_a_moment_does_not_start_again() -> None:
    looks = [(float(at), use(1 * GIB if at % 10 == 9 else 6 * GIB)) for at in range(30)]
    assert any(ended for _, _, ended, _ in run(looks, 15.0))


def test_overuse_is_forgotten_after_a_while_within_the_limit() -> None:
    looks = [*((float(at), use(6 * GIB)) for at in range(9)), (8 + FORGET_AFTER, use(1 * GIB))]
    assert run(looks, None)[-1][3] is None


def test_time_in_which_the_daemon_stood_still_does_not_count() -> None:
    reports = run([(0.0, use(6 * GIB)), (3600.0, use(6 * GIB))], 10.0)
    assert not reports[-1][2]
    assert reports[-1][3] is not None
    assert reports[-1][3].spent == 2.0


def test_contexts_of_a_few_processes_are_tolerated() -> None:
    assert margin(1) == MARGIN
    assert margin(100) == margin(MARGINS) == MARGINS * MARGIN
    assert not use(LIMIT + MARGIN).excess
    assert use(LIMIT + MARGIN + 1).excess == MARGIN + 1
    assert not use(LIMIT, MARGIN, MARGIN).excess
    assert use(LIMIT, *[MARGIN] * 8).excess


def test_unregistered_processes_are_ended_first() -> None:
    registered, escaped = ProcessUse(1, 5 * GIB), ProcessUse(2, 4 * GIB, registered=False)
    assert chosen(TenantUse("a", 6 * GIB, (registered, escaped))) == (escaped,)


def test_card_of_its_own_and_spared_tenants_are_left_alone() -> None:
    looks = [(float(at), use(70 * GIB, limit=None)) for at in range(30)]
    assert not any(ended or over for _, _, ended, over in run(looks, 1.0))
    looks = [(float(at), replace(use(70 * GIB), spared=True)) for at in range(30)]
    reports = run(looks, 1.0)
    assert not any(ended for _, _, ended, _ in reports)
    assert reports[-1][3] is not None
    assert reports[-1][3].is_reported


def test_reported_figure_changes_seldom() -> None:
    """Each is an event."""
    looks = [(float(at), use(6 * GIB + at * (GIB // 16))) for at in range(32)]
    shown = [over.shown for _, _, _, over in run(looks, None) if over is not None]
    assert len(set(shown)) == 2


@given(st.lists(st.sampled_from("abc"), min_size=40, max_size=40), st.floats(0.0, 20.0))
def test_process_that_moves_between_tenants_is_ended_after_one_grace(tenants: list[str], kill_after: float) -> None:
    """A process may ask for a grant as often as it likes, and is the newest tenant's each time."""
    looks = [(float(at), use(6 * GIB, tenant=tenant)) for at, tenant in enumerate(tenants)]
    first = next(now for now, _, ended, _ in run(looks, kill_after) if ended)
    assert max(kill_after, REPORT_AFTER) <= first <= max(kill_after, REPORT_AFTER) + 1


def test_tenant_within_its_limit_or_without_those_processes_inherits_nothing() -> None:
    over = check({}, [use(6 * GIB, tenant="a")], 0.0, None).over
    over = check(over, [use(6 * GIB, tenant="a")], 2.0, None).over
    assert check(over, [use(1 * GIB, tenant="b")], 4.0, None).over == {}
    other = TenantUse("b", LIMIT, (ProcessUse(99, 6 * GIB),))
    assert check(over, [other], 4.0, None).over["b"].spent == 0.0


def test_reported_figure_changes_once_the_use_has_grown_by_more_than_a_quarter() -> None:
    reports = run([(0.0, use(8 * GIB)), (1.0, use(10 * GIB)), (2.0, use(10 * GIB + 1))], None)
    assert [over.shown for _, _, _, over in reports if over is not None] == [8 * GIB, 8 * GIB, 10 * GIB + 1]


def test_overuse_is_reported_after_exactly_that_time() -> None:
    reports = run([(0.0, use(6 * GIB)), (REPORT_AFTER, use(6 * GIB))], None)
    assert [over.is_reported for _, _, _, over in reports if over is not None] == [False, True]


@given(st.integers(0, 3))
def test_tenant_within_its_limit_again_is_no_finding(excess: int) -> None:
    over = Overuse(LIMIT, LIMIT, excess, since=0.0, last=0.0, spent=REPORT_AFTER)
    assert over.is_reported == (excess >= 1)


@given(st.floats(0.0, 9.0), st.floats(0.0, 9.0))
def test_longest_time_over_the_limit_counts_for_a_process_of_two_tenants(own: float, brought: float) -> None:
    pids = frozenset({10})
    before = {
        tenant: Overuse(LIMIT, 6 * GIB, 2 * GIB, since=0.0, last=0.0, spent=spent, pids=pids)
        for tenant, spent in (("a", own), ("b", brought))
    }
    assert check(before, [use(6 * GIB, tenant="a")], 0.0, None).over["a"].spent == max(own, brought)


@pytest.mark.parametrize(("kill_after", "ended"), [(4.0, True), (4.5, False), (None, False)])
def test_process_is_ended_after_exactly_the_grace(kill_after: float | None, ended: bool) -> None:
    reports = run([(at, use(LIMIT + 2 * MARGIN)) for at in (0.0, 2.0, 4.0)], kill_after)
    assert [bool(processes) for _, _, processes, _ in reports] == [False, False, ended]


@pytest.mark.parametrize(("processes", "margins"), [(0, 0), (1, 1), (4, 4), (5, 4)])
def test_few_processes_have_a_margin(processes: int, margins: int) -> None:
    assert margin(processes) == margins * MARGIN
    each = [LIMIT // max(1, processes)] * processes
    assert use(*each, limit=sum(each) - margins * MARGIN).excess == 0
    assert use(*each, limit=sum(each) - margins * MARGIN - 1).excess == margins * MARGIN + 1
