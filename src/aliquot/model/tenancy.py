"""A tenant with its shares of the cards, as it is kept in SQLite: a Pod by the agent, a run by the machine's daemon."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aliquot.model.claim import AppClass, may_park
from aliquot.model.device import CORE_MILLI
from aliquot.model.grant import Grant, Share
from aliquot.model.tenant import Allotment, Tenant


@dataclass(frozen=True, slots=True)
class TenantEnvironment:
    """The environment variables of a tenant's processes: `fixed` replaces variables, `front` prepends to lists."""

    fixed: Mapping[str, str] = field(default_factory=dict)
    front: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tenancy:
    """`shares` has one entry per card, by its UUID: the most that the tenant uses there at once. The card numbers in it
    were right when it was booked."""

    id: str  # of a Pod or a claim its UID
    namespace: str  # empty for a run
    name: str
    app_class: AppClass
    shares: tuple[Share, ...]
    created: float  # seconds since 1970
    # Only of a run:
    user: int | None = None
    root: int | None = None  # its first process
    started: int | None = None  # when the kernel started that
    command: tuple[str, ...] = ()
    log: str | None = None  # output file of a detached run
    # Only of a node:
    claim: bool = False  # a ResourceClaim, which several Pods may share
    # Of both:
    park_after: float | None = None  # seconds idle after which its memory may be parked; None: by its class
    group: str = ""  # shares its cards in space with others of this group and owner (docs/together.md)
    latency: float | None = None  # seconds that online work accepts to have added to its requests; None: not said
    release_delay: float | None = None  # its own, in seconds, where the node's is `auto`; None: learned

    @property
    def parkable(self) -> bool:
        """Whether its memory may leave a card that it shares with others: as of a claim, only from one card."""
        one_card = len({share.uuid for share in self.shares}) == 1
        return one_card and not self.group and may_park(self.app_class, self.park_after)

    @property
    def group_id(self) -> str:
        """The group on these cards: one owner's, of one name. Empty: it is in none. It names a folder with sockets: of
        runs it is as short as a tenant's id. Of Pods it is long, so that no name can be found which has the id of
        another namespace's group."""
        if not self.group:
            return ""
        cards = sorted(share.uuid for share in self.shares)
        words = (str(self.user), self.namespace, self.group, *cards)
        return hashlib.sha256("\0".join(words).encode()).hexdigest()[: 32 if self.namespace else 10]

    @property
    def key(self) -> str:
        """namespace/name of a Pod, name of a run."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def tenant(self) -> Tenant:
        """The tenant as the arbiter knows it."""
        allotments = allotments_of(self.shares)
        return Tenant(
            self.id,
            self.key,
            self.app_class,
            allotments,
            self.user,
            self.root,
            self.started,
            self.park_after,
            self.group_id,
            self.latency,
            self.release_delay,
        )


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that is over. `ended` and `code` are None where that is not known; a signal is a negative code."""

    id: str
    name: str
    app_class: AppClass
    user: int
    command: tuple[str, ...]
    started: float  # seconds since 1970
    ended: float | None
    code: int | None
    log: str | None


def allotments_of(shares: tuple[Share, ...]) -> tuple[Allotment, ...]:
    """The limits that the arbiter enforces. A card held whole has none."""
    return tuple(
        Allotment(share.uuid)
        if share.exclusive
        else Allotment(
            share.uuid,
            share.memory_mib << 20,
            share.core_milli if share.greedy_milli is None else share.greedy_milli,
        )
        for share in shares
    )


def group_tenant(members: Iterable[Tenancy]) -> Tenant:
    """What has the time of a group's members, at least one: on each card the sum of their quotas, and no memory of its
    own. Members that asked for no quota add none; the group has none if no member asked for one."""
    first, *_ = everybody = [member.tenant for member in members]
    quotas: dict[str, int | None] = {}
    for allotment in (allotment for member in everybody for allotment in member.allotments):
        so_far, more = quotas.get(allotment.uuid), allotment.quota_milli
        quotas[allotment.uuid] = more if so_far is None else min(CORE_MILLI, so_far + (more or 0))
    allotments = tuple(Allotment(uuid, None, quota) for uuid, quota in quotas.items())
    latency = min((member.latency for member in everybody if member.latency is not None), default=None)
    return replace(
        first, id=first.group, allotments=allotments, root=None, started=None, park_after=None, latency=latency
    )


def shares_of(grant: Grant, uuids: Mapping[int, str]) -> tuple[Share, ...]:
    """What the Pod as a whole holds of each card: the most that its containers use there at once.

    `uuids` by card number: a grant of a peer's scheduler has only numbers.
    """
    named = {share.card: share.uuid for container in grant.containers for share in container.shares if share.uuid}
    asked = [share for container in grant.containers for share in container.shares]
    return tuple(
        Share(
            card=card,
            memory_mib=usage.memory_mib,
            core_milli=usage.core_milli if _any(asked, card, "core_milli") else None,
            greedy_milli=usage.greedy_milli if _any(asked, card, "greedy_milli") else None,
            exclusive=bool(usage.exclusive),
            uuid=named.get(card) or uuids.get(card, ""),
        )
        for card, usage in grant.usage().items()
    )


def _any(shares: Iterable[Share], card: int, field: str) -> bool:
    return any(getattr(share, field) is not None for share in shares if share.card == card)
