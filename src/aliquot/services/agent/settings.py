"""What the agent is built from: its configuration, and the adapters that tests replace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aliquot import dialects
from aliquot.adapters.storage.podstore import PodStore
from aliquot.dialects import Rules
from aliquot.model.cardstate.control import CardControl
from aliquot.model.residency import Arrival
from aliquot.model.tenant import Finding, SharingRules, Standing
from aliquot.services.agent.api.live import Traced
from aliquot.services.agent.injection import Libraries
from aliquot.services.agent.report import events
from aliquot.services.agent.tenants import Tenants
from aliquot.services.runtime.cards.meter import CardMeter
from aliquot.services.runtime.together.groups import Groups
from aliquot.services.runtime.usage.billing import Billing


class Arbiter(Tenants, Traced, Protocol):
    """services/runtime/arbiterd.py."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def configure(self, rules: SharingRules) -> None: ...
    def standings(self) -> list[Standing]: ...
    def findings(self) -> list[Finding]: ...
    def controls(self) -> Mapping[str, CardControl]: ...
    def take_arrivals(self) -> list[Arrival]: ...
    def spare(self, tenants: frozenset[str]) -> None: ...


class Health(events.Health, Protocol):
    """services/runtime/cards/health.py."""

    @property
    def xids(self) -> Mapping[str, int]: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """The agent's configuration, from its command line."""

    node_name: str
    tenants: Path  # holds one folder per Pod on the cards
    links: Path  # holds links to those, named after device IDs, for runtimes without CDI
    cdi: bool | None = None  # None: depends on the runtime's version
    cdi_folder: Path = Path("/var/run/cdi")
    environment_by_file: bool = False  # without CDI and without the webhook: the shim sets the environment
    kubelet: Path = Path("/var/lib/kubelet")
    rules: Rules = dialects.DEFAULT_RULES
    release_delay: float | None = 0.1  # None: learned
    kill_after: float | None = None  # seconds over its memory limit after which a Pod's processes are ended
    host_pool: int = 0  # MiB of host memory for what is parked
    oversubscribe: float = 1.0  # of nodes without the label
    handover: float = 3.0  # seconds for the scheduler to acknowledge that the agent stops
    port: int = 9479
    bind_address: str = "0.0.0.0"  # noqa: S104  # Prometheus runs on another node
    control: Path | None = None  # socket for `aliquot top`, `ps` and `doctor` on the node; None: no socket
    simulated: str | None = None  # the simulated cards, in the form of the command line
    qgpu_names: bool = False  # whether /metrics has those of qGPU's exporter too
    together: bool = False  # whether Pods may share a card in space (docs/together.md)
    notes: tuple[str, ...] = ()  # remarks for the status


@dataclass(frozen=True, slots=True)
class Parts:
    """The agent's adapters, which tests replace."""

    store: PodStore
    arbiter: Arbiter
    health: Health
    libraries: Libraries
    meter: CardMeter | None = None  # samples the cards' usage; None: usage is not known
    billing: Billing | None = None  # who used how much; None: it is not kept
    minors: Mapping[str, int] = field(default_factory=dict)  # numbers of the cards' device files, by UUID
    driver_version: str = ""
    claim_users: ClaimUsers = field(default_factory=lambda: ClaimUsers())
    groups: Groups | None = None  # None: no Pods share a card in space


@dataclass(slots=True)
class ClaimUsers:
    """For the arbiter, which exists before the agent: the UIDs of the claims a Pod uses, by the Pod's UID."""

    find: Callable[[str], Sequence[str]] = lambda pod: ()

    def __call__(self, pod: str) -> Sequence[str]:
        return self.find(pod)
