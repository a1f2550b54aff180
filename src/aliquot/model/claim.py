"""What a Pod asks for, in any dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from aliquot.model.decoding.opencode import OpenCode
from aliquot.model.device import CORE_MILLI
from aliquot.model.node import Offer, Order


class AppClass(OpenCode):
    """Online work takes the card from offline work; normal and offline work share it by policy."""

    NORMAL = "normal"
    ONLINE = "online"
    OFFLINE = "offline"


def may_park(app_class: AppClass, park_after: float | None) -> bool:
    """Offline work may be parked at any time, other work only if it asked for that."""
    return app_class is AppClass.OFFLINE or park_after is not None


class Role(StrEnum):
    """When a container runs: INIT containers one after the other before the rest, SIDECARs from their turn on."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


@dataclass(frozen=True, slots=True)
class Slice:
    """How much of one card. Memory is absolute or a percentage of whichever card is chosen, never both."""

    memory_mib: int = 0
    memory_percent: float = 0  # whole, but for KAI's fractions
    core_milli: int | None = None  # compute; None: none was asked for
    greedy_milli: int | None = None  # offline compute
    exclusive: bool = False  # the whole card

    def memory_on(self, card_memory_mib: int) -> int:
        """The MiB this slice takes of a card of that size."""
        return self.memory_mib + int(self.memory_percent * card_memory_mib // 100)


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """One container's request: `count` equal slices on distinct cards; None is every card of the node."""

    name: str
    index: int  # its place among the Pod's containers (or, for INIT and SIDECAR, among its init containers)
    role: Role
    slice: Slice
    count: int | None = 1

    @property
    def cards(self) -> int:
        """How many cards it gets, where its dialect says a number; 1 in place of every card of a node."""
        return self.count or 1


class CardFilter(msgspec.Struct, frozen=True, gc=False):
    """Which cards a claim may have, by parts of their model's name (in upper case) and by UUID. Empty: any."""

    models: tuple[str, ...] = ()  # one of these
    not_models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()  # one of these
    not_uuids: tuple[str, ...] = ()

    def allows_model(self, model: str) -> bool:
        """Whether cards of that model may be used. HAMi writes the vendor before the model."""
        name = f"NVIDIA-{model}".upper()
        wanted = not self.models or any(part in name for part in self.models)
        return wanted and not any(part in name for part in self.not_models)

    def card_rule(self) -> Callable[[str], bool]:
        """Whether the card of a UUID may be used: made once, for many cards."""
        wanted, avoided = frozenset(self.uuids), frozenset(self.not_uuids)
        return lambda uuid: (not wanted or uuid in wanted) and uuid not in avoided


@dataclass(frozen=True, slots=True)
class Preference:
    """The order in which a Pod itself wants to be placed, instead of the scheduler's policy."""

    nodes: Order
    cards: Order


class Claim(msgspec.Struct, frozen=True, gc=False):
    """One Pod's request. `containers` holds those that ask for GPU, init containers first, in the Pod's order."""

    uid: str
    namespace: str
    name: str
    dialect: str
    offer: Offer
    containers: tuple[ContainerClaim, ...]
    app_class: AppClass = AppClass.NORMAL
    together: bool = False  # all containers on the same cards
    whole_node: bool = False
    models: frozenset[str] | None = None  # None: any
    cards: CardFilter | None = None  # None: any
    preference: Preference | None = None  # None: the scheduler's policy
    owner: str | None = None  # whose replica it is
    cpu_milli: int = 0
    memory_mib: int = 0
    park_after: float | None = None  # seconds idle after which its GPU memory may leave the card; None: by its class
    group: str = ""  # shares its cards in space with others of this group and owner (docs/together.md)
    user: int | None = None  # of a group's member on a cluster: who its processes are
    latency: float | None = None  # seconds that online work accepts to have added to its requests; None: not said

    @property
    def key(self) -> str:
        """namespace/name, as people write it."""
        return f"{self.namespace}/{self.name}"

    @property
    def parkable(self) -> bool:
        """Whether its GPU memory may leave the card for a while. What is on several cards stays there: calls on one
        of them may touch the memory of another."""
        return may_park(self.app_class, self.park_after) and not self.group and not self.has_several_slices

    @property
    def group_key(self) -> str:
        """The same for Pods that are members of one group wherever they have one card; empty: it is in none."""
        return f"{self.namespace}/{self.group}/{self.app_class}/{self.user}" if self.group else ""

    @property
    def has_several_slices(self) -> bool:
        """Whether it may be on more than one card."""
        return len(self.containers) > 1 or any(container.count != 1 for container in self.containers)


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What is taken of one card."""

    memory_mib: int = 0
    core_milli: int = 0
    greedy_milli: int = 0
    slices: int = 0
    exclusive: int = 0

    @property
    def booked_milli(self) -> int:
        """Compute that is promised to others than offline work: a card held whole is booked whole."""
        return CORE_MILLI if self.exclusive else self.core_milli

    @property
    def is_contested(self) -> bool:
        """Whether the card is held whole, and by more than one."""
        return self.exclusive > 0 and self.slices > 1

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.memory_mib + other.memory_mib,
            self.core_milli + other.core_milli,
            self.greedy_milli + other.greedy_milli,
            self.slices + other.slices,
            self.exclusive + other.exclusive,
        )

    def __or__(self, other: Usage) -> Usage:
        """The larger of the two in every respect: they are never there at the same time."""
        return Usage(
            max(self.memory_mib, other.memory_mib),
            max(self.core_milli, other.core_milli),
            max(self.greedy_milli, other.greedy_milli),
            max(self.slices, other.slices),
            max(self.exclusive, other.exclusive),
        )


def peak(parts: Iterable[tuple[Role, Usage]]) -> Usage:
    """The most that is in use at once, counted as Kubernetes counts: max(init peak, sum of app and sidecars).

    The parts come in the Pod's order, init containers and sidecars first. What is held whole at one time is the Pod's
    alone at all times; more than one slice beside that means that two of its parts want the same at once.
    """
    in_order = list(parts)
    if len(in_order) == 1:  # nearly all Pods
        return in_order[0][1]
    sidecars = mains = highest = Usage()
    clash = False
    for role, usage in in_order:
        if role is Role.SIDECAR:
            sidecars += usage
        elif role is Role.INIT:
            now = sidecars + usage
            highest |= now
            clash = clash or now.is_contested
        else:
            mains += usage
    last = sidecars + mains
    highest |= last
    if not highest.is_contested or clash or last.is_contested:
        return highest
    return msgspec.structs.replace(highest, slices=1)


def peak_amount(parts: Iterable[tuple[Role, int]]) -> int:
    """The same of a single number: a Pod may have thousands of containers."""
    sidecars = mains = highest = 0
    for role, amount in parts:
        if role is Role.SIDECAR:
            sidecars += amount
        elif role is Role.INIT:
            highest = max(highest, sidecars + amount)
        else:
            mains += amount
    return max(highest, sidecars + mains)
