"""Online beside offline work, in virtual time: who is in front gets the card at once, the rest goes to those behind."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.arbiter.card import SAMPLE
from aliquot.arbiter.orders import Pause, Resume
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules, State
from kit.cards.virtualcard import Load, VirtualCard

ORDER = 0.00035
KERNELS = (0.2, 0.001, 0.00005)


def mixed(
    online: Sequence[Load],
    offline: Sequence[float | None],
    *,
    delay: float,
    isolation: Isolation = Isolation.BEST_EFFORT,
    preemptible: bool = True,
    seed: int | None = None,
) -> VirtualCard:
    """Online processes with these loads, and offline tenants with these quotas that have work all the time."""
    chance = random.Random(seed)
    late = (lambda: chance.uniform(0.01, 0.02) if chance.random() < 0.05 else ORDER) if seed is not None else None
    card = VirtualCard(SharingRules(isolation, delay), latency=late or (lambda: ORDER))
    for at, load in enumerate(online):
        card.admit(f"on{at}", AppClass.ONLINE)
        card.start(f"on{at}/1", f"on{at}", load)
    for at, quota in enumerate(offline):
        card.admit(f"off{at}", AppClass.OFFLINE, quota)
        card.start(f"off{at}/1", f"off{at}", Load(kernel=KERNELS[at % 3]), preemptible=preemptible)
    return card


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[int(part * (len(values) - 1))]


REQUEST = Load(work=0.0001, period=0.01, start=0.0507)
RARE = Load(work=0.005, period=0.5, start=0.25)


class TestReleaseDelayZero:
    @pytest.mark.parametrize("offline", [1, 3])
    def test_a_request_has_what_it_has_alone_and_a_fraction_of_a_millisecond(self, offline: int) -> None:
        card = mixed([REQUEST], [None] * offline, delay=0)
        card.run(3.0)
        assert max(card.latencies("on0/1")) <= REQUEST.work + 0.0003

    def test_offline_work_keeps_the_rest(self) -> None:
        card = mixed([REQUEST], [None], delay=0)
        card.run(3.0)
        switches = 2 * 0.00013 / REQUEST.period
        assert card.share("off0") == pytest.approx(1 - REQUEST.work / REQUEST.period - switches, abs=0.005)

    def test_no_order_is_on_a_requests_path(self) -> None:
        """Orders take the lock of the whole card: with the slices set, nothing more is ordered."""
        card = mixed([REQUEST], [None], delay=0)
        card.run(1.0)
        before = len(card.orders)
        card.run(3.0)
        assert len(card.orders) == before

    def test_a_busy_online_tenant_leaves_nothing(self) -> None:
        card = mixed([Load()], [None], delay=0)
        card.run(3.0)
        assert card.share("off0") <= 0.01
        assert card.share("on0") >= 0.99

    def test_an_idle_online_tenant_costs_nothing(self) -> None:
        card = mixed([Load(work=0.001)], [None], delay=0)
        card.run(3.0)
        assert card.share("off0") >= 0.99

    def test_times_it_took_the_card_are_counted(self) -> None:
        card = mixed([RARE], [None], delay=0)
        card.run(2.0)
        assert card.arbiter.preemptions["off0"] == 4


class TestHold:
    def test_a_request_finds_the_card_free(self) -> None:
        """Within the delay of the one before it: then its latency is that of being alone."""
        card = mixed([Load(work=0.001, period=0.05)], [None], delay=0.1)
        card.run(0.2)
        card.mark()
        card.run(2.0)
        assert max(card.latencies("on0/1")) == pytest.approx(0.001, abs=1e-6)
        assert card.share("off0") == 0.0

    def test_offline_work_is_paused_within_a_millisecond_of_the_first_launch(self) -> None:
        card = mixed([RARE], [None, None, None], delay=0.1)
        card.run(2.0)
        for launch in (0.25, 0.75, 1.25, 1.75):
            paused = min(at for at, order in card.orders if isinstance(order, Pause) and at > launch)
            assert paused - launch <= 0.001

    @settings(max_examples=10)
    @given(st.floats(0.01, 0.3), st.floats(0.0001, 0.15), st.floats(0.5, 0.6))
    def test_it_is_released_the_delay_after_the_last_activity_and_at_most_a_sample_later(
        self, delay: float, work: float, period: float
    ) -> None:
        card = mixed([Load(work=work, period=period, start=0.2)], [None], delay=delay)
        card.run(1.9)
        for at in range(3):
            launch = 0.2 + at * period
            ended = launch + work
            released = [when for when, order in card.orders if isinstance(order, Resume) and when > launch]
            assert ended + delay <= released[0] <= ended + delay + SAMPLE + 3 * ORDER

    def test_a_busy_online_tenant_leaves_nothing(self) -> None:
        card = mixed([Load(start=0.5)], [None, None], delay=0.1)
        card.run(0.6)
        card.mark()
        card.run(2.0)
        assert card.share("off0") + card.share("off1") == 0.0
        assert card.share("on0") >= 0.999
        assert card.arbiter.state("off0/1") is State.PAUSED

    def test_idle_time_goes_to_offline_work(self) -> None:
        card = mixed([Load(work=0.001)], [None], delay=0.1)
        card.run(1.0)
        card.mark()
        card.run(3.0)
        assert card.share("off0") >= 0.99

    def test_offline_work_that_begins_while_it_is_held_is_stopped(self) -> None:
        card = mixed([Load()], [], delay=0.1)
        card.admit("off", AppClass.OFFLINE)
        card.start("off/1", "off", Load(work=0.5, period=10.0, start=1.0))
        card.run(1.0)
        card.mark()
        card.run(1.0)
        assert card.paused("off/1")
        assert card.share("off") <= 0.002

    def test_the_delay_can_be_changed_while_all_run(self) -> None:
        card = mixed([Load(work=0.001, period=0.05)], [None], delay=0.1)
        card.run(1.0)
        assert card.share("off0") <= 0.06
        card.post(lambda arbiter, now: setattr(arbiter, "rules", SharingRules(release_delay=0.0)))
        card.run(0.1)
        card.mark()
        card.run(1.0)
        assert card.share("off0") >= 0.95

    def test_times_it_took_the_card_are_counted(self) -> None:
        card = mixed([RARE], [None], delay=0.1)
        card.run(2.0)
        assert card.arbiter.preemptions["off0"] == 4


class TestSeveralOnline:
    @pytest.mark.parametrize("period", [0.0101, 0.05, 0.31])
    @pytest.mark.parametrize("delay", [0.0, 0.1])
    @pytest.mark.parametrize("offline", [0, 2])
    def test_a_request_beside_a_busy_one_waits_no_longer_than_a_short_slice(
        self, period: float, delay: float, offline: int
    ) -> None:
        card = mixed([Load(), Load(work=0.001, period=period, start=0.2)], [None] * offline, delay=delay)
        card.run(0.5)
        card.mark()
        card.run(4.0)
        assert percentile(card.latencies("on1/1"), 0.99) <= 0.004

    def test_a_rare_request_beside_a_busy_online_tenant_waits_no_longer_than_a_short_slice(self) -> None:
        card = mixed([Load(), Load(work=0.001, period=1.7303, start=0.2)], [None], delay=0.1)
        card.run(20.0)
        assert max(card.latencies("on1/1")) <= 0.004

    def test_none_starves_when_all_are_busy(self) -> None:
        card = mixed([Load()] * 3, [None], delay=0.1)
        card.run(0.5)
        card.mark()
        card.run(2.0)
        assert [card.share(f"on{at}") for at in range(3)] == [pytest.approx(1 / 3, abs=0.03)] * 3
        assert card.share("off0") <= 0.01

    def test_one_that_is_alone_loses_little_to_offline_work(self) -> None:
        card = mixed([Load(), Load(work=0.001)], [None], delay=0)
        card.run(2.0)
        card.mark()
        card.run(2.0)
        assert card.share("on0") >= 0.98
        assert card.share("off0") <= 0.01


class TestSeveralOffline:
    @pytest.mark.parametrize("delay", [0.0, 0.1])
    @pytest.mark.parametrize("late", [None, 11])
    @pytest.mark.parametrize(
        ("isolation", "quotas", "promised"),
        [
            (Isolation.BEST_EFFORT, (0.2, 0.8), (0.5, 0.5)),
            (Isolation.BEST_EFFORT, (None,) * 4, (0.25,) * 4),
            (Isolation.BURST_SHARE, (0.2, 0.3, 0.5), (0.2, 0.3, 0.5)),
            (Isolation.BURST_SHARE, (0.1, 0.1), (0.5, 0.5)),
            (Isolation.FIXED_SHARE, (0.2, 0.3), (0.2, 0.3)),
            (Isolation.FIXED_SHARE, (0.1, 0.2, 0.3), (0.1, 0.2, 0.3)),
        ],
    )
    def test_beside_an_idle_online_tenant_their_shares_are_by_policy(
        self,
        isolation: Isolation,
        quotas: Sequence[float | None],
        promised: Sequence[float],
        delay: float,
        late: int | None,
    ) -> None:
        card = mixed([Load(work=0.001)], quotas, delay=delay, isolation=isolation, seed=late)
        card.run(0.5)
        card.mark()
        card.run(5.0)
        shares = [card.share(f"off{at}") for at in range(len(quotas))]
        assert shares == [pytest.approx(part, abs=0.03) for part in promised]

    def test_offline_shares_beside_requests_are_by_policy_and_requests_do_not_suffer(self) -> None:
        card = mixed([REQUEST], (0.25, 0.75), delay=0, isolation=Isolation.BURST_SHARE)
        card.run(0.5)
        card.mark()
        card.run(6.0)
        left = 1 - REQUEST.work / REQUEST.period
        assert card.share("off0") == pytest.approx(0.25 * left, abs=0.03)
        assert card.share("off1") == pytest.approx(0.75 * left, abs=0.03)
        assert percentile(card.latencies("on0/1"), 0.99) <= REQUEST.work + 0.0004

    def test_short_gaps_between_holds_go_to_each_in_turn(self) -> None:
        """A gap is shorter than a turn: none may keep the turn from gap to gap."""
        card = mixed([Load(work=0.001, period=0.05)], (None, None), delay=0.02)
        card.run(6.0)
        shares = [card.share("off0"), card.share("off1")]
        assert sum(shares) >= 0.3
        assert shares == [pytest.approx(sum(shares) / 2, abs=0.03)] * 2

    def test_a_tenant_with_three_processes_has_one_share(self) -> None:
        card = mixed([Load(work=0.001)], (0.5, 0.5), delay=0.1, isolation=Isolation.BURST_SHARE)
        for process in ("off0/2", "off0/3"):
            card.start(process, "off0", Load())
        card.run(0.5)
        card.mark()
        card.run(6.0)
        assert [card.share("off0"), card.share("off1")] == [pytest.approx(0.5, abs=0.03)] * 2

    @settings(max_examples=8)
    @given(st.integers(0, 2**32))
    def test_two_with_tiny_slices_never_contend_for_longer_than_an_order(self, seed: int) -> None:
        """Trap 1: they would get nothing done. One that was idle rings (0.2 ms), then it is paused."""
        chance = random.Random(seed)
        card = mixed([Load(work=0.001, period=0.3)], [], delay=chance.choice([0.0, 0.05]))
        for at in range(4):
            card.admit(f"off{at}", AppClass.OFFLINE)
            load = Load(work=chance.uniform(0.001, 0.2), period=chance.uniform(0.05, 0.7), start=chance.random())
            card.start(f"off{at}/1", f"off{at}", load)
        card.run(4.0)
        assert card.worst_stall <= 0.0002 + 6 * ORDER

    def test_a_long_kernel_without_waiters_stalls_no_tenant(self) -> None:
        """It launches nothing and waits for nothing: were it taken for idle, it would be enabled beside the others."""
        card = mixed([Load(work=0.001)], [None], delay=0.1)
        card.admit("long", AppClass.OFFLINE)
        card.start("long/1", "long", Load(kernel=30.0, waits=False))
        card.run(3.0)
        card.mark()
        card.run(3.0)
        assert card.share("off0") >= 0.8
        assert card.share("long") >= 0.03
        assert card.worst_stall <= 0.002

    def test_an_offline_context_that_never_synchronises_wastes_little(self) -> None:
        card = mixed([Load(work=0.001)], [None], delay=0.1)
        card.admit("lazy", AppClass.OFFLINE)
        card.start("lazy/1", "lazy", Load(work=0.01, waits=False, sees=False))
        card.run(3.0)
        card.mark()
        card.run(3.0)
        assert card.share("off0") >= 0.9

    def test_contexts_that_are_being_made_stall_no_tenant(self) -> None:
        """They are not paused whatever happens: so their slices are not tiny."""
        card = mixed([Load(work=0.001)], [None], delay=0.1)
        for at in range(3):
            card.admit(f"new{at}", AppClass.OFFLINE)
            card.start(f"new{at}/1", f"new{at}", Load(), being_made=True)
        card.run(0.25)
        assert all(card.share(f"new{at}") > 0.05 for at in range(3))
        card.run(1.0)
        assert card.worst_stall <= 0.0002 + 6 * ORDER


class TestGate:
    """Where the driver refuses control a pause works at the next launch, and no slice takes the card from a kernel."""

    @pytest.mark.parametrize("delay", [0.0, 0.1])
    def test_a_request_waits_for_a_kernel_at_most_and_the_next_ones_for_nothing(self, delay: float) -> None:
        card = mixed([], [], delay=delay)
        card.admit("on", AppClass.ONLINE)
        card.admit("off", AppClass.OFFLINE)
        card.start("on/1", "on", Load(work=0.001, period=0.02, start=1.0))
        card.start("off/1", "off", Load(kernel=0.02), preemptible=False)
        card.run(1.0)
        assert card.share("off") >= 0.99
        card.mark()
        card.run(1.0)
        first, *others = card.latencies("on/1")
        assert first <= 0.02 + 0.0025
        assert max(others) <= 0.02  # the first one's wait may last into the second's
        assert max(others[1:]) <= 0.001 + 0.00014

    def test_offline_work_goes_on_when_the_front_is_idle(self) -> None:
        card = mixed([Load(work=0.001, period=1.0)], (None, None), delay=0.0, preemptible=False)
        card.run(4.0)
        assert card.share("off0") + card.share("off1") >= 0.85
        assert card.share("off0") >= 0.2


class TestNormalInFront:
    def test_offline_work_beside_normal_work_has_what_that_leaves(self) -> None:
        card = VirtualCard(SharingRules(Isolation.BEST_EFFORT, 0.0))
        card.admit("n", AppClass.NORMAL)
        card.admit("off", AppClass.OFFLINE)
        card.start("n/1", "n", Load(work=0.05, period=0.1))
        card.start("off/1", "off", Load())
        card.run(3.0)
        assert card.share("n") == pytest.approx(0.5, abs=0.02)
        assert card.share("off") == pytest.approx(0.5, abs=0.02)

    @pytest.mark.parametrize("delay", [0.0, 0.1])
    def test_the_part_that_a_cap_leaves_is_for_offline_work(self, delay: float) -> None:
        """While the tenant in front waits for its next window, no tenant has the card."""
        card = VirtualCard(SharingRules(Isolation.FIXED_SHARE, delay))
        card.admit("n", AppClass.NORMAL, 0.3)
        card.admit("off", AppClass.OFFLINE, 1.0)
        card.start("n/1", "n", Load())
        card.start("off/1", "off", Load())
        card.run(0.5)
        card.mark()
        card.run(3.0)
        assert card.share("n") == pytest.approx(0.3, abs=0.02)
        assert card.share("off") >= 0.6

    def test_online_work_and_normal_work_compete(self) -> None:
        card = mixed([Load()], [None], delay=0.1, isolation=Isolation.FIXED_SHARE)
        card.admit("n", AppClass.NORMAL, 0.3)
        card.start("n/1", "n", Load())
        card.run(2.0)
        assert card.share("on0") >= 0.4
        assert card.share("n") >= 0.4
        assert card.share("off0") <= 0.02
