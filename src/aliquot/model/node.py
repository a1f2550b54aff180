"""One node: its cards, and the ways of using them that it offers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from aliquot.model.device import Card


class Offer(StrEnum):
    """A way of using cards. A claim needs one; a node serves several at once on the same cards."""

    QGPU = "qgpu"
    QGPU_MIXED = "qgpu-mixed"  # online and offline Pods on one card
    GPUSHARE = "gpushare"
    GPUSHARE_CORE = "gpushare-core"  # compute, too
    GPUSHARE_WHOLE = "gpushare-whole"  # whole cards, where our agent reports them
    # In clusters that count in MiB: for Pods that the kubelet gives to an agent by gpu-mem alone, as devices.
    GPUSHARE_DEVICES = "gpushare-devices"
    GPUSHARE_CORE_DEVICES = "gpushare-core-devices"
    T9K_EXCLUSIVE = "t9k-xgn"  # whole cards and whole nodes
    T9K_SHARED = "t9k-sgn"
    HAMI = "hami"
    HAMI_SHARED = "hami-shared"  # nvidia.com/gpu.shared
    KAI = "kai"
    ANY = "any"  # the simulator's: no label is needed

    __hash__ = str.__hash__  # Enum's is written in Python, and sets of offers are asked many times for every node


# Which Pods they are for follows from the kubelet and the node's size, not from what its owner wants.
OF_DEVICES = frozenset({Offer.GPUSHARE_DEVICES, Offer.GPUSHARE_CORE_DEVICES})
_UNSAID = OF_DEVICES | {Offer.GPUSHARE_WHOLE}

# Whose Pods heed Card.max_slices: the limit on how many share a card is qGPU's rule, not the others'.
LIMITED_SHARING = frozenset({Offer.QGPU, Offer.QGPU_MIXED, Offer.ANY})


class Isolation(StrEnum):
    """What the node promises each Pod of a card's compute."""

    BEST_EFFORT = "best-effort"
    FIXED_SHARE = "fixed-share"
    BURST_SHARE = "burst-share"


class Order(StrEnum):
    """Which node, or which card of a node, comes first."""

    BINPACK = "binpack"  # the fullest
    SPREAD = "spread"  # the emptiest


class Closed(StrEnum):
    """Why Kubernetes sends no Pods to a node."""

    CORDONED = "cordoned"
    NOT_READY = "not-ready"
    AGENT_AWAY = "agent-away"


class NoteKind(StrEnum):
    """What had to be assumed about a node, or does not count there. wording/nodes.py has the sentences."""

    PART_OF_A_CARD = "part-of-a-card"  # source: a resource with 100 for each card; number: of it; other_number: cards
    NO_CARD_COUNT = "no-card-count"  # source
    CARD_COUNTS_DIFFER = "card-counts-differ"  # source and number; other and other_number
    NO_MEMORY = "no-memory"  # number: MiB of each card that are assumed
    UNEVEN_MEMORY = "uneven-memory"  # source and number; other_number: cards
    MEMORIES_DIFFER = "memories-differ"  # source and number, other and other_number: MiB of each card
    UNKNOWN_MODE = "unknown-mode"  # source: the label; other: its value
    BAD_FACTOR = "bad-factor"  # source: the label, and the annotation; other: its value
    NO_POOL = "no-pool"  # the same, but the node's agent reports no host pool
    OTHER_UNIT = "other-unit"  # source: a resource that the node's agent counts in MiB, and this cluster in GiB


class NodeNote(msgspec.Struct, frozen=True, gc=False):
    """One of them, with its values."""

    kind: NoteKind
    source: str = ""
    number: int = 0
    other: str = ""
    other_number: int = 0


class Node(msgspec.Struct, frozen=True, gc=False):
    """`cpu_milli` and `memory_mib` are None where they are unknown: then they limit nothing."""

    name: str
    cards: tuple[Card, ...] = ()
    offers: frozenset[Offer] = frozenset()
    isolation: Isolation = Isolation.BEST_EFFORT
    cpu_milli: int | None = None
    memory_mib: int | None = None
    notes: tuple[NodeNote, ...] = ()  # what had to be assumed about it
    card_order: Order | None = None  # in which ordinary Pods take its cards; None: by the scheduler's policy
    others: tuple[str, ...] = ()  # other plugins and DRA drivers that hand out its cards: then it offers nothing
    pool_mib: int = 0  # host memory for what does not fit on its cards; 0: nothing is parked
    together: bool = False  # whether its agent or daemon starts MPS servers for groups (docs/together.md)

    @property
    def offer_names(self) -> tuple[str, ...]:
        """The ways of use it offers, in a fixed order. Whole cards go without saying where the agent reports them."""
        return tuple(offer.value for offer in Offer if offer in self.offers and offer not in _UNSAID)


def deal(cards: Sequence[Card], names: Sequence[str]) -> tuple[Node, ...]:
    """Nodes of those names with the cards dealt out evenly, in order, and every way of use there is on offer."""
    per_node = len(cards) // len(names)
    return tuple(
        Node(
            name,
            tuple(replace(card, index=at) for at, card in enumerate(cards[first : first + per_node])),
            frozenset(Offer) - OF_DEVICES,
            together=True,
        )
        for name, first in zip(names, range(0, len(cards), per_node), strict=True)
    )
