"""The status of the scheduler: what it answers at /status."""

from __future__ import annotations

from msgspec import Struct, field

from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.status.machine import CallStatus


class UseStatus(Struct):
    """What a Pod has of one card."""

    index: int
    memory_mib: int
    core: float  # percent
    exclusive: bool


class PlacedStatus(Struct):
    """A Pod on a node; `doubt`: why its cards are a guess."""

    pod: str
    uid: str
    dialect: str
    app_class: AppClass = field(name="class")
    doubt: str | None
    cards: list[UseStatus]


class HeldClaimStatus(Struct):
    """A ResourceClaim with cards of a node: kube-scheduler allocated it."""

    claim: str
    app_class: AppClass = field(name="class")
    cards: list[UseStatus]
    pods: list[str]  # that use it


class ClusterCardStatus(Struct):
    """A card and what is booked on it, by Pods and by ResourceClaims."""

    index: int
    uuid: str
    model: str
    healthy: bool
    memory_mib: int
    used_memory_mib: int
    used_core: float  # percent


class ClusterNodeStatus(Struct):
    """A node with its cards, Pods and ResourceClaims."""

    name: str
    offers: list[str]
    isolation: Isolation
    cards: list[ClusterCardStatus]
    pods: list[PlacedStatus]
    claims: list[HeldClaimStatus] = []


class PendingStatus(Struct):
    """A Pod without a node; `refused`: kube-scheduler has given it up for now."""

    pod: str
    uid: str
    refused: bool
    scheduler: str


class SchedulerStatus(Struct):
    """All of it. `unusable` by node: the rules that it breaks."""

    policy: str
    nodes: list[ClusterNodeStatus]
    pending: list[PendingStatus]
    unusable: dict[str, list[str]]
    leading: bool
    calls: dict[str, CallStatus]
