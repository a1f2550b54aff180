"""Windows under burst-share, where queues run dry."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from aliquot.arbiter.card import DOZE, SAMPLE, CardArbiter
from aliquot.arbiter.roster import BETWEEN_BATCHES, BUSY, NEVER_DRY, STILL_BUSY, Member, Reading
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules
from kit.cards.arbiters import BEST, BURST, FIXED, NORMAL, ONLINE, WORKS, stopped


def with_gaps(parts: Mapping[str, float], isolation: Isolation = BURST, **more: AppClass) -> CardArbiter:
    """A card on which these contexts had work for this part of the time."""
    arbiter = CardArbiter(SharingRules(isolation, 0.0))
    for tenant, app_class in more.items():
        arbiter.admit(Member(tenant, app_class, 250))
        arbiter.join(f"{tenant}/1", tenant)
    for name, part in parts.items():
        tenant = name.partition("/")[0]
        arbiter.admit(Member(tenant, NORMAL, 250))
        arbiter.join(name, tenant)
        context = arbiter.roster.contexts[name]
        context.idle_for, context.reading, context.part_busy = 0.0, WORKS, part
    arbiter.tick(5.0)
    return arbiter


GAPS = (BUSY + NEVER_DRY) / 2


@pytest.mark.parametrize(
    ("parts", "dry"),
    [
        ({"a/1": GAPS, "b/1": GAPS}, True),
        ({"a/1": GAPS, "b/1": 1.0}, True),  # one with gaps is enough
        ({"a/1": 1.0, "b/1": 1.0}, False),
        ({"a/1": NEVER_DRY, "b/1": 1.0}, False),
        ({"a/1": BUSY, "b/1": 1.0}, True),
        ({"a/1": BUSY - 0.01, "b/1": 1.0}, False),  # it would waste its windows
        ({"a/1": GAPS}, False),
        ({"a/1": GAPS, "a/2": GAPS}, False),  # of one tenant
        ({"a/1": GAPS, "a/2": GAPS, "b/1": 1.0}, True),
    ],
)
def test_burst_share_has_windows_where_all_have_work_nearly_always_and_some_with_gaps(
    parts: dict[str, float], dry: bool
) -> None:
    arbiter = with_gaps(parts)
    assert bool(stopped(arbiter)) is dry
    assert arbiter.deadline == 5.0 + (SAMPLE if dry else DOZE), "who is alone has no windows either"


@pytest.mark.parametrize(("isolation", "classes"), [(BEST, {}), (BURST, {"on": ONLINE})])
def test_queues_that_run_dry_matter_only_under_burst_share_without_online_work(
    isolation: Isolation, classes: dict[str, AppClass]
) -> None:
    assert stopped(with_gaps({"a/1": GAPS, "b/1": GAPS}, isolation, **classes)) == []


def test_queues_that_run_dry_make_no_window_of_fixed_share_longer() -> None:
    arbiter = with_gaps({"a/1": GAPS, "b/1": GAPS}, FIXED)
    assert stopped(arbiter) == ["b/1"]
    arbiter.tick(5.025)
    assert stopped(arbiter) == ["a/1"]


@pytest.mark.parametrize(("part", "dry"), [(STILL_BUSY, True), (STILL_BUSY - 0.01, False)])
def test_windows_stay_until_one_is_clearly_less_busy(part: float, dry: bool) -> None:
    arbiter = with_gaps({"a/1": GAPS, "b/1": GAPS})
    arbiter.roster.contexts["a/1"].part_busy = part
    arbiter.tick(5.001)
    assert bool(stopped(arbiter)) is dry


@pytest.mark.parametrize(("idle_for", "dry"), [(BETWEEN_BATCHES - 0.001, True), (BETWEEN_BATCHES, False)])
def test_windows_end_when_one_of_them_pauses_for_longer_than_between_two_batches(idle_for: float, dry: bool) -> None:
    arbiter = with_gaps({"a/1": GAPS, "b/1": GAPS})
    context = arbiter.roster.contexts["a/1"]
    context.idle_for, context.reading = idle_for, Reading(1, False, False)
    arbiter.tick(5.001)
    assert bool(stopped(arbiter)) is dry


def test_windows_do_not_begin_sooner_because_a_tenant_at_the_gate_was_busy_before() -> None:
    arbiter = with_gaps({"a/1": 0.1, "b/1": 0.1})
    for now, preemptible, part in ((5.001, False, GAPS), (5.002, True, BUSY - 0.01)):
        arbiter.join("b/1", "b", preemptible=preemptible)
        for context in arbiter.roster.contexts.values():
            context.part_busy = part
        arbiter.tick(now)
    assert stopped(arbiter) == []


def test_windows_of_burst_share_leave_no_rest() -> None:
    """Two quotas of a quarter: half of the period each."""
    arbiter = with_gaps({"a/1": GAPS, "b/1": GAPS})
    assert stopped(arbiter) == ["b/1"]
    arbiter.tick(5.049)
    assert stopped(arbiter) == ["b/1"]
    assert arbiter.deadline == pytest.approx(5.05)
    arbiter.tick(5.05)
    assert stopped(arbiter) == ["a/1"]
    arbiter.tick(5.099)
    assert stopped(arbiter) == ["a/1"]
    assert arbiter.deadline == pytest.approx(5.1)
    arbiter.tick(5.1)
    assert stopped(arbiter) == ["b/1"]


def test_newcomer_under_burst_share_makes_no_window_longer() -> None:
    """Only under fixed-share its tenant pays for what it had meanwhile."""
    arbiter = with_gaps({"a/1": GAPS, "b/1": GAPS})
    arbiter.admit(Member("c", NORMAL, 250))
    arbiter.join("c/1", "c", now=5.0)
    arbiter.tick(5.0)
    arbiter.read({"c/1": Reading(1, True, True, had=0.02)}, 5.01)
    arbiter.tick(5.049)
    assert stopped(arbiter) == ["b/1"]
    arbiter.tick(5.05)
    assert stopped(arbiter) == ["a/1"]
