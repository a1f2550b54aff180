"""The card in virtual time does what the H200 was measured to do."""

from __future__ import annotations

import pytest

from aliquot.arbiter.card import CardArbiter
from aliquot.arbiter.orders import Arm, Order, Pause, Resume, SetSlice
from aliquot.model.tenant import SharingRules
from kit.cards.virtualcard import Load, SpinError, VirtualCard


def stock(*loads: Load, preemptible: bool = True) -> VirtualCard:
    """A card with processes of tenants that the arbiter does not know: it orders nothing of them."""
    card = VirtualCard(SharingRules())
    for at, load in enumerate(loads):
        card.start("abcdefgh"[at], "abcdefgh"[at], load, preemptible=preemptible)
    return card


def sliced(card: VirtualCard, **microseconds: int) -> VirtualCard:
    for name, length in microseconds.items():
        card.obey(SetSlice(name, length))
    return card


def test_simulated_tenant_alone_has_the_whole_card() -> None:
    card = stock(Load())
    card.run(1.0)
    assert card.share("a") == 1.0


def test_eight_simulated_tenants_with_stock_slices_lose_seven_percent() -> None:
    card = stock(*[Load()] * 8)
    card.run(5.0)
    assert sum(card.share(name) for name in "abcdefgh") == pytest.approx(0.935, abs=0.005)


def test_eight_simulated_tenants_with_long_slices_lose_two_percent() -> None:
    card = sliced(stock(*[Load()] * 8), **dict.fromkeys("abcdefgh", 8000))
    card.run(5.0)
    assert sum(card.share(name) for name in "abcdefgh") == pytest.approx(0.985, abs=0.005)


@pytest.mark.parametrize(
    ("microseconds", "measured"),
    [({"a": 3000, "b": 7000}, [0.286, 0.697]), ({"a": 1000, "b": 9000}, [0.078, 0.90])],
)
def test_shares_follow_slices_as_measured(microseconds: dict[str, int], measured: list[float]) -> None:
    card = sliced(stock(Load(), Load()), **microseconds)
    card.run(5.0)
    assert [card.share("a"), card.share("b")] == pytest.approx(measured, abs=0.015)


def test_two_slices_shorter_than_a_switch_make_no_progress() -> None:
    card = sliced(stock(Load(), Load()), a=1, b=1)
    card.run(1.0)
    assert card.share("a") + card.share("b") < 0.001
    assert card.worst_stall == pytest.approx(1.0, abs=0.001)


@pytest.mark.parametrize(
    ("microseconds", "p50", "most"),
    [(2048, 0.00125, 0.00229), (200, 0.00033, 0.00044), (1, 0.00023, 0.00024)],
)
def test_a_request_waits_for_the_end_of_a_slice_not_of_a_kernel(microseconds: int, p50: float, most: float) -> None:
    """100 us every 10 ms beside kernels of 200 ms; measured 1353, 434 and 327 us, of which 80 us are the host's."""
    card = sliced(stock(Load(kernel=0.2), Load(work=0.0001, period=0.01007)), a=microseconds, b=1_000_000)
    card.run(2.0)
    found = sorted(card.latencies("b"))
    assert found[len(found) // 2] == pytest.approx(p50, abs=0.0001)
    assert found[-1] <= most


def test_a_pause_stops_in_mid_kernel_and_a_resume_goes_on_there() -> None:
    card = stock(Load(work=0.1, period=10.0, kernel=0.1))
    card.run(0.03)
    card.obey(Pause("a"))
    card.run(1.0)
    assert card.share("a") == pytest.approx(0.03 / 1.03)
    card.obey(Resume("a"))
    card.run(0.1)
    assert card.latencies("a") == [pytest.approx(1.1)]


def test_a_closed_gate_stops_at_the_end_of_the_kernel() -> None:
    card = stock(Load(kernel=0.2), preemptible=False)
    card.run(0.25)
    card.obey(Pause("a"))
    card.run(0.75)
    assert card.share("a") == pytest.approx(0.4)
    card.obey(Resume("a"))
    card.run(1.0)
    assert card.share("a") == pytest.approx(0.7)


def test_armed_tenant_reports_its_next_launch() -> None:
    heard: list[float] = []

    class Hears(CardArbiter):
        def wake(self, name: str, now: float) -> None:
            heard.append(now)

    card = stock(Load(work=0.001, period=0.5, start=0.25))
    card.arbiter = Hears()
    card.run(0.1)
    card.obey(Arm("a"))
    card.run(1.0)
    assert heard == [pytest.approx(0.2502)]


def test_the_same_run_gives_the_same_figures() -> None:
    def figures() -> list[tuple[float, float, str]]:
        card = stock(Load(), Load(work=0.0013, period=0.0071), Load(kernel=0.00005))
        card.run(1.0)
        return card.held

    assert figures() == figures()


def test_a_process_that_ends_leaves_the_card_to_the_others() -> None:
    card = stock(Load(), Load())
    card.run(1.0)
    card.stop("a")
    card.mark()
    card.run(1.0)
    assert card.share("b") == pytest.approx(1.0, abs=0.001)


def test_a_decision_that_never_settles_is_noticed() -> None:
    class Restless(CardArbiter):
        def tick(self, now: float) -> list[Order]:
            self.deadline = 0.0
            return []

    card = VirtualCard(SharingRules())
    card.arbiter = Restless()
    with pytest.raises(SpinError):
        card.run(1.0)
