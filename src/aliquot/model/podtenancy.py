"""A Pod with what it holds of the cards of its node: what the node's agent keeps of every Pod it let in."""

from __future__ import annotations

from dataclasses import dataclass

from .claim import AppClass
from .grant import Share


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
