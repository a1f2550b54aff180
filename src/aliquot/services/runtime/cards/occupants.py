"""Who is on a card: tenants, and their processes' contexts. Only the card's own thread (cardloop.py) touches them."""

from __future__ import annotations

from dataclasses import dataclass, field

from aliquot.arbiter.timeline import Came
from aliquot.model.claim import AppClass
from aliquot.services.runtime.processes.contexts import Context, TenantTotals


@dataclass(slots=True)
class Occupants:
    """By name of the context, or by tenant."""

    contexts: dict[str, Context] = field(default_factory=dict)
    parts: dict[str, Context] = field(default_factory=dict)
    """Processes that work through an MPS server, which is one of the contexts."""
    orphans: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Parts that wait since their server left: its pid, start time."""
    totals: dict[str, TenantTotals] = field(default_factory=dict)

    def everybody(self) -> list[Context]:
        """Every process, also those that work through an MPS server."""
        return [*self.contexts.values(), *self.parts.values()]

    def servers(self, group: str) -> list[Context]:
        """Those of an MPS server. Two, where the second was started because the first one's control is gone."""
        return [context for context in self.contexts.values() if context.tenant == group and not context.member]

    def class_of(self, context: Context) -> AppClass | None:
        """None: its tenant is not on the card any more."""
        totals = self.totals.get(context.tenant)
        return None if totals is None else totals.member.app_class

    def came(self, context: Context) -> Came:
        """Its record for the trace."""
        return Came(context.name, context.owner, self.class_of(context) is AppClass.OFFLINE)
