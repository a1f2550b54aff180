"""The settings of `aliquot scheduler`, from its command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.dialects import DIALECTS, MemoryUnit, QgpuRules
from aliquot.services.dashboard.access import NO_DASHBOARD, Listen
from aliquot.services.scheduler.ports.verbstls import VerbsTls

if TYPE_CHECKING:
    from aliquot.services.scheduler.ports.webhook import WebhookSettings  # loads cryptography only if needed

USUAL_METRICS = Listen("0.0.0.0", 12347, usual=True)  # noqa: S104  # Prometheus and the kubelet connect from outside


@dataclass(frozen=True, slots=True)
class Settings:
    """The command line's settings."""

    port: int = 12345
    bind_address: str = "127.0.0.1"
    tls: VerbsTls | None = None  # None: off; then other replicas and kube-schedulers use `port`
    metrics: Listen = USUAL_METRICS
    priority: str = "binpack"
    shortlist: int = 0
    served: frozenset[str] = frozenset(DIALECTS)
    rules: QgpuRules = QgpuRules.SEED
    memory_unit: MemoryUnit | None = None  # None: derived from what the nodes advertise
    leader_elect: bool = True
    lease_namespace: str = "kube-system"
    lease_name: str = "aliquot-scheduler"
    advertise: str = ""  # host:port where other instances reach this one
    identity: str = ""
    keep_nodes: bool = True
    preemption: bool = True  # evict Pods for more important ones where only a card is short
    webhook: WebhookSettings | None = None  # None: off
    dashboard: Listen = NO_DASHBOARD
    agent_port: int = 9479  # of the agents, on the nodes' own addresses; 0: do not query them
    reconcile_seconds: float = 300.0
