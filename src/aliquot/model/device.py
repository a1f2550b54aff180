"""One card."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec.structs import replace

from aliquot.model.withheld import Withheld

CORE_MILLI = 1000  # the compute of one card, in milli-GPU
LEAST_FACTOR, MOST_FACTOR = 1.0, 8.0  # of oversubscription

# The sizes in GiB that cards are sold with, and the least part of it that programs see. On cards with GDDR memory ECC
# takes a sixteenth, and the driver some more (A10: 22,731 MiB of 24 GiB); on the others only the driver takes some.
_ECC_TAKES_SOME, _DRIVER_TAKES_SOME = 0.91, 0.97
_SOLD_GIB = {
    **dict.fromkeys((2, 4, 6, 10, 11, 40, 64, 80, 94, 96, 128, 141, 144, 180, 192), _DRIVER_TAKES_SOME),
    **dict.fromkeys((8, 12, 16, 20, 24, 32, 48), _ECC_TAKES_SOME),
}


# Of a card on which memory moves: the process that moves it needs half a GiB for itself. Contexts of new tenants may
# take of it too, and are larger on larger cards.
USUAL_RESERVE_MIB = 1024
SMALL_CARD_PART, LARGE_CARD_PART = 16, 64  # one of so many parts: at most of a small card, at least of a large one
CONTEXT_MIB = 512  # of a program's memory that stays on the card while the rest is parked: its CUDA context


def reserve_mib(memory_mib: int) -> int:
    """Memory of a card of that size that parkable work leaves alone, so that the mover can start on a full card."""
    return min(memory_mib // SMALL_CARD_PART, max(USUAL_RESERVE_MIB, memory_mib // LARGE_CARD_PART))


@lru_cache(maxsize=256)
def nominal_gib(memory_mib: int) -> int:
    """The size that the card is sold with: 16 for a T4, which has 15,360 MiB. Of an unknown size, the nearest GiB."""
    seen = memory_mib / 1024
    sold = min((size for size in _SOLD_GIB if size >= seen), default=0)
    return sold if sold and seen >= sold * _SOLD_GIB[sold] else round(seen)


class Card(msgspec.Struct, frozen=True, gc=False):
    """One GPU of a node. `index` is its number on the node today; `uuid` is who it is (order changes over reboots)."""

    index: int
    memory_mib: int
    uuid: str = ""
    model: str = ""
    healthy: bool = True
    numa: int | None = None
    max_slices: int | None = None  # how many Pods may share it; None: as many as have room
    withheld: Withheld | None = None  # why it is not offered although it is healthy
    oversubscribe: float = 1.0  # times its memory that may be booked, with work whose memory may be parked

    def shared_by(self, pods: int | None, oversubscribe: float = 1.0) -> Card:
        """The card, with how many Pods may share it."""
        return replace(self, max_slices=pods, oversubscribe=oversubscribe)

    @property
    def bookable_mib(self) -> int:
        """Memory that may be booked on it in all; of that at most its own with work that cannot be parked."""
        return int(self.memory_mib * self.oversubscribe)

    @property
    def usable(self) -> bool:
        """Whether new work may go there."""
        return self.healthy and not self.withheld
