"""Which cards a process may see, in the form that every program reads.

vLLM, TensorFlow and Ray read CUDA_VISIBLE_DEVICES as numbers, and vLLM takes them for NVML's. UUIDs, which CUDA reads
too, stop them. NVML counts cards by PCI address, and so does CUDA with CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from aliquot.model.device import Card
from aliquot.model.withheld import MIG_MODE

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_BY_ADDRESS = {ORDER: "PCI_BUS_ID"}


def visible_cards(uuids: Sequence[str], cards: Collection[Card]) -> dict[str, str]:
    """For a process that can see all of `cards`, those of its machine, and is to use these.

    Beside a card in MIG mode CUDA counts otherwise than NVML, so cards are named by UUID there; also where the number
    of one is not known.
    """
    numbers = {card.uuid: str(card.index) for card in cards if card.withheld != MIG_MODE}
    mixed = any(card.withheld == MIG_MODE for card in cards)
    by_number = not mixed and all(uuid in numbers for uuid in uuids)
    return {VISIBLE: ",".join(numbers[uuid] if by_number else uuid for uuid in uuids), **_BY_ADDRESS}


def visible_in_group(count: int) -> dict[str, str]:
    """For a client of an MPS server that has so many cards: the client sees these alone, counted from 0 in the
    server's order."""
    return {VISIBLE: ",".join(map(str, range(count))), **_BY_ADDRESS}
