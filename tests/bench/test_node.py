"""The bench of the agent, as far as it can be held to account without a node: its arithmetic and its verdict."""

from __future__ import annotations

import os
from itertools import count
from typing import cast

import pytest
from bench.node import main as bench
from bench.node.main import LIMITS, cpu_seconds, memory_mb, missed, starts

from testbed.programs.fleet import Fleet

GOOD = {"added_p50_ms": 16.0, "pss_mb": 60.0, "rss_mb": 71.0, "idle_cpu_percent": 1.7, "tenants": 64}


def test_node_bench_within_limits_is_not_missed() -> None:
    assert GOOD.keys() > LIMITS.keys()
    assert missed(GOOD, 64) == []


@pytest.mark.parametrize("figure", LIMITS)
@pytest.mark.parametrize("value", [1.01, float("nan")])
def test_node_bench_over_a_limit_is_missed(figure: str, value: float) -> None:
    assert missed({**GOOD, figure: LIMITS[figure] * value}, 64) == [figure]


def test_what_was_measured_with_fewer_pods_than_wanted_does_not_count() -> None:
    assert missed({**GOOD, "tenants": 63}, 64) == ["tenants"]


def test_what_a_card_adds_is_the_difference_of_the_middles(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each is not counted: the first Pod of a node is slow."""
    order: list[str] = []
    late = count(1)

    def start_ms(fleet: Fleet, name: str, limits: dict[str, int]) -> float:
        order.append(name)
        return 5000.0 if name.startswith("warm") else 400.0 + 60.0 * bool(limits) + next(late) / 10

    monkeypatch.setattr(bench, "start_ms", start_ms)
    found = starts(cast(Fleet, None), 5)
    assert found["added_p50_ms"] == pytest.approx(60.1)
    assert found["plain_p50_ms"] == pytest.approx(400.5)
    assert order[:6] == ["warm-plain", "warm-card", "plain-0", "card-0", "plain-1", "card-1"]
    assert missed(found, 64) == ["added_p50_ms"]


def test_memory_and_cpu_are_the_processs_own() -> None:
    pss, rss = memory_mb(os.getpid())
    assert 5 < pss <= rss < 2000
    assert 0 < cpu_seconds(os.getpid()) <= sum(os.times()[:2]) + 0.1
