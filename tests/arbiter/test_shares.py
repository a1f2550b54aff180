"""What each policy promises, in virtual time. A tenant's share is its own, however many processes it has."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.arbiter.card import CardArbiter
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules
from kit.cards.virtualcard import Load, VirtualCard

KERNELS = (0.00005, 0.001, 0.02)
EVEN = {2: (0.5, 0.5), 3: (0.2, 0.3, 0.5), 4: (0.1, 0.2, 0.3, 0.4), 8: (0.05, 0.05, 0.1, 0.1, 0.15, 0.15, 0.2, 0.2)}


def prompt() -> float:
    return 0.00035


def tails(seed: int) -> Callable[[], float]:
    """One order of fifty takes 10 to 20 ms."""
    chance = random.Random(seed)
    return lambda: chance.uniform(0.01, 0.02) if chance.random() < 0.02 else 0.00035


def busy(
    isolation: Isolation,
    quotas: Sequence[float | None],
    *,
    processes: int = 3,
    latency: Callable[[], float] = prompt,
    seconds: float = 4.0,
    preemptible: bool = True,
) -> list[float]:
    """The shares of tenants that all have work all the time; the first of them with several processes."""
    card = VirtualCard(SharingRules(isolation), latency=latency)
    for at, quota in enumerate(quotas):
        card.admit(f"t{at}", quota=quota)
        for process in range(processes if at == 0 else 1):
            load = Load(kernel=KERNELS[at % 3], waits=at % 2 == 0)
            card.start(f"t{at}/{process}", f"t{at}", load, preemptible=preemptible)
    card.run(0.5)
    card.mark()
    card.run(seconds)
    return [card.share(f"t{at}") for at in range(len(quotas))]


@pytest.mark.parametrize("tenants", [2, 3, 4, 8])
def test_best_effort_shares_are_equal(tenants: int) -> None:
    shares = busy(Isolation.BEST_EFFORT, [None] * tenants)
    assert shares == [pytest.approx(1 / tenants, abs=0.02)] * tenants


def test_eight_best_effort_tenants_together_lose_less_than_two_percent() -> None:
    assert sum(busy(Isolation.BEST_EFFORT, [None] * 8, processes=1)) >= 0.98


@pytest.mark.parametrize("tenants", [2, 3, 4, 8])
@pytest.mark.parametrize("isolation", [Isolation.BURST_SHARE, Isolation.FIXED_SHARE])
def test_shares_are_the_quotas(isolation: Isolation, tenants: int) -> None:
    shares = busy(isolation, EVEN[tenants])
    assert shares == [pytest.approx(quota, abs=0.02) for quota in EVEN[tenants]]


_asked = st.lists(st.integers(5, 100), min_size=2, max_size=8).map(
    lambda parts: [round(part / max(100, sum(parts)), 3) for part in parts]
)


@settings(max_examples=8)
@given(_asked)
def test_burst_shares_are_in_proportion_to_any_quotas(quotas: list[float]) -> None:
    total = sum(quotas)
    assert busy(Isolation.BURST_SHARE, quotas) == [pytest.approx(quota / total, abs=0.02) for quota in quotas]


@settings(max_examples=8)
@given(_asked, st.integers(0, 1000))
def test_fixed_shares_are_any_quotas_although_orders_come_late(quotas: list[float], seed: int) -> None:
    shares = busy(Isolation.FIXED_SHARE, quotas, latency=tails(seed))
    for share, quota in zip(shares, quotas, strict=True):
        assert share <= quota + 0.02
        if sum(quotas) < 0.9:  # on a full card all lose what the late orders cost
            assert share >= quota - 0.02


@pytest.mark.parametrize("quota", [0.05, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("late", [False, True])
def test_fixed_share_on_an_idle_card_is_the_cap(quota: float, late: bool) -> None:
    (share,) = busy(Isolation.FIXED_SHARE, [quota], processes=1, latency=tails(7) if late else prompt, seconds=6.0)
    assert share == pytest.approx(quota, abs=0.01)
    (share,) = busy(Isolation.FIXED_SHARE, [quota], latency=tails(7) if late else prompt, seconds=6.0)
    assert quota - 0.02 <= share <= quota + 0.01


def test_fixed_share_binds_kernels_that_are_handed_over_and_not_waited_for() -> None:
    """No launch and no wait for 200 ms: the process is not idle, and the rest of the period is not its own."""
    card = VirtualCard(SharingRules(Isolation.FIXED_SHARE))
    card.admit("a", quota=0.2)
    card.start("a/1", "a", Load(kernel=0.2, waits=False))
    card.run(1.0)
    card.mark()
    card.run(10.0)
    assert card.share("a") == pytest.approx(0.2, abs=0.01)


def test_burst_share_gives_idle_time_to_tenants_with_work() -> None:
    card = VirtualCard(SharingRules(Isolation.BURST_SHARE))
    card.admit("a", quota=0.2)
    card.admit("b", quota=0.8)
    card.start("a/1", "a", Load())
    card.start("b/1", "b", Load(work=0.5, period=4.0, start=2.0))
    card.run(2.0)
    assert card.share("a") >= 0.999
    card.mark()
    card.run(0.6)
    assert card.share("b") == pytest.approx(0.8, abs=0.02)
    card.mark()
    card.run(1.0)
    assert card.share("a") >= 0.95


def test_best_effort_gives_idle_time_to_tenants_with_work() -> None:
    card = VirtualCard(SharingRules(Isolation.BEST_EFFORT))
    for name in "abcdefgh":
        card.admit(name)
        card.start(f"{name}/1", name, Load(start=0.0 if name == "a" else 1.0))
    card.run(1.0)
    assert card.share("a") >= 0.99


def test_a_tenant_that_asked_for_no_quota_shares_what_the_others_leave() -> None:
    shares = busy(Isolation.FIXED_SHARE, [0.4, None, None], processes=1)
    assert shares == [pytest.approx(part, abs=0.02) for part in (0.4, 0.3, 0.3)]


@pytest.mark.parametrize("isolation", list(Isolation))
def test_changing_the_policy_while_all_run_changes_the_shares(isolation: Isolation) -> None:
    card = VirtualCard(SharingRules(Isolation.FIXED_SHARE))
    for name, quota in (("a", 0.2), ("b", 0.4)):
        card.admit(name, quota=quota)
        card.start(f"{name}/1", name, Load())
    card.run(1.0)
    card.post(lambda arbiter, now: setattr(arbiter, "rules", SharingRules(isolation)))
    card.run(0.3)
    card.mark()
    card.run(3.0)
    promised = {Isolation.BEST_EFFORT: (1 / 2, 1 / 2), Isolation.BURST_SHARE: (1 / 3, 2 / 3)}.get(isolation, (0.2, 0.4))
    assert [card.share("a"), card.share("b")] == [pytest.approx(part, abs=0.02) for part in promised]


@pytest.mark.parametrize("quotas", [(0.5, 0.5), (0.2, 0.3, 0.5)])
def test_at_the_gate_too_burst_shares_are_the_quotas(quotas: Sequence[float]) -> None:
    shares = busy(Isolation.BURST_SHARE, quotas, preemptible=False, seconds=5.0)
    assert shares == [pytest.approx(quota, abs=0.05) for quota in quotas]


@pytest.mark.parametrize("quotas", [(0.3,), (0.2, 0.3), (0.2, 0.3, 0.5)])
def test_at_the_gate_too_fixed_shares_are_the_quotas(quotas: Sequence[float]) -> None:
    """A kernel in flight cannot be stopped, and what it overran is not known: half a kernel in a period."""
    shares = busy(Isolation.FIXED_SHARE, quotas, preemptible=False, seconds=5.0)
    assert shares == [pytest.approx(quota, abs=0.11) for quota in quotas]


def _configure(rules: SharingRules, arbiter: CardArbiter, now: float) -> None:
    arbiter.rules = rules


def test_policies_may_change_while_some_are_held_at_the_gate() -> None:
    """A rotation that was left behind with a deadline in the past would make the daemon spin."""
    card = VirtualCard(SharingRules(Isolation.BURST_SHARE))
    for name, quota in (("a", 0.3), ("b", 0.3)):
        card.admit(name, quota=quota)
        card.start(f"{name}/1", name, Load(), preemptible=name != "b")
    for isolation in (Isolation.FIXED_SHARE, Isolation.BEST_EFFORT, Isolation.BURST_SHARE, Isolation.FIXED_SHARE):
        card.run(0.3)
        card.post(partial(_configure, SharingRules(isolation)))
    card.run(0.3)
    card.mark()
    card.run(3.0)
    assert [card.share("a"), card.share("b")] == [pytest.approx(0.3, abs=0.02)] * 2
