"""One card."""

from __future__ import annotations

from dataclasses import dataclass

CORE_MILLI = 1000  # the compute of one card, in milli-GPU


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU of a node. `index` is its number on the node today; `uuid` is who it is (order changes over reboots)."""

    index: int
    memory_mib: int
    uuid: str = ""
    model: str = ""
    healthy: bool = True
    numa: int | None = None
    max_slices: int | None = None  # how many may share it; None: as many as have room
