"""Who used how much of a card's time and memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class Spent:
    """What one tenant had of one card. `gpu` of a pseudo tenant (`Payer.kind`) is the card's time it stands for."""

    gpu: float = 0.0  # seconds of the card's time
    preempted: float = 0.0  # seconds that online work took from it
    waiting: float = 0.0  # seconds in which it had work and other tenants had the card
    booked: float = 0.0  # byte-seconds of memory promised to it
    used: float = 0.0  # byte-seconds of memory in use

    def add(self, other: Spent) -> None:
        """Add all of it."""
        self.gpu += other.gpu
        self.preempted += other.preempted
        self.waiting += other.waiting
        self.booked += other.booked
        self.used += other.used


class Payer(NamedTuple):
    """On whose bill it is. A Pod has a namespace, a run a user and no namespace."""

    kind: str = ""  # empty: a tenant; otherwise idle, unknown or unmeasured
    namespace: str = ""
    name: str = ""
    container: str = ""  # the one that asked for a card; empty: several
    app_class: str = ""
    user: int | None = None


OTHERS = "(others)"  # stands for the names of a user's or namespace's tenants that share one row


def owner_of(payer: Payer) -> int | str:
    """Whose tenant it is: a user's, in any namespace, or where there are no users a namespace's."""
    return payer.namespace if payer.user is None else payer.user


def place_of(payer: Payer) -> tuple[int | str, str]:
    """Whose tenant it is, and in which namespace."""
    return owner_of(payer), payer.namespace


def as_others(payer: Payer, *, keep_namespace: bool = False) -> Payer:
    """On the bill of the same owner and class, without a name; a Pod of a user keeps its namespace on request."""
    namespace = payer.namespace if payer.user is None or keep_namespace else ""
    return payer._replace(name=OTHERS, container="", namespace=namespace)


IDLE = Payer("idle")  # no tenant had the card
UNKNOWN = Payer("unknown")  # a daemon measured it and was killed before it wrote that down
UNMEASURED = Payer("unmeasured")  # no daemon ran


@dataclass(slots=True)
class Stretch:
    """One card from one time to another, by the monotonic clock: what its tenants had, by tenant id."""

    began: float
    ended: float
    idle: float = 0.0
    tenants: dict[str, Spent] = field(default_factory=dict)


class Mark(NamedTuple):
    """The time until which a card's time is on the disk."""

    boot: str  # the boot that `monotonic` belongs to
    monotonic: float
    wall: float  # seconds since 1970
    clean: bool  # nothing was measured after it


class UsageRow(NamedTuple):
    """One payer on one card, in the hour that began then."""

    hour: int  # seconds since 1970
    uuid: str
    payer: Payer
    spent: Spent
