"""The status of a machine's daemon, and of a node's agent, which has the same shape with Pods for tenants."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, field

from aliquot.model.cardstate.control import ControlLevel, ControlReason
from aliquot.model.claim import AppClass, Claim
from aliquot.model.node import Isolation
from aliquot.model.reason import Reason
from aliquot.model.residency import ParkReason, Where
from aliquot.model.tenant import FindingKind, Level, State
from aliquot.model.withheld import CardHolder, WithheldCode


class DaemonStatus(Struct):
    """The process that answers."""

    pid: int
    uid: int | UnsetType = UNSET
    version: str | UnsetType = UNSET
    since: float | UnsetType = UNSET
    home: str | UnsetType = UNSET
    simulated: str | UnsetType | None = UNSET
    # of a machine
    dashboard: str | UnsetType | None = UNSET
    dashboard_elsewhere: str | UnsetType | None = UNSET
    token: bool | UnsetType = UNSET
    token_file: str | UnsetType | None = UNSET
    options: dict[str, str] | UnsetType = UNSET  # of its command line, by flag
    # of an agent
    node: str | UnsetType = UNSET
    database: str | UnsetType = UNSET
    kubelet: str | UnsetType = UNSET
    cdi: str | UnsetType | None = UNSET
    metrics_port: int | UnsetType | None = UNSET
    dialects: list[str] | UnsetType = UNSET


class RulesStatus(Struct):
    """How tenants share."""

    policy: Isolation
    release_delay_seconds: float | None  # null: auto
    kill_after_seconds: float | None = None  # null: a tenant over its memory limit is only reported


class PoolStatus(Struct):
    """The host memory for what does not fit on the cards."""

    bytes: int
    booked_bytes: int  # beyond the cards
    used_bytes: int  # parked there now


class NodeStatus(Struct):
    """A node of a machine: the machine itself, or one of several simulated nodes."""

    name: str
    cards: list[str]  # UUIDs
    offers: list[str]
    policy: Isolation


class HardwareStatus(Struct):
    """What NVML says about the card itself; null where it does not know."""

    temperature_celsius: float | None = None
    power_watts: float | None = None
    sm_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None
    encoder_utilisation: float | None = None  # 0 to 1
    decoder_utilisation: float | None = None


class ControlStatus(Struct):
    """What holds tenants on a card to their shares, and why it is not proven hardware."""

    level: ControlLevel
    reason: ControlReason | None


class CardStatus(Struct):
    """A card, what is booked on it, and what NVML measured last."""

    index: int
    uuid: str
    model: str
    memory_bytes: int
    memory_used_bytes: int | None
    memory_booked_bytes: int
    core_booked: float  # percent
    tenants: int
    utilisation: float | None
    node: str | UnsetType = UNSET  # of a machine
    healthy: bool | UnsetType = UNSET  # of an agent
    why_out: str | UnsetType | None = UNSET
    xid: int | UnsetType = UNSET  # the error that took it out
    withheld: WithheldCode | UnsetType = UNSET  # why it is not offered although it is healthy
    held_by: CardHolder | UnsetType = UNSET
    memory_unregistered_bytes: int = 0  # of processes whose memory nothing limits
    oversubscribe: float = 1.0  # times its memory that may be booked
    hardware: HardwareStatus | UnsetType = UNSET
    control: ControlStatus | UnsetType = UNSET

    @property
    def is_out(self) -> bool:
        """Whether no new tenant may go there."""
        return self.healthy is False or bool(self.withheld)

    @property
    def memory_mib(self) -> int:
        """All of its memory."""
        return self.memory_bytes >> 20

    @property
    def free_mib(self) -> int:
        """Memory that a new tenant could have; nothing on a card that is out."""
        return 0 if self.is_out else max(0, self.memory_bytes - self.memory_booked_bytes) >> 20


class ResidencyStatus(Struct):
    """Where a tenant's memory is that may leave the card, and its moves since it came."""

    where: Where
    resident_bytes: int
    parked_bytes: int
    moves: int
    moved_bytes: int
    last_out_seconds: float | None
    last_in_seconds: float | None
    why: ParkReason | None  # it is parked, or cannot be


class ShareStatus(Struct):
    """What a tenant was promised of one card, and how it stands there."""

    index: int
    uuid: str
    exclusive: bool
    core: float | None  # percent
    memory_limit_bytes: int
    state: State
    level: Level
    share: float | None
    memory_used_bytes: int
    pids: list[int]
    preemptions: int
    paused_seconds: float  # that online work took from it, in all
    refused_allocations: int
    greedy: bool = False
    paused_by: str | None = None  # the tenant that has the card while this one is paused
    memory_over_bytes: int = 0  # over its limit, by the driver's figure
    hard_limit: bool = False  # the driver itself limits its memory too
    residency: ResidencyStatus | None = None  # null: its memory does not leave the card
    latency_missed_seconds: int = 0  # in which more was added to its requests than it accepts
    requests: int = 0  # of online work, so far: what comes after a gap of more than 20 ms
    takings: int = 0  # times it took the card from offline work
    preemptions_per_request: float | None = None  # the one over the other; null: no request yet
    takes_turns: bool = False  # with others that wait for each token, as it does: a group would give both more

    @property
    def limit_mib(self) -> int:
        """Memory that the tenant may use."""
        return self.memory_limit_bytes >> 20

    @property
    def used_mib(self) -> int:
        """Memory that it uses."""
        return self.memory_used_bytes >> 20


