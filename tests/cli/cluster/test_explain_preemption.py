"""`aliquot explain`: who would have to go for a Pod that does not fit."""

from __future__ import annotations

from pathlib import Path

from kit.clusters.explain import explained, run
from kit.values.manifests import Json, gpushare_node, gpushare_pod, on_card, replicas


def _full() -> list[Json]:
    """12 of 16 GiB are taken of each card."""
    return [gpushare_node("n1", 16, 16), on_card("a", 12, 0, priority=5), on_card("b", 12, 1, priority=-1)]


def test_explain_names_the_victims(tmp_path: Path) -> None:
    pod = gpushare_pod("high", 8, priority=9)
    (entry,) = explained(tmp_path, [pod], _full())
    assert entry["preemption"] == {
        "node": "n1",
        "containers": {"main": [{"card": 1, "memory_gib": 8, "core": None, "core_greedy": None, "whole": False}]},
        "allowed": True,
        "victims": [{"pod": "default/b", "priority": -1, "class": "normal"}],
    }
    shown = run(tmp_path, [pod], _full()).stdout
    assert "\n  would get card 1 of n1 if default/b (normal, priority -1) went\n" in shown


def test_explain_names_victims_that_hold_all_of_the_resource(tmp_path: Path) -> None:
    node = gpushare_node("n1", 16, capacity={"aliyun.com/gpu-mem": "16"})
    (entry,) = explained(tmp_path, [gpushare_pod("high", 8, priority=9)], [node, on_card("a", 16, 0)])
    assert entry["preemption"]["victims"] == [{"pod": "default/a", "priority": 0, "class": "normal"}]


def test_explain_says_that_policy_never_waits(tmp_path: Path) -> None:
    shown = run(tmp_path, [gpushare_pod("high", 8, priority=9, preemptionPolicy="Never")], _full()).stdout
    assert "went; it waits for that, because its preemptionPolicy is Never" in shown


def test_explain_names_no_victims_of_equal_priority_or_of_an_unknown_class(tmp_path: Path) -> None:
    pods = [gpushare_pod("equal", 8, priority=-1), gpushare_pod("unknown", 8, priorityClassName="urgent")]
    assert [entry["preemption"] for entry in explained(tmp_path, pods, _full())] == [None, None]


def test_explain_shows_replicas_with_the_same_victims_once(tmp_path: Path) -> None:
    shown = run(tmp_path, [replicas(3, gpushare_pod("high", 8, priority=9))], _full()).stdout
    assert "(3 Pods)" in shown
    assert shown.count("one of them would get card 1 of n1") == 1
