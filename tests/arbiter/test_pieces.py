"""Engines that wait for each piece of their work take turns at the gate."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aliquot.arbiter.orders import Hold, Open, Pause, Resume
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules
from kit.cards.virtualcard import Load, VirtualCard

# A token of some kernels, then work of the process's own: llama.cpp, and a larger model with vLLM.
LLAMA = Load(work=0.0009, kernel=0.00015, pieces=10**9, gap=0.0004)
VLLM = Load(work=0.006, kernel=0.006, pieces=10**9, gap=0.0015)


def together(
    loads: Sequence[Load], isolation: Isolation = Isolation.BEST_EFFORT, quotas: Sequence[float | None] | None = None
) -> VirtualCard:
    card = VirtualCard(SharingRules(isolation))
    for at, load in enumerate(loads):
        card.admit(f"t{at}", quota=None if quotas is None else quotas[at])
        card.start(f"t{at}/1", f"t{at}", load)
    card.run(2.0)
    card.mark()
    card.run(6.0)
    return card


def p99(latencies: list[float]) -> float:
    return sorted(latencies)[int(0.99 * len(latencies))]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("load", [LLAMA, VLLM], ids=["llama.cpp", "vLLM"])
def test_engines_together_get_what_one_has_alone_and_no_token_waits_long(load: Load, count: int) -> None:
    alone = together([load]).share("t0")
    card = together([load] * count)
    shares = [card.share(f"t{at}") for at in range(count)]
    assert sum(shares) >= 0.95 * alone
    assert shares == [pytest.approx(sum(shares) / count, rel=0.05)] * count
    # A token that is on its way when a turn ends is waited for: of a large model that is some milliseconds.
    on_the_way = count * load.work if load is VLLM else 0.0
    assert all(p99(card.latencies(f"t{at}/1")) <= 0.020 + on_the_way for at in range(count))


@pytest.mark.parametrize("load", [LLAMA, VLLM], ids=["llama.cpp", "vLLM"])
@pytest.mark.parametrize("isolation", [Isolation.BURST_SHARE, Isolation.FIXED_SHARE])
def test_quotas_divide_turns(load: Load, isolation: Isolation) -> None:
    alone = together([load]).share("t0")
    card = together([load] * 2, isolation, (0.7, 0.3))
    found = [card.share(f"t{at}") / alone for at in range(2)]
    whole = sum(found) if isolation is Isolation.BURST_SHARE else 1.0  # two overlap where one alone leaves gaps
    assert sum(found) >= 0.95
    assert [part / whole for part in found] == [pytest.approx(part, abs=0.02) for part in (0.7, 0.3)]


def test_turns_take_no_call_of_the_driver() -> None:
    card = together([LLAMA, LLAMA])
    orders = {type(order) for at, order in card.orders if at > 2.0}
    assert orders == {Hold, Open}


def test_engine_beside_one_that_is_idle_has_the_card() -> None:
    seldom = Load(work=0.0009, kernel=0.0009, period=0.25, pieces=20, gap=0.0004)
    alone = together([LLAMA]).share("t0")
    assert together([LLAMA, seldom]).share("t0") >= 0.88 * alone


def test_work_without_pieces_is_paused_as_before() -> None:
    card = together([LLAMA, Load(kernel=0.002)], Isolation.FIXED_SHARE, (0.5, 0.5))
    assert any(isinstance(order, Pause) for at, order in card.orders if at > 2.0)


def test_nobody_stays_at_the_gate_when_online_work_comes() -> None:
    card = together([LLAMA, LLAMA])
    card.admit("on", AppClass.ONLINE)
    card.start("on/1", "on", Load(work=0.001, period=0.05))
    card.run(0.5)
    held = {order.context for _, order in card.orders if isinstance(order, Hold)}
    for name in held:
        last = [order for _, order in card.orders if getattr(order, "context", "") == name][-4:]
        assert not isinstance([order for order in last if isinstance(order, (Hold, Open, Resume))][-1], Hold)
