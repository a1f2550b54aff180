"""How long each context may run at a stretch."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.arbiter import slices
from aliquot.arbiter.roster import Context

_processes = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 4), min_size=1)


def contexts(processes: dict[str, int]) -> list[Context]:
    return [Context(f"{tenant}/{at}", tenant) for tenant, count in processes.items() for at in range(count)]


def gained(found: dict[str, int]) -> Counter[str]:
    """What a round of slices is worth to each tenant: each switch is paid from the slice."""
    worth: Counter[str] = Counter()
    for name, length in found.items():
        worth[name.partition("/")[0]] += length - slices.SWITCH
    return worth


@given(_processes)
def test_equal_tenants_gain_the_same_however_many_processes(processes: dict[str, int]) -> None:
    worth = gained(slices.equal(contexts(processes)))
    assert max(worth.values()) - min(worth.values()) <= max(processes.values())
    assert min(worth.values()) >= slices.FAIR - max(processes.values())
    assert max(worth.values()) <= slices.FAIR * max(processes.values()), "no longer than the many processes of one need"


@given(_processes, st.data())
def test_proportional_tenants_gain_by_quota(processes: dict[str, int], data: st.DataObject) -> None:
    quotas = {tenant: data.draw(st.floats(0.05, 1.0)) for tenant in processes}
    worth, total = gained(slices.proportional(contexts(processes), quotas)), sum(quotas.values())
    for tenant, quota in quotas.items():
        assert worth[tenant] / worth.total() == pytest.approx(quota / total, abs=0.01)


@given(_processes, st.data())
def test_no_slice_of_those_that_contend_is_too_short_to_get_anything_done(
    processes: dict[str, int], data: st.DataObject
) -> None:
    """Trap 1: below the cost of a switch no context makes progress."""
    every = contexts(processes)
    quotas = {tenant: data.draw(st.sampled_from([0.0]) | st.floats(0.0001, 1.0)) for tenant in processes}
    busy = data.draw(st.lists(st.sampled_from(every), unique_by=id))
    found = [slices.equal(every), slices.proportional(every, quotas)]
    found += [slices.online(every, busy, cut=cut) for cut in (False, True)]
    assert min(length for lengths in found for length in lengths.values()) >= 5 * slices.SWITCH


@given(_processes, st.data())
def test_shares_last_when_the_daemon_is_gone_and_offline_slices_do_not(
    processes: dict[str, int], data: st.DataObject
) -> None:
    every = contexts(processes)
    quotas = {tenant: data.draw(st.sampled_from([0.0]) | st.floats(0.0001, 1.0)) for tenant in processes}
    found = [*slices.equal(every).values(), *slices.proportional(every, quotas).values()]
    assert all(map(slices.lasting, found))
    assert not any(map(slices.lasting, (slices.TINY, slices.BRIEF, slices.LONG, None)))


def test_one_online_context_alone_is_never_cut() -> None:
    only = contexts({"a": 1})
    assert slices.online(only, only, cut=True) == {"a/0": slices.LONG}


@given(_processes, st.booleans(), st.data())
def test_no_two_online_contexts_have_long_slices(processes: dict[str, int], cut: bool, data: st.DataObject) -> None:
    """Trap 2: two long ones starve each other."""
    every = contexts(processes)
    found = slices.online(every, data.draw(st.lists(st.sampled_from(every), unique_by=id)), cut=cut)
    if len(every) > 1:
        assert slices.LONG not in found.values()
        assert sum(length > 3_000 for length in found.values()) <= 1


@pytest.mark.parametrize(
    ("processes", "lengths"),
    [
        ({}, {}),
        ({"a": 1}, {"a/0": 12_180}),
        ({"a": 1, "b": 2}, {"a/0": 24_180, "b/0": 12_180, "b/1": 12_180}),
        ({"a": 4, "b": 1}, {**{f"a/{at}": 12_180 for at in range(4)}, "b/0": 48_180}),
        ({"a": 5, "b": 1}, {**{f"a/{at}": 9_780 for at in range(5)}, "b/0": 48_180}),  # the longest
        ({"a": 60}, {f"a/{at}": 1_000 for at in range(60)}),  # the shortest
    ],
)
def test_equal_slices(processes: dict[str, int], lengths: dict[str, int]) -> None:
    assert slices.equal(contexts(processes)) == lengths


@pytest.mark.parametrize(
    ("processes", "quotas", "lengths"),
    [
        ({}, {}, {}),
        ({"a": 1}, {"a": 0.3}, {"a/0": 8_180}),
        ({"a": 1, "b": 1}, {"a": 0.25, "b": 0.25}, {"a/0": 8_180, "b/0": 8_180}),
        ({"a": 1, "b": 1}, {"a": 0.75, "b": 0.25}, {"a/0": 24_180, "b/0": 8_180}),
        ({"a": 2, "b": 1}, {"a": 0.5, "b": 0.5}, {"a/0": 8_180, "a/1": 8_180, "b/0": 16_180}),
        ({"a": 1, "b": 1}, {"a": 0.98, "b": 0.02}, {"a/0": 196_180, "b/0": 4_180}),  # the longest round
        ({"a": 1, "b": 1}, {"a": 0.999, "b": 0.001}, {"a/0": 199_980, "b/0": 1_000}),
        ({"a": 1, "b": 1}, {"a": 0.5, "b": 0.0}, {"a/0": 8_180, "b/0": 1_000}),
        ({"a": 1, "b": 2}, {"a": 0.0, "b": 0.0}, {"a/0": 24_180, "b/0": 12_180, "b/1": 12_180}),  # as equal tenants
        ({"a": 1, "b": 4}, {"a": 1.0, "b": 5e-324}, {"a/0": 200_180, **{f"b/{at}": 1_000 for at in range(4)}}),
    ],
)
def test_proportional_slices(processes: dict[str, int], quotas: dict[str, float], lengths: dict[str, int]) -> None:
    assert slices.proportional(contexts(processes), quotas) == lengths


@pytest.mark.parametrize(
    ("microseconds", "stays"), [(999, False), (1_000, True), (250_000, True), (250_001, False), (None, False)]
)
def test_slices_that_last(microseconds: int | None, stays: bool) -> None:
    assert slices.lasting(microseconds) is stays


@pytest.mark.parametrize(
    ("busy", "cut", "lengths"),
    [([], True, (2_000, 2_000)), ([0], True, (20_000, 2_000)), ([1], True, (2_000, 20_000)),
     ([0], False, (2_000, 2_000)), ([0, 1], True, (2_000, 2_000))],
)  # fmt: skip
def test_online_slices(busy: list[int], cut: bool, lengths: tuple[int, int]) -> None:
    every = contexts({"a": 1, "b": 1})
    found = slices.online(every, [every[at] for at in busy], cut=cut)
    assert (found["a/0"], found["b/0"]) == lengths
