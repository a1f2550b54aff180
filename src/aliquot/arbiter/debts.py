"""What newcomers had before they could be paused, and how their tenants pay for it. fixed-share only.

A context that is being made must not be paused (roster.SETTLING), so it runs beside the others. What it had
then is its tenant's debt. A debt is paid by waiting, at the rate of the quota, whether the tenant has work or not: the
mean is the quota. The account is the tenant's, so that a program which starts again and again does not get that time
each time: a new context of a tenant in debt waits at the gate, which is safe at any time, until the debt is paid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aliquot.arbiter.roster import SETTLING
from aliquot.arbiter.turns import FOREVER

_NOTHING = 1e-6  # seconds that are not worth a round
_MOST = 1.0  # a debt is never longer: a tenant of a hundredth would wait for minutes


@dataclass(slots=True)
class Debts:
    """Seconds of the card, by tenant."""

    _owed: dict[str, float] = field(default_factory=dict)
    _paying: set[str] = field(default_factory=set)
    _at: float | None = None
    until: float = FOREVER  # when the next debt is paid

    def charge(self, tenant: str, seconds: float) -> None:
        """A context of the tenant had so much while it could not be paused."""
        if seconds > 0:
            self._owed[tenant] = min(_MOST, self._owed.get(tenant, 0.0) + seconds)
            if self._owed[tenant] >= SETTLING:  # it goes on being made for longer than others
                self._paying.add(tenant)

    def collect(self, tenant: str) -> None:
        """The tenant can be made to wait, or another context of it comes: from now on it pays, if it owes."""
        if tenant in self._owed:
            self._paying.add(tenant)

    def pays(self, tenant: str) -> bool:
        """Whether it waits until its debt is paid."""
        return tenant in self._paying

    def debtors(self) -> set[str]:
        """The tenants that owe anything."""
        return set(self._owed)

    def step(self, quotas: Mapping[str, float], now: float) -> None:
        """Time passes, and debts with it. Sets `until`."""
        elapsed, self._at = 0.0 if self._at is None else max(0.0, now - self._at), now
        left = {name: owed - quotas.get(name, 1.0) * elapsed for name, owed in self._owed.items()}
        self._owed = {name: owed for name, owed in left.items() if owed > _NOTHING}
        self._paying &= self._owed.keys()
        ends = [now + max(_NOTHING, self._owed[name] / max(quotas.get(name, 1.0), 1e-6)) for name in self._paying]
        self.until = min(ends, default=FOREVER)

    def forget(self, tenant: str) -> None:
        """The tenant is gone."""
        self._owed.pop(tenant, None)
        self._paying.discard(tenant)
