"""The words in the tables of `aliquot ps` and `aliquot top`."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.model.status.machine import ShareStatus, TenantStatus
from aliquot.wording.amounts import duration


def core(percent: float | None) -> str:
    """The percentage as --core takes it."""
    return "-" if percent is None else f"{percent:g}%"


def compute(share: ShareStatus) -> str:
    """What was promised of a card's compute."""
    return "whole" if share.exclusive else core(share.core)


def paused_time(share: ShareStatus) -> str:
    """How long online work kept it from the card, in all."""
    return duration(round(share.paused_seconds, 1)) if share.paused_seconds else "-"


def latency_words(tenant: TenantStatus, shares: Sequence[ShareStatus]) -> str:
    """What an online tenant accepts to have added to its requests, and how long it had more."""
    if tenant.latency_seconds is None:
        return "-"
    missed = sum(share.latency_missed_seconds for share in shares)
    return duration(tenant.latency_seconds) + (f", {duration(missed)} missed" if missed else "")
