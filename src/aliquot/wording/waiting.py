"""Why a run waits, in one line. Imported by `aliquot run`: nothing heavy."""

from __future__ import annotations

from typing import Any

from aliquot.wording.shortage import reason


def waiting(standing: dict[str, Any]) -> str:
    """Its place in the queue, and the reason."""
    return f"waiting: {_ordinal(standing['position'])} of {standing['of']}; {reason(standing)}"


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
