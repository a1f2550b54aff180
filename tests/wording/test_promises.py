"""What a Pod was promised, by its class and the node's policy."""

from __future__ import annotations

import pytest

from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.status.machine import RequestStatus
from aliquot.wording.promises import promised

EVEN, BURST, FIXED = Isolation.BEST_EFFORT, Isolation.BURST_SHARE, Isolation.FIXED_SHARE


@pytest.mark.parametrize(
    ("app_class", "core", "isolation", "compute"),
    [
        (AppClass.NORMAL, 30.0, EVEN, "an equal part of the compute (best-effort; its 30% is only booked)"),
        (AppClass.NORMAL, None, EVEN, "an equal part of the compute (best-effort)"),
        (AppClass.NORMAL, 30.0, BURST, "at least 30% of the compute (burst-share)"),
        (AppClass.NORMAL, None, BURST, "a part of the compute that quotas leave (burst-share)"),
        (AppClass.NORMAL, 30.0, FIXED, "30% of the compute, and no more (fixed-share)"),
        (AppClass.ONLINE, None, FIXED, "all of the compute while it has work, before offline work"),
        (AppClass.OFFLINE, None, EVEN, "an equal part of the compute that online work leaves (best-effort)"),
        (
            AppClass.OFFLINE,
            50.0,
            FIXED,
            "50% of the compute that online work and other quotas leave, and no more (fixed-share)",
        ),
    ],
)
def test_promise_of_compute_depends_on_class_and_policy(
    app_class: AppClass, core: float | None, isolation: Isolation, compute: str
) -> None:
    amount = RequestStatus(memory_mib=4096, core=core, offline=app_class is AppClass.OFFLINE)
    assert promised([amount], 1, app_class, isolation) == f"Promised 4 GiB of the card, and {compute}."


def test_promise_of_several_cards() -> None:
    whole = RequestStatus(whole=True, memory_mib=24 << 10)
    assert promised([whole], 2, AppClass.NORMAL, EVEN) == "Promised 2 whole cards."
    sizes = [RequestStatus(memory_mib=mib) for mib in (4096, 8192)]
    text = promised(sizes, 2, AppClass.NORMAL, EVEN)
    assert text == "Promised 4 GiB + 8 GiB of 2 cards, and an equal part of the compute (best-effort)."
