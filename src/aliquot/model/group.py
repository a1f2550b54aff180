"""Pods that start together or not at all: what a PodGroup asks for, and what a waiting one lacks."""

from __future__ import annotations

import msgspec

from aliquot.model.claim import Claim


class Group(msgspec.Struct, frozen=True, gc=False):
    """A PodGroup of any API. Members count once they have a node, or have ended well."""

    key: str  # API group/namespace/name
    needed: int  # members that must have a place before any gets a card
    roles: tuple[tuple[str, int], ...] = ()  # the same, of each role
    priority: int = 0
    created: str = ""  # as the API server writes it
    finished: bool = False  # its owner wants no more members started
    patience: float | None = None  # seconds for which its members' places are kept; None: the scheduler's

    @property
    def name(self) -> str:
        """namespace/name."""
        return self.key.partition("/")[2]

    @property
    def order(self) -> tuple[int, str, str]:
        """Smaller goes first: the more important, then the older one."""
        return -self.priority, self.created, self.key


class Membership(msgspec.Struct, frozen=True, gc=False):
    """Which group a Pod names, and where. `keys`: the objects that may be meant, the likeliest first."""

    keys: tuple[str, ...]
    field: str
    name: str
    role: str = ""


class Shortfall(msgspec.Struct, frozen=True, gc=False):
    """What a waiting group has and what it lacks."""

    group: str  # namespace/name
    needed: int = 0
    placed: int = 0  # have a node, or have ended well
    cardless: int = 0  # wait for a node, and need no card of ours
    fitting: int = 0  # would get cards now
    absent: int = 0  # needed, and there is no such Pod yet
    role: str = ""  # the role that is short, where it is not the whole group
    without: Claim | None = None  # the first member that finds no room
    broken: str = ""  # the rule that the PodGroup breaks
    finished: bool = False
    came: int = 0  # of a group that pauses: members that were in their places when it gave up the others'
    pause: float = 0.0  # seconds without another attempt

    @property
    def has(self) -> int:
        """How many have a place, or would have one."""
        return self.placed + self.cardless + self.fitting
