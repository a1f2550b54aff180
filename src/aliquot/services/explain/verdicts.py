"""Where a Pod would go or why it waits, as data; and what had to be assumed for that."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.group import Shortfall
from aliquot.model.refusal import Invalid, Refusal
from aliquot.services.explain.claims import PodClaim
from aliquot.wording.preemption import Victim


@dataclass(frozen=True, slots=True)
class Note:
    """What had to be assumed or left out, and of what. Many may have the same text."""

    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Preemption:
    """Who would have to go for a Pod, what it would get then, and whether it may have them evicted."""

    victims: tuple[Victim, ...]
    grant: Grant
    allowed: bool  # its preemptionPolicy is not Never


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one Pod. Not ours: no claim, no grant, nothing broken."""

    pod: str
    claim: Claim | None = None
    grant: Grant | None = None
    broken: tuple[Invalid, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    remark: str | None = None
    gates: tuple[str, ...] = ()  # its scheduling gates: kube-scheduler does not look at it while it has any
    preemption: Preemption | None = None  # None: it has a place, or no eviction would help
    group: Shortfall | None = None  # what its PodGroup lacks, where it waits for that
    claims: tuple[PodClaim, ...] = ()  # of a Pod that asks by ResourceClaims: kube-scheduler decides

    @property
    def ours(self) -> bool:
        """Whether the Pod speaks one of the dialects."""
        return self.claim is not None or bool(self.broken)

    @property
    def fits(self) -> bool | None:
        """Whether it has a place; None: it needs no shared card, and others decide."""
        return self.grant is not None if self.ours else None
