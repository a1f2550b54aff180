"""The dashboard's API. web/src/contract.ts is generated from these structs: `make contract`. messages.py: sentences."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from aliquot.model.claim import AppClass
from aliquot.model.residency import ParkReason, Where
from aliquot.model.status.messages import Message, Refused, Wants
from aliquot.model.tenant import State

# --- nodes, cards and tenants ----------------------------------------------------------------------------------------


class Tenant(Struct):
    """A Pod, a ResourceClaim or a run on one card. Values that only the node's agent knows are null without it."""

    key: str
    app_class: AppClass = field(name="class")
    dialect: str
    memory_mib: int
    memory_used_mib: int | None
    core: float | None
    greedy: bool
    exclusive: bool
    share: float | None = None
    state: State | None = None
    preemptions: int | None = None
    paused_seconds: float | None = None
    paused_by: str | None = None
    where: Where | None = None  # null: its memory does not leave the card
    parked_mib: int = 0
    moves: int = 0
    why_parked: ParkReason | None = None  # or cannot be
    latency_seconds: float | None = None  # that it accepts to have added to its requests
    latency_missed_seconds: int = 0  # in which it had more
    together: str | None = None  # the group with which it runs side by side
    users: list[str] | None = None  # keys of the Pods that use a ResourceClaim; null: it is none


class Card(Struct):
    """A card with its tenants."""

    index: int
    uuid: str
    model: str
    healthy: bool
    why_out: Message | None
    memory_mib: int
    memory_booked_mib: int
    memory_used_mib: int | None
    core_booked: float
    greedy_booked: float
    busy: float | None
    exclusive: bool
    tenants: list[Tenant]
    memory_unregistered_mib: int = 0  # of processes that nothing limits; 0 where only the node's agent knows
    control: Message | None = None  # null where only the node's agent knows


class Lane(Struct):
    """One tenant's line in a timeline: percent of the card per bucket, and whether it was paused."""

    key: str
    app_class: AppClass = field(name="class")
    shares: tuple[int, ...]
    paused: tuple[int, ...]


class Preemption(Struct):
    """A moment at which `of` lost the card; `by` null: to nobody that is known."""

    at: float
    by: str | None
    of: str


class CardTimeline(Struct):
    """Who held a card."""

    tenants: list[Lane]
    preemptions: list[Preemption]


class Timeline(Struct):
    """The last buckets of a node's cards, by UUID."""

    until: float
    step: float
    buckets: int
    cards: dict[str, CardTimeline]


class Node(Struct):
    """A node in full."""

    name: str
    offers: list[str]
    policy: str
    release_delay_seconds: float | None = None
    trouble: list[Message] = []
    notes: list[Message] = []
    cards: list[Card] = []
    timeline: Timeline | None = None


# --- a Pod -----------------------------------------------------------------------------------------------------------


class PodCard(Struct):
    """What a Pod has of one card."""

    index: int
    uuid: str
    memory_mib: int
    core: float | None
    greedy: bool
    exclusive: bool


class Container(Struct):
    """A container; the scheduler does not know commands."""

    name: str
    command: list[str]


class Pod(Struct):
    """A Pod or a run: where it is and why."""

    key: str
    kind: Literal["pod", "run"]
    app_class: AppClass = field(name="class")
    dialect: str | None
    phase: str
    node: str | None = None
    cards: list[PodCard] = []
    containers: list[Container] = []
    owner: str | None = None
    since: float | None = None
    why: list[Message] = []
    refusals: list[Refused] = []
    claims: list[str] = []  # names of its ResourceClaims for cards


class WaitingPod(Struct):
    """A line of the list of those that wait."""

    key: str
    app_class: AppClass = field(name="class")
    dialect: str | None
    since: float | None
    reason: Message
    wants: Wants


class Waiting(Struct):
    """The first of those that wait, and how many there are."""

    count: int
    pods: list[WaitingPod]


# --- history ---------------------------------------------------------------------------------------------------------


class Point(Struct):
    """One moment of every series; null: not known."""

    time: float
    memory: float | None
    core: float | None
    busy: float | None
    fragmentation: float | None
    waiting: float | None
    online: float | None
    offline: float | None
    normal: float | None


class SeriesValues(Struct):
    """One column per series."""

    memory: list[float | None]
    core: list[float | None]
    busy: list[float | None]
    fragmentation: list[float | None]
    waiting: list[float | None]
    online: list[float | None]
    offline: list[float | None]
    normal: list[float | None]


SERIES = SeriesValues.__struct_fields__


class History(Struct):
    """All series over one range."""

    step: int
    times: list[float]
    series: SeriesValues


# --- the whole -------------------------------------------------------------------------------------------------------


class PodCounts(Struct):
    """Pods and runs on cards, by class."""

    online: int
    offline: int
    normal: int


class Totals(Struct):
    """The figures at the top."""

    nodes: int
    cards: int
    cards_free: int
    cards_out: int
    memory_mib: int
    memory_booked_mib: int
    memory_used_mib: int | None
    core: int
    core_booked: float
    busy: float | None
    fragmentation: float | None
    pods: PodCounts
    waiting: int
    troubled: int


class NodeKind(Struct, frozen=True):
    """Nodes that are alike."""

    offers: tuple[str, ...]  # dialects, and "claims" where the cards go to ResourceClaims
    policy: str
    model: str
    cards: int
    memory_mib: int


class CardBytes(Struct):
    """One byte per card, base64: booked memory and compute (200: all of it), and who is on it."""

    memory: str
    core: str
    app_class: str = field(name="class")


class Nodes(Struct):
    """All nodes, as columns. `trouble` by the node's number."""

    names: list[str]
    kind: list[int]
    cards: list[int]
    trouble: dict[str, list[Message]]


class Live(Struct):
    """A machine's nodes in full."""

    nodes: list[Node]


class DashboardState(Struct):
    """Everything, for a page that begins."""

    version: str
    kind: Literal["machine", "cluster"]
    name: str
    simulated: str | None
    now: float
    priority: str | None
    leading: bool | None
    totals: Totals
    kinds: list[NodeKind]
    nodes: Nodes
    cards: CardBytes
    waiting: Waiting
    live: Live | None
    history: History


class Tick(Struct):
    """What changed since: `rows` names the nodes whose bytes are in `cards`; null: as before."""

    now: float
    totals: Totals
    rows: list[int]
    cards: CardBytes
    trouble: dict[str, list[Message]] | None
    waiting: Waiting | None
    point: Point | None
    live: Live | None


class FoundPod(Struct):
    """A Pod or run by its name."""

    key: str
    node: str | None
    app_class: AppClass = field(name="class")
    phase: str


class SearchResult(Struct):
    """Nodes and Pods whose names contain the words."""

    nodes: list[str]
    pods: list[FoundPod]


ANSWERS = (DashboardState, Tick, Node, Pod, History, SearchResult)  # whatever the server sends
