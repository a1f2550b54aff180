"""Tenants, which share the cards of a node: a Pod, or one `aliquot run`, with all its processes."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.model.claim import AppClass, may_park
from aliquot.model.decoding.opencode import OpenCode
from aliquot.model.node import Isolation
from aliquot.model.residency import Residency


@dataclass(frozen=True, slots=True)
class Allotment:
    """A tenant's part of one card. None: no limit on memory; no quota of compute was asked for."""

    uuid: str
    memory_bytes: int | None = None
    quota_milli: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """`id` names its directory and is never reused (a Pod's is its UID); `name` is for people.

    `uid` is the user of its processes; None, for a Pod: any user who reaches its directory. `root` is its first
    process, if known, with `started`, when the kernel started that: a pid alone may be another process's later.
    """

    id: str
    name: str
    app_class: AppClass
    allotments: tuple[Allotment, ...]
    uid: int | None
    root: int | None = None
    started: int | None = None
    park_after: float | None = None  # seconds idle after which its memory may be parked; None: by its class
    group: str = ""  # id of the tenant that has the time of all members of a group; its own: it is that tenant
    latency: float | None = None  # seconds that online work accepts to have added to its requests; None: not said
    release_delay: float | None = None  # its own, in seconds, where the node's is `auto`; None: learned

    @property
    def parkable(self) -> bool:
        """Whether its memory may leave the one card that it shares with others. A card held whole is shared with
        nobody."""
        shares = len(self.allotments) == 1 and self.allotments[0].memory_bytes is not None
        return shares and not self.group and may_park(self.app_class, self.park_after)

    @property
    def is_group(self) -> bool:
        """Whether it is no run and no Pod, but the MPS server of a group of them (docs/together.md)."""
        return bool(self.group) and self.group == self.id


AUTO = "auto"  # a release delay that is learned, in words


@dataclass(frozen=True, slots=True)
class SharingRules:
    """The node's policy: how tenants of one class share, and how long online work keeps a card when it is idle."""

    isolation: Isolation = Isolation.BEST_EFFORT
    release_delay: float | None = 0.1  # seconds; 0: an idle card is released at once; None: learned (arbiter/gaps.py)
    kill_after: float | None = None  # seconds that a tenant may be over its memory limit; None: it is only reported
    oversubscribe: float = 1.0  # the largest factor of its cards
    host_pool: int = 0  # bytes of host memory for what is parked; 0: nothing is


class State(OpenCode):
    """What a tenant currently does on a card."""

    IDLE = "idle"  # has submitted no work lately
    RUNNING = "running"
    PAUSED = "paused"  # online work has the card
    WAITING = "waiting"  # another tenant has its turn, or its own quota is used up


class Level(OpenCode):
    """How a tenant's share is enforced."""

    HARDWARE = "hardware"  # by time slices, and pauses within a kernel
    GATE = "gate"  # the next kernel launch waits
    NONE = "none"  # it has not used the card yet


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of one tenant on one card."""

    tenant: str  # Tenant.id
    uuid: str
    state: State
    level: Level
    share: float | None  # of the card's time over the last second, 0 to 1; None: unknown
    memory_used: int  # bytes
    memory_limit: int | None
    processes: tuple[int, ...]  # PIDs in the node's PID namespace
    preemptions: int  # times online work took the card from it
    paused_seconds: float  # that online work took from it
    refused: int  # allocations refused because of its memory limit
    paused_by: str | None = None  # the name of the online tenant that has the card
    memory_over: int = 0  # bytes over its limit by NVML's figure; 0: within the margin (arbiter/overuse.py)
    hard_limit: bool = False  # the driver itself limits its memory too
    residency: Residency | None = None  # None: its memory does not leave the card
    latency_missed: int = 0  # seconds in which more was added to its requests than it accepts
    requests: int = 0  # of online work, as far as its gaps tell them apart
    takings: int = 0  # times it took the card from offline work
    takes_turns: bool = False  # with others that wait for each short piece of their work (arbiter/pieces.py)


class FindingKind(OpenCode):
    """What is wrong."""

    STRANGER = "stranger"  # a process on the card that belongs to no tenant
    TRESPASSER = "trespasser"  # a tenant's process on a card where the tenant has no share
    UNREGISTERED = "unregistered"  # a tenant's process whose share is not enforced
    SLICE = "slice"  # another program changed a time slice
    REFUSED = "refused"  # the driver refuses to control it
    INERT = "inert"  # the driver obeys, and it has no effect on the card
    PAGE = "page"  # a tenant's page cannot be written
    SILENT = "silent"  # the card does not answer
    OVERUSE = "overuse"  # a tenant uses more memory than its limit
    ENDED = "ended"  # a process was ended for that, a few minutes ago


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong on a card. `owner` of the process: a tenant's id, or the UID of a Pod that is no tenant here;
    None: unknown."""

    uuid: str
    pid: int | None
    kind: FindingKind
    text: str
    owner: str | None = None
    memory: int = 0  # bytes of the process; of an overuse those over the limit
