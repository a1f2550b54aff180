"""Who shares a card on a node: a tenant is a Pod, or what one `aliquot run` started, with all its processes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation


@dataclass(frozen=True, slots=True)
class Allotment:
    """A tenant's part of one card. None: no limit on memory; no quota of compute was asked for."""

    uuid: str
    memory_bytes: int | None = None
    quota_milli: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """`id` names its directory and never comes twice (a Pod's is its UID); `name` is for people.

    `uid` is the user whose processes it has; None, a Pod: any user who reaches its directory. `root` is its first
    process, where it has one.
    """

    id: str
    name: str
    app_class: AppClass
    allotments: tuple[Allotment, ...]
    uid: int | None
    root: int | None = None


@dataclass(frozen=True, slots=True)
class SharingRules:
    """What the node's owner chose: how tenants of one class share, and how long online work keeps a card it left."""

    isolation: Isolation = Isolation.BEST_EFFORT
    release_delay: float = 0.1  # seconds; 0: idle gaps are handed back at once


class State(StrEnum):
    """What a tenant does on a card at this moment."""

    IDLE = "idle"  # has handed over no work lately
    RUNNING = "running"
    PAUSED = "paused"  # online work has the card
    WAITING = "waiting"  # for its turn: another tenant's window, or its own quota is used up


class Level(StrEnum):
    """How a tenant is held to its share."""

    HARDWARE = "hardware"  # time slices and pauses in mid-kernel
    GATE = "gate"  # the next launch waits
    NONE = "none"  # it has not used the card yet


@dataclass(frozen=True, slots=True)
class Standing:
    """How one tenant stands on one card."""

    tenant: str  # Tenant.id
    uuid: str
    state: State
    level: Level
    share: float | None  # of the card's time over the last second, 0 to 1; None: not known
    memory_used: int  # bytes
    memory_limit: int | None
    processes: tuple[int, ...]  # pids, as the node counts
    preemptions: int  # times online work took the card from it
    paused_seconds: float
    refused: int  # allocations past its quota


class FindingKind(StrEnum):
    """What kind of thing should not be."""

    STRANGER = "stranger"  # a process on the card that is no tenant's
    TRESPASSER = "trespasser"  # a tenant's process, on a card that the tenant has no part of
    UNREGISTERED = "unregistered"  # a tenant's process that is not held to its share
    SLICE = "slice"  # a time slice changed behind our back
    REFUSED = "refused"  # the driver no longer lets us control it
    PAGE = "page"  # a tenant's page cannot be written
    SILENT = "silent"  # the card does not answer


@dataclass(frozen=True, slots=True)
class Finding:
    """Something on a card that should not be. `owner` is whose the process is: a tenant's id, or the UID of a Pod that
    is no tenant here; None: nobody's that we know."""

    uuid: str
    pid: int | None
    kind: FindingKind
    text: str
    owner: str | None = None
