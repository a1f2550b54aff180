"""The timeline of the README shows the difference that was measured on an H200, and no larger one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the bench is not part of the package
from bench.plots import REQUEST, StockCard, request_beside_training  # noqa: E402 - only now to be found

from kit.cards.virtualcard import VirtualCard  # noqa: E402

PAGE = (ROOT / "docs" / "performance.md").read_text()


def _longest(card: VirtualCard, request: float = REQUEST, every: float = 0.04) -> float:
    return request_beside_training(card, request, every)[1]


def test_request_takes_turns_with_offline_work_only_on_the_stock_driver() -> None:
    work = 1000 * REQUEST
    assert _longest(StockCard(SharingRules(Isolation.BEST_EFFORT))) > 2 * work
    assert _longest(VirtualCard(SharingRules(Isolation.BEST_EFFORT, 0.0))) == pytest.approx(work, abs=0.2)
    assert _longest(VirtualCard(SharingRules(Isolation.BEST_EFFORT, 0.1))) == work


def test_virtual_card_gives_what_the_performance_page_says_of_the_measured_row() -> None:
    request, every = 0.0001, 0.01
    stock = _longest(StockCard(SharingRules(Isolation.BEST_EFFORT)), request, every) - 1000 * request
    ours = _longest(VirtualCard(SharingRules(Isolation.BEST_EFFORT, 0.0)), request, every) - 1000 * request
    said = f"it gives {1000 * stock:,.0f} us with the stock driver and {1000 * ours:.0f} us with release delay 0"
    assert said in " ".join(PAGE.split())
