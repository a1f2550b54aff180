"""How many connections and messages of one user are served in a second, over all its runs; of a Pod, where there are no
users. A user may have hundreds of runs, each with a budget of its own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from aliquot.adapters.host.handedfiles import Owner

# Enough for hundreds of runs that start at once: those that come later wait for the next second, and are not refused.
_MOST_ACCEPTED = 400  # connections
_MOST_RECEIVED = 8000  # messages

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Spent:
    accepted: int = 0
    received: int = 0
    logged: bool = False


class OwnerBudgets:
    """Of the second that was charged last."""

    def __init__(self) -> None:
        self._second = -1
        self._spent: dict[Owner, _Spent] = {}

    def charge(self, owner: Owner, second: int, *, accepted: int = 0, received: int = 0) -> None:
        """Count these."""
        if self._second != second:
            self._second, self._spent = second, {}
        spent = self._spent.setdefault(owner, _Spent())
        spent.accepted += accepted
        spent.received += received

    def forget(self, owner: Owner) -> None:
        """It is gone."""
        self._spent.pop(owner, None)

    def is_over(self, owner: Owner, second: int) -> bool:
        """Whether the owner has nothing left in that second. Logged once."""
        spent = self._spent.get(owner) if self._second == second else None
        if spent is None or (spent.accepted < _MOST_ACCEPTED and spent.received < _MOST_RECEIVED):
            return False
        if not spent.logged:
            spent.logged = True
            data = {"user": owner, "connections": spent.accepted, "messages": spent.received, "until": "next second"}
            log.warning("user_muted", extra={"data": data})
        return True
