"""What tenants had of a card, and what online work took from them."""

from __future__ import annotations

from typing import Any, cast

from aliquot.adapters.gpu.page import Page
from aliquot.arbiter.roster import Member
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Level
from aliquot.services.runtime.cards.spending import spending, time_lost
from aliquot.services.runtime.processes.contexts import Context, TenantTotals

NO_PAGE = cast(Page, cast(Any, None))


def context(name: str, tenant: str, member: str = "") -> Context:
    return Context(name, tenant, 1, NO_PAGE, 0, 0, (), Level.HARDWARE, member=member)


def totals(tenant: str, group: str = "", booked: int = 0) -> TenantTotals:
    return TenantTotals(Member(tenant, AppClass.NORMAL, None), NO_PAGE, 0, None, group=group, booked=booked)


def test_a_paused_offline_tenant_loses_all_of_the_time() -> None:
    assert time_lost([context("a/1", "a")], {"a/1"}, online=0.25, busy={}) == {"a": 1.0}


def test_an_offline_tenant_that_runs_loses_what_online_work_had_while_it_had_work_too() -> None:
    offline = [context("a/1", "a"), context("b/1", "b")]
    assert time_lost(offline, set(), online=0.25, busy={"a/1": 0.5, "b/1": 0.125}) == {"a": 0.25, "b": 0.125}


def test_the_process_of_a_tenant_that_lost_most_counts() -> None:
    offline = [context("a/1", "a"), context("a/2", "a"), context("a/3", "a")]
    assert time_lost(offline, {"a/2"}, online=0.5, busy={"a/1": 0.5}) == {"a": 1.0}


def test_a_tenant_without_a_process_pays_for_its_memory() -> None:
    spent = spending([], {"a": totals("a", booked=7)}, {}, {}, {})
    assert (spent["a"].gpu, spent["a"].booked) == (0.0, 7.0)


def test_the_members_of_a_group_pay_and_the_group_does_not() -> None:
    tenants = {"g": totals("g", group="g"), "a": totals("a", group="g")}
    everybody = [context("g/1", "g"), context("a/1", "g", member="a")]
    spent = spending(everybody, tenants, {"a/1": 0.5}, {"a/1": 0.5}, {"g": 0.25})
    assert spent.keys() == {"a"}
    assert (spent["a"].gpu, spent["a"].preempted) == (0.5, 0.25)
