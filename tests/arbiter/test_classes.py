"""Ordinary work (no class) beside offline work, in virtual time: only online work pauses offline work."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.arbiter.roster import Member, Roster
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules, State
from kit.cards.virtualcard import Load, VirtualCard

ONLINE, OFFLINE, NORMAL = AppClass.ONLINE, AppClass.OFFLINE, AppClass.NORMAL
IDLE = Load(work=0.001)  # one request at the beginning
BUSY = Load()

Tenants = Sequence[tuple[AppClass, float | None]]


def shared(
    tenants: Tenants, *, isolation: Isolation, delay: float = 0.1, online: Load | None = None, preemptible: bool = True
) -> VirtualCard:
    """Tenants of these classes and quotas that always have work, after they settled; beside them an online one."""
    card = VirtualCard(SharingRules(isolation, delay))
    if online is not None:
        card.admit("on", ONLINE)
        card.start("on/1", "on", online)
    for at, (app_class, quota) in enumerate(tenants):
        card.admit(f"t{at}", app_class, quota)
        card.start(f"t{at}/1", f"t{at}", Load(kernel=(0.02, 0.001, 0.00005)[at % 3]), preemptible=preemptible)
    card.run(1.5)
    card.mark()
    return card


def shares(card: VirtualCard, tenants: Tenants, seconds: float = 5.0) -> list[float]:
    card.run(seconds)
    return [card.share(f"t{at}") for at in range(len(tenants))]


def promised(tenants: Tenants, isolation: Isolation) -> list[float]:
    """By the rule of docs/policies.md, where the quotas leave something."""
    if isolation is Isolation.BEST_EFFORT:
        return [1 / len(tenants)] * len(tenants)
    left = 1 - sum(quota or 0 for app_class, quota in tenants if app_class is NORMAL)
    parts = [(quota or 0) * (left if app_class is OFFLINE else 1) for app_class, quota in tenants]
    total = sum(parts) if isolation is Isolation.BURST_SHARE else 1
    return [part / total for part in parts]


_normal = st.tuples(st.just(NORMAL), st.sampled_from([0.1, 0.2, 0.3]))
_offline = st.tuples(st.just(OFFLINE), st.sampled_from([0.3, 0.5]))
_mixes = st.tuples(st.lists(_normal, min_size=1, max_size=2), st.lists(_offline, min_size=1, max_size=2)).map(
    lambda both: both[0] + both[1]
)


@settings(max_examples=10)
@given(_mixes, st.sampled_from(Isolation), st.sampled_from([None, IDLE]), st.sampled_from([0.0, 0.1]))
def test_while_no_online_work_is_busy_ordinary_and_offline_tenants_share_by_policy(
    tenants: Tenants, isolation: Isolation, online: Load | None, delay: float
) -> None:
    card = shared(tenants, isolation=isolation, delay=delay, online=online)
    found = shares(card, tenants)
    assert found == [pytest.approx(part, abs=0.03) for part in promised(tenants, isolation)]
    assert sum(card.arbiter.preemptions[f"t{at}"] for at in range(len(tenants))) == 0 or online is not None


@pytest.mark.parametrize("online", [None, IDLE])
@pytest.mark.parametrize("isolation", list(Isolation))
def test_ordinary_work_never_leaves_offline_work_without_the_card(isolation: Isolation, online: Load | None) -> None:
    """Not even where ordinary tenants booked all of it."""
    tenants: Tenants = [(NORMAL, 1.0), (OFFLINE, 0.5)]
    found = shares(shared(tenants, isolation=isolation, online=online), tenants, 10.0)
    assert found[1] >= 0.005
    assert found[0] >= 0.47


@pytest.mark.parametrize("online", [None, IDLE])
def test_at_the_gate_too_ordinary_and_offline_tenants_share(online: Load | None) -> None:
    tenants: Tenants = [(NORMAL, None), (OFFLINE, 0.5)]
    card = shared(tenants, isolation=Isolation.BURST_SHARE, online=online, preemptible=False)
    assert shares(card, tenants) == [pytest.approx(0.5, abs=0.06)] * 2


@settings(max_examples=10)
@given(_mixes, st.sampled_from(Isolation), st.integers(1, 2))
def test_busy_online_work_pauses_offline_work_and_competes_with_ordinary_work(
    tenants: Tenants, isolation: Isolation, servers: int
) -> None:
    card = shared(tenants, isolation=isolation, online=BUSY)
    for at in range(1, servers):
        card.admit(f"on{at}", ONLINE)
        card.start(f"on{at}/1", f"on{at}", BUSY)
    card.run(0.5)
    card.mark()
    found = shares(card, tenants, 3.0)
    rivals = servers + sum(app_class is NORMAL for app_class, _ in tenants)
    for at, (app_class, _) in enumerate(tenants):
        promise = 0.0 if app_class is OFFLINE else 1 / rivals  # less what switches cost
        assert promise - 0.04 <= found[at] <= promise + 0.02
        state = card.arbiter.state(f"t{at}/1")
        assert state is (State.PAUSED if app_class is OFFLINE else State.RUNNING)
    assert card.arbiter.held_by in {"on", *(f"on{at}" for at in range(1, servers))}


@settings(max_examples=8)
@given(_mixes, st.sampled_from(Isolation), st.sampled_from([0.0, 0.1]))
def test_a_request_takes_the_card_at_once_from_offline_work_and_after_a_slice_from_ordinary_work(
    tenants: Tenants, isolation: Isolation, delay: float
) -> None:
    request = Load(work=0.001, period=0.3071, start=0.2)
    card = shared(tenants, isolation=isolation, delay=delay, online=request)
    found = shares(card, tenants, 8.0)
    ordinary = sum(app_class is NORMAL for app_class, _ in tenants)
    assert max(card.latencies("on/1")) <= request.work + ordinary * 0.0024 + 0.001
    assert min(found) >= 0.05  # between the requests all run
    assert card.worst_stall <= 0.0023


def test_offline_work_gets_what_ordinary_work_leaves_of_its_turns() -> None:
    card = VirtualCard(SharingRules(Isolation.BEST_EFFORT))
    for name, app_class, load in (("on", ONLINE, IDLE), ("n", NORMAL, Load(0.005, 0.04)), ("off", OFFLINE, BUSY)):
        card.admit(name, app_class)
        card.start(f"{name}/1", name, load)
    card.run(1.5)
    card.mark()
    card.run(5.0)
    assert card.share("n") == pytest.approx(0.125, abs=0.01)
    assert card.share("off") >= 0.7


def test_an_offline_quota_is_a_part_of_what_other_quotas_leave() -> None:
    def quotas(**asked: tuple[AppClass, int | None]) -> dict[str, float]:
        return Roster({name: Member(name, *member) for name, member in asked.items()}).quotas(asked)

    assert quotas(n=(NORMAL, 300), off=(OFFLINE, 1000)) == {"n": 0.3, "off": 0.7}
    assert quotas(n=(NORMAL, 300), off=(OFFLINE, None)) == {"n": 0.3, "off": 0.7}
    assert quotas(n=(NORMAL, 600), a=(OFFLINE, 500), b=(OFFLINE, 250)) == pytest.approx({"n": 0.6, "a": 0.2, "b": 0.1})
    assert quotas(n=(NORMAL, 300), a=(OFFLINE, 600), b=(OFFLINE, 400))["a"] == pytest.approx(0.42)
    assert quotas(n=(NORMAL, 300), a=(OFFLINE, 900), b=(OFFLINE, 900))["n"] == pytest.approx(0.3)
    assert quotas(n=(NORMAL, None), off=(OFFLINE, 1000)) == {"n": 0.5, "off": 0.5}
    assert quotas(n=(NORMAL, None), off=(OFFLINE, 300)) == {"n": 0.7, "off": 0.3}
    assert quotas(n=(NORMAL, None), off=(OFFLINE, None)) == {"n": 0.5, "off": 0.5}
    assert quotas(n=(NORMAL, 1000), off=(OFFLINE, 500))["off"] == pytest.approx(0.01, abs=0.001)


_quotas = st.none() | st.integers(1, 1000)


@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.sampled_from([NORMAL, OFFLINE]), _quotas), min_size=1))
def test_offline_quotas_take_at_most_a_hundredth_each_of_other_quotas(
    asked: dict[str, tuple[AppClass, int | None]],
) -> None:
    found = Roster({name: Member(name, *member) for name, member in asked.items()}).quotas(asked)
    assert 0 < sum(found.values()) <= 1 + 1e-9
    assert all(part > 0 for part in found.values())
    booked = sum(milli or 0 for app_class, milli in asked.values() if app_class is NORMAL)
    if booked <= 1000:  # the scheduler books no more
        least = 1 / (1 + 0.01 * len(asked))
        for name, (app_class, milli) in asked.items():
            if app_class is NORMAL and milli is not None:
                assert found[name] >= milli / 1000 * least - 1e-9
