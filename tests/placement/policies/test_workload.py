"""What kind of Pods come: learned from those seen, again when the mix has changed, and forgotten by halves."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aliquot.model.claim import Slice
from aliquot.placement.demand import demand_of
from aliquot.placement.policies import workload as module
from aliquot.placement.policies.workload import Shape, Workload, shape_of, typical_pods
from kit.values.builders import GIB, a_claim, a_container, a_slice, asking, whole_cards, whole_node


def test_the_workload_covers_95_percent_by_frequency() -> None:
    workload = Workload()
    for at in range(100):
        workload.observe(demand_of(asking(core=50 if at < 60 else 30 if at < 96 else at - 90)), 16 * GIB)
    lesson = workload.lesson()
    assert [(shape.milli, times) for shape, times in lesson] == [(500, 60), (300, 36)]


def test_workload_of_equally_frequent_shapes_leaves_out_the_largest() -> None:
    workload = Workload()
    for core in range(100, 0, -5):
        workload.observe(demand_of(asking(core=core)), 16 * GIB)
    assert [(shape.milli, times) for shape, times in workload.lesson()] == [(50 * at, 1) for at in range(1, 20)]


@pytest.mark.parametrize(
    ("shapes", "per_milli"),
    [
        ([], 0.0),
        ([(Shape(0, 0, 500), 1)], 0.0),
        ([(Shape(1, 1000, 4000), 1)], 4.0),
        ([(Shape(2, 500, 3000), 1), (Shape(1, 1000, 1000), 3), (Shape(0, 0, 500), 9)], 1.5),
    ],
)
def test_cpu_of_typical_pods_is_by_what_they_have_of_cards(shapes: list[tuple[Shape, int]], per_milli: float) -> None:
    assert typical_pods(shapes).cpu_per_milli == per_milli


def test_memory_shares_are_compared_by_the_usual_card_and_the_larger_dimension_counts() -> None:
    workload = Workload()
    workload.observe(demand_of(asking(8, 30)), 16 * GIB)
    workload.observe(demand_of(a_claim(a_container(Slice(memory_percent=25), 2))), 16 * GIB)
    workload.observe(demand_of(a_claim(cpu_milli=500)), 16 * GIB)
    workload.observe(demand_of(a_claim(a_container(Slice(greedy_milli=300)))), 16 * GIB)
    workload.observe(demand_of(asking(32, 30)), 16 * GIB)
    apart = (a_container(a_slice(size), name=f"c{size}") for size in (4, 12))
    workload.observe(demand_of(a_claim(*apart)), 16 * GIB)
    seen = {(1, 500), (2, 250), (0, 0), (1, 1000), (2, 750)}
    assert {(shape.count, shape.milli) for shape, _ in workload.lesson()} == seen


def test_shape_of_a_pod_that_takes_a_whole_node_is_one_whole_card_with_its_cpu_and_models() -> None:
    claim = replace(whole_node(), cpu_milli=700, models=frozenset({"B", "A"}))
    assert shape_of(demand_of(claim), 16 * GIB) == Shape(1, 1000, 700, ("A", "B"))
    assert shape_of(demand_of(whole_cards(2)), 16 * GIB) == Shape(2, 1000, 0)
    for mib, milli in ((9900, 990), (9901, 1000), (9905, 1000)):
        assert shape_of(demand_of(a_claim(a_container(Slice(memory_mib=mib)))), 10_000) == Shape(1, milli, 0)
    claim = asking(4, cpu_milli=700, models=frozenset({"B", "A"}))
    assert shape_of(demand_of(claim), 16 * GIB) == Shape(1, 250, 700, ("A", "B"))


def test_workload_relearns_only_for_a_new_mix() -> None:
    workload, news = Workload(), []
    for at in range(4000):
        workload.observe(demand_of(asking(core=50 if at % 3 else 20)), 16 * GIB)
        if workload.has_news():
            workload.lesson()
            news.append(at)
    assert news == [31]
    for at in range(4000, 12000):
        workload.observe(demand_of(asking(core=10)), 16 * GIB)
        if workload.has_news():
            workload.lesson()
            news.append(at)
    assert len(news) > 1


def test_workload_looks_again_once_it_has_seen_half_as_many_more() -> None:
    workload, looked = Workload(), []
    for at in range(1, 109):
        workload.observe(demand_of(asking(core=at % 20 * 5 + 5)), 16 * GIB)
        before = workload._next_look
        workload.has_news()
        if workload._next_look != before:
            looked.append(at)
    assert looked == [32, 48, 72, 108]


def test_old_pods_are_forgotten() -> None:
    workload, half, tenth = Workload(), demand_of(asking(core=50)), demand_of(asking(core=10))
    for demand, times in ((half, 40_000), (tenth, 200_000)):
        for _ in range(times):
            workload.observe(demand, 16 * GIB)
    [(shape, _)] = workload.lesson()
    assert shape.milli == 100
    for _ in range(200_000):  # until nothing is left of the first
        workload.observe(tenth, 16 * GIB)
    assert workload.everything() == [(shape, workload._total)]


@pytest.mark.parametrize(("others", "news"), [(7, False), (8, True), (9, True)])
def test_mix_is_new_when_more_than_one_pod_in_twenty_is_of_another_shape(others: int, news: bool) -> None:
    workload = Workload()
    usual, other = (demand_of(a_claim(a_container(Slice(core_milli=milli)))) for milli in (500, 250))
    for _ in range(100):
        workload.observe(usual, 16 * GIB)
    assert workload.has_news()
    workload.lesson()
    for at in range(50):
        workload.observe(other if at < others else usual, 16 * GIB)
    assert workload.has_news() is news


@pytest.mark.parametrize(("others", "news"), [(20, False), (21, True)])
def test_mix_is_not_new_at_exactly_the_limit(monkeypatch: pytest.MonkeyPatch, others: int, news: bool) -> None:
    """An eighth of 160."""
    monkeypatch.setattr(module, "_NEWS", 0.125)
    workload = Workload()
    for at in range(160):
        if at == 100:
            assert workload.has_news()
            workload.lesson()
        workload.observe(demand_of(asking(core=25 if at >= 160 - others else 50)), 16 * GIB)
    assert workload.has_news() is news


def test_rarest_pods_count_for_something() -> None:
    shapes = [(Shape(1, 500, 0), 2**21), (Shape(2, 1000, 0), 1)]
    assert typical_pods(shapes).served.tolist() == [[0.0, 0.0], [2**20 - 1.0, 1.0]]


def _seen(workload: Workload, core: int, times: int) -> list[bool]:
    """That many Pods of so many percent: after each, whether there is news."""
    news = []
    for _ in range(times):
        workload.observe(demand_of(asking(core=core)), 16 * GIB)
        news.append(workload.has_news())
    return news


def test_first_32_pods_are_news_to_a_workload() -> None:
    assert _seen(Workload(), 50, 32) == [False] * 31 + [True]


@pytest.mark.parametrize(("core", "news"), [(50, False), (20, True)])
def test_workload_that_took_its_lesson_from_one_pod_has_news_only_of_others(core: int, news: bool) -> None:
    workload = Workload()
    _seen(workload, 50, 1)
    workload.lesson()
    assert _seen(workload, core, 31)[-1] is news


def test_workload_forgets_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 100 Pods; and it looks again after a quarter of that."""
    monkeypatch.setattr(module, "_MEMORY", 100)
    workload = Workload()
    for core, times in ((50, 70), (10, 1), (30, 2), (20, 26)):
        _seen(workload, core, times)
    seen = [(100, 1), (200, 26), (300, 2), (500, 70)]
    assert [(shape.milli, times) for shape, times in workload.everything()] == seen
    _seen(workload, 20, 1)
    assert [(shape.milli, times) for shape, times in workload.everything()] == [(200, 13), (300, 1), (500, 35)]
    workload.lesson()
    assert _seen(workload, 40, 25) == [False] * 24 + [True]
