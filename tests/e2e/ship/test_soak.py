"""The soak (`make soak`), as short as it can be: two minutes, always the same ones."""

from __future__ import annotations

from soak.main import Plan, Soak
from soak.report import Progress
from testbed.cluster import Cluster


def test_whatever_is_killed_nothing_is_lost_over_allocated_or_leaked(bare: Cluster) -> None:
    plan = Plan(minutes=2, seed=11, fault_every=4, calm_every=55)
    found = Soak(bare, plan, Progress(plan.minutes)).run()
    assert found.over_allocated == []
    assert found.lost + found.stuck == []
    assert found.leaked == []
    assert found.stumbles == []
    assert len(found.happened) > 5, "something was killed"
    assert found.looked_into > 10, "and somebody was looked into"
