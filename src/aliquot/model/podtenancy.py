"""A Pod with what it holds of the cards of its node: what the node's agent keeps of every Pod it let in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aliquot.model.claim import AppClass
from aliquot.model.grant import Grant, Share


@dataclass(frozen=True, slots=True)
class PodTenancy:
    """`shares` has one entry per card: the most that the Pod's containers use there at once."""

    uid: str
    namespace: str
    name: str
    app_class: AppClass
    shares: tuple[Share, ...]
    created: float  # seconds since 1970

    @property
    def key(self) -> str:
        """As people call the Pod."""
        return f"{self.namespace}/{self.name}"


def shares_of(grant: Grant, uuids: Mapping[int, str]) -> tuple[Share, ...]:
    """What the Pod as a whole holds of each card: the most that its containers use there at once.

    `uuids` by card: a grant by a peer's scheduler names cards by their number alone.
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
