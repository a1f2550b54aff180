"""A newcomer's first moments, in which it cannot be paused, count against its tenant."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.arbiter.debts import Debts
from aliquot.arbiter.orders import Hold, Pause
from aliquot.arbiter.roster import SETTLING
from aliquot.arbiter.turns import FOREVER
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules
from kit.cards.virtualcard import Load, VirtualCard


def fixed(**quotas: float) -> VirtualCard:
    card = VirtualCard(SharingRules(Isolation.FIXED_SHARE))
    for name, quota in quotas.items():
        card.admit(name, quota=quota)
    return card


def restarting(card: VirtualCard, tenant: str, load: Load, every: float, seconds: float) -> None:
    """Its process is ended and started again."""
    for life in range(round(seconds / every)):
        card.start(f"{tenant}/{life}", tenant, load, being_made=True)
        card.run(every)
        card.stop(f"{tenant}/{life}")


@pytest.mark.parametrize("quota", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("kernel", [0.00005, 0.001, 0.02])
def test_fixed_share_is_the_quota_also_from_the_start_of_a_program(quota: float, kernel: float) -> None:
    card = fixed(a=quota)
    card.start("a/1", "a", Load(kernel=kernel), being_made=True)
    card.run(6.0)
    assert quota - 0.02 <= card.share("a") <= quota + 0.01


def test_newcomer_that_computes_nothing_at_first_owes_nothing() -> None:
    card = fixed(a=0.3)
    card.start("a/1", "a", Load(start=0.5), being_made=True)
    card.run(1.5)
    card.mark()
    card.run(1.0)
    assert card.share("a") == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("every", [0.2, 0.5, 1.3])
@pytest.mark.parametrize("quota", [0.1, 0.3, 0.5])
def test_program_that_starts_again_and_again_stays_at_its_quota(quota: float, every: float) -> None:
    card = fixed(a=quota)
    restarting(card, "a", Load(), every, 30.0)
    assert card.share("a") == pytest.approx(quota, abs=0.03)


def test_neighbour_of_a_program_that_starts_again_and_again_keeps_its_quota() -> None:
    card = fixed(a=0.3, b=0.4)
    card.start("b/1", "b", Load())
    restarting(card, "a", Load(), 0.5, 30.0)
    assert card.share("a") == pytest.approx(0.3, abs=0.03)
    assert card.share("b") == pytest.approx(0.4, abs=0.03)


def test_offline_program_that_starts_again_and_again_beside_online_work_stays_at_its_quota() -> None:
    card = VirtualCard(SharingRules(Isolation.FIXED_SHARE, release_delay=0.0))
    card.admit("serve", AppClass.ONLINE)
    card.admit("a", AppClass.OFFLINE, quota=0.3)
    card.start("serve/1", "serve", Load(start=100.0))
    restarting(card, "a", Load(), 0.5, 30.0)
    assert card.share("a") == pytest.approx(0.3, abs=0.03)


def test_context_that_is_being_made_is_held_at_the_gate_and_never_paused() -> None:
    card = fixed(a=0.3)
    restarting(card, "a", Load(), SETTLING - 0.05, 3.0)
    assert any(isinstance(order, Hold) for _, order in card.orders)
    assert not any(isinstance(order, Pause) for _, order in card.orders)


def test_debt_ends_with_the_policy_and_with_the_tenant() -> None:
    card = fixed(a=0.05)
    card.start("a/1", "a", Load(), being_made=True)
    card.run(0.5)
    card.post(lambda arbiter, now: setattr(arbiter, "rules", SharingRules(Isolation.BURST_SHARE)))
    card.run(0.1)
    card.mark()
    card.run(1.0)
    assert card.share("a") >= 0.99


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0.0, 0.3), st.floats(0.0, 1.0)), min_size=1, max_size=40), st.floats(0.01, 1.0))
def test_debts_are_never_more_than_what_was_had_and_end(stretches: list[tuple[float, float]], quota: float) -> None:
    debts, now, had = Debts(), 0.0, 0.0
    for length, part in stretches:
        now += length
        debts.step({"a": quota}, now)
        debts.charge("a", length * part)
        had += length * part
        debts.collect("a")
    debts.step({"a": quota}, now)
    steps = 0
    began = now
    while debts.pays("a"):
        assert debts.until > now
        now, steps = debts.until, steps + 1
        debts.step({"a": quota}, now)
        assert steps < 10
    assert (now - began) * quota <= had + 0.001


def test_tenant_pays_while_its_context_is_still_made_from_the_time_on_that_others_take() -> None:
    debts = Debts()
    debts.charge("a", SETTLING - 0.01)
    assert not debts.pays("a")
    debts.charge("b", SETTLING)
    assert debts.pays("b")


@pytest.mark.parametrize(
    ("charged", "quota", "seconds"),
    [([0.5], 0.25, 2.0), ([0.25, 0.25], 0.5, 1.0), ([3.0], 0.5, 2.0), ([0.5], None, 0.5), ([0.5], 1.0, 0.5)],
)
def test_debt_is_paid_at_the_rate_of_the_quota(charged: list[float], quota: float | None, seconds: float) -> None:
    """No more than a second is owed; without a quota the whole card is the rate."""
    quotas = {} if quota is None else {"a": quota}
    debts = Debts()
    debts.step(quotas, 10.0)
    for amount in charged:
        debts.charge("a", amount)
    debts.collect("a")
    debts.step(quotas, 10.0)
    assert debts.until == 10.0 + seconds
    debts.step(quotas, 10.0 + seconds / 2)
    assert (debts.pays("a"), debts.until) == (True, 10.0 + seconds)
    debts.step(quotas, 9.0)  # a clock that goes back pays nothing back
    assert debts.until == 9.0 + seconds / 2
    debts.step(quotas, 9.0 + seconds / 2)
    assert (debts.pays("a"), debts.debtors(), debts.until) == (False, set(), FOREVER)


def test_who_owes_nothing_pays_nothing() -> None:
    debts = Debts()
    debts.charge("a", 0.0)
    debts.collect("a")
    assert (debts.pays("a"), debts.debtors()) == (False, set())
    debts.charge("b", 0.1)
    debts.step({}, 100.0)  # the first step only looks at the clock
    assert (debts.pays("b"), debts.debtors(), debts.until) == (False, {"b"}, FOREVER)
    debts.forget("b")
    assert debts.debtors() == set()


def test_debt_of_a_tenant_without_a_quota_ends_some_time() -> None:
    debts = Debts()
    debts.charge("a", 0.5)
    debts.collect("a")
    debts.step({"a": 0.0}, 0.0)
    assert debts.until == 0.5 / 1e-6


def test_next_look_is_when_the_first_debt_is_paid() -> None:
    debts = Debts()
    for tenant, owed in (("a", 0.5), ("b", 0.25), ("c", 0.125)):
        debts.charge(tenant, owed)
    debts.collect("a")
    debts.collect("b")
    debts.step({"a": 0.25, "b": 0.25, "c": 0.25}, 10.0)
    assert debts.until == 11.0