class TenantStatus(Struct):
    """One run or Pod on the cards."""

    id: str
    name: str
    app_class: AppClass = field(name="class")
    uid: int | str | None  # the user; of an agent the Pod's UID
    pid: int | None
    command: list[str]
    created: float
    age_seconds: float
    log: str | None
    cards: list[ShareStatus]
    node: str | UnsetType | None = UNSET  # of a machine
    namespace: str | UnsetType = UNSET  # of an agent
    pod: str | UnsetType = UNSET
    ended: bool | UnsetType = UNSET  # the Pod is over, but not all its processes
    parkable: bool = False
    park_after_seconds: float | None = None  # idle, after which it may be parked; null: by its class
    latency_seconds: float | None = None  # that online work accepts to have added to its requests; null: not said
    together: str | None = None  # the group whose members run side by side with it; null: none


class RefusalStatus(Struct):
    """One shortage at one place: see model/refusal.py for the units."""

    card: int | None
    reason: Reason
    wanted: int | str | None
    had: int | str | None
    node: str | UnsetType = UNSET  # where there are several nodes
    never: bool | UnsetType = UNSET


class RequestStatus(Struct, omit_defaults=True):
    """What a container asks for of each of `count` cards; null: of every card of a node."""

    count: int | None = 1
    whole: bool = False  # of cards, or of a node
    node: bool = False  # everything on the node
    memory_mib: int = 0
    memory_percent: float = 0
    core: float | None = None  # percent
    offline: bool = False  # compute that online work leaves


class QueuePosition(Struct):
    """A place in the queue for cards, and why it is not the turn of that run or Pod."""

    name: str
    position: int
    of: int
    kept_for: str | None  # which is first, and has the room reserved
    refusals: list[RefusalStatus]


class QueueEntry(QueuePosition):
    """A run that waits for room, and why."""

    app_class: AppClass = field(name="class")
    uid: int | None
    pid: int | None
    gpus: int | None
    core: float | None
    memory_bytes: int | None
    waited_seconds: float
    command: list[str]
    log: str | None


class EndedStatus(Struct):
    """A run that is over; null where that is not known. After a signal, the exit code is that of a shell."""

    id: str
    name: str
    app_class: AppClass = field(name="class")
    uid: int
    command: list[str]
    started: float
    ended: float | None
    exit_code: int | None
    signal: str | None
    log: str | None


class FindingStatus(Struct):
    """Something on a card that should not be."""

    uuid: str
    pid: int | None
    text: str
    kind: FindingKind | UnsetType = UNSET
    memory_bytes: int | UnsetType = UNSET  # of the process; of an overuse those over the limit


class ResourceStatus(Struct):
    """What the kubelet is offered of one resource, and whether it has accepted that."""

    devices: int
    unhealthy: int
    registered: bool


class CallStatus(Struct):
    """How often a verb was called, and when last."""

    count: int = 0
    last: str | None = None


class AgentStatus(Struct):
    """What only a node's agent has."""

    waits_for: str | None
    resources: dict[str, ResourceStatus]
    kubelet_restarts: int
    calls: dict[str, CallStatus]
    notes: list[str] = []


class Status(Struct):
    """All of it."""

    daemon: DaemonStatus
    rules: RulesStatus
    cards: list[CardStatus]
    tenants: list[TenantStatus]
    queue: list[QueueEntry]
    findings: list[FindingStatus]
    agent: AgentStatus | UnsetType = UNSET
    pool: PoolStatus | UnsetType = UNSET
    nodes: list[NodeStatus] | UnsetType = UNSET  # of a machine

    def cards_of(self, node: str) -> list[CardStatus]:
        """The cards of one node; an agent's cards are all of its own node."""
        return [card for card in self.cards if card.node in (UNSET, node)]


def requests_of(claim: Claim) -> list[RequestStatus]:
    """What each container of the claim asks for; containers that ask for the same once."""
    if claim.whole_node:
        return [RequestStatus(node=True)]
    found: list[RequestStatus] = []
    for container in claim.containers:
        part = container.slice
        milli = part.core_milli if part.greedy_milli is None else part.greedy_milli
        request = RequestStatus(
            count=container.count,
            whole=bool(part.exclusive),
            memory_mib=part.memory_mib or 0,
            memory_percent=part.memory_percent or 0,
            core=None if milli is None else milli / 10,
            offline=part.greedy_milli is not None,
        )
        if request not in found:
            found.append(request)
    return found
