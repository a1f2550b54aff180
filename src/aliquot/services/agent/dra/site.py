"""The node as the DRA driver sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aliquot.dialects.dra import LABEL
from aliquot.dialects.native import GRANT
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid
from aliquot.model.tenant import Standing
from aliquot.services.agent.podcache import PodCache
from aliquot.services.agent.report.node import NodeReporter
from aliquot.services.agent.tenants import PodTenants


@dataclass(frozen=True, slots=True)
class AgentSite:
    """What of the agent the driver uses."""

    reporter: NodeReporter
    tenants: PodTenants
    pods: PodCache
    node: Callable[[], Node]
    standings: Callable[[], Iterable[Standing]]
    reads_cdi: Callable[[], bool]

    @property
    def dra_label(self) -> str:
        """The value of the node's label."""
        return self.reporter.labels.get(LABEL, "")

    @property
    def node_uid(self) -> str:
        """The Node's UID."""
        return self.reporter.uid

    @property
    def has_cdi(self) -> bool:
        """Whether the container runtime reads CDI."""
        return self.reads_cdi()

    def pods_hold_cards(self) -> bool:
        """Whether a Pod holds a card that our scheduler gave it, or is about to."""
        if any(not tenancy.claim for tenancy in self.tenants.tenancies.values()):
            return True
        return any(GRANT in (pod.metadata.annotations or {}) for pod in self.pods if not pod.finished)

    def report_refused(self, problem: Invalid) -> None:
        """Emit an event on the Node."""
        self.reporter.events.report_refused(problem)
