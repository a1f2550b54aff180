"""The ResourceSlices of a node: each card is a device that several claims may share, by its capacities.

    memory   of the card, in steps of 1 MiB; a request that names none takes all of it
    core     100, in steps of 1: percent of the card's compute; a request that names none books none

A cluster without the feature DRAConsumableCapacity (on by default from Kubernetes 1.36) drops the fields that allow
sharing: a claim has whole cards there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from aliquot.dialects.dra import CORE, DRIVER, MEMORY
from aliquot.dialects.wire.objects import Metadata
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.device import Card
from aliquot.model.node import Isolation
from aliquot.model.numbers.quantity import QuantityError, parse_quantity

MOST_DEVICES = 128  # in one slice
_LONGEST = 64  # characters of an attribute's text
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_WHOLE_CORE = 100


class PublishedSlice(msgspec.Struct):
    """A ResourceSlice of ours, as the API server has it."""

    metadata: Metadata
    spec: JsonObject = msgspec.field(default_factory=dict)


def device_name(uuid: str) -> str:
    """The name of a card in our slices, which is a DNS label: its UUID where that can be one."""
    lower = uuid.lower()
    return lower if _LABEL.fullmatch(lower) else f"gpu-{hashlib.blake2b(uuid.encode(), digest_size=12).hexdigest()}"


def render_devices(
    cards: Iterable[Card], *, driver: str, policy: Isolation, control: Mapping[str, str], simulated: bool
) -> list[JsonObject]:
    """The devices of the cards that new claims may use. `control`: the level of control by UUID, where it is known."""
    return [
        _device(card, driver, policy, control.get(card.uuid, "unknown"), simulated)
        for card in sorted(cards, key=lambda card: card.index)
        if card.usable and card.uuid and card.memory_mib > 1
    ]


def _device(card: Card, driver: str, policy: Isolation, control: str, simulated: bool) -> JsonObject:
    texts = {"uuid": card.uuid, "model": card.model, "driverVersion": driver, "control": control, "policy": policy}
    numbers = {"index": card.index, "memoryMiB": card.memory_mib}
    if card.numa is not None:
        numbers["numa"] = card.numa
    memory = f"{card.memory_mib}Mi"
    return {
        "name": device_name(card.uuid),
        "attributes": {
            **{name: {"string": str(text)[:_LONGEST]} for name, text in texts.items() if text},
            **{name: {"int": number} for name, number in numbers.items()},
            "simulated": {"bool": simulated},
        },
        "capacity": {
            MEMORY: {
                "value": memory,
                "requestPolicy": {"default": memory, "validRange": {"min": "1Mi", "step": "1Mi"}},
            },
            CORE: {
                "value": str(_WHOLE_CORE),
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1"}},
            },
        },
        "allowMultipleAllocations": True,
    }


def render_slices(node: str, node_uid: str, devices: Sequence[JsonObject], generation: int) -> list[JsonObject]:
    """All slices of the node's pool. Kubernetes deletes them with the Node, which owns them."""
    parts = [list(devices[at : at + MOST_DEVICES]) for at in range(0, len(devices), MOST_DEVICES)]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"generateName": f"{node}-{DRIVER}-", **({"ownerReferences": [owner]} if node_uid else {})},
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": generation, "resourceSliceCount": len(parts)},
                "devices": part,
            },
        }
        for part in parts
    ]


def generation_of(published: Iterable[PublishedSlice]) -> int:
    """The newest generation; 0 where nothing is published."""
    pools = (found.spec.get("pool") for found in published)
    numbers = (pool.get("generation") for pool in pools if isinstance(pool, dict))
    return max((number for number in numbers if isinstance(number, int)), default=0)


def is_published(published: Sequence[PublishedSlice], devices: Sequence[JsonObject]) -> bool:
    """Whether the slices are there with exactly these devices, whole and of one generation."""
    ordered = sorted(published, key=lambda found: _first_name(found.spec))
    pools = [found.spec.get("pool") for found in ordered]
    wanted = -(-len(devices) // MOST_DEVICES)
    if len(ordered) != wanted or any(pool != pools[0] for pool in pools):
        return False
    if pools and (not isinstance(pools[0], dict) or pools[0].get("resourceSliceCount") != wanted):
        return False
    there = [device for found in ordered for device in found.spec.get("devices") or ()]
    return _comparable(there) == _comparable(sorted(devices, key=_name))


def _comparable(devices: Iterable[JsonObject]) -> list[Any]:
    """Without what the API server rewrites (16384Mi comes back as 16Gi), and without fields that it dropped."""
    return [
        (
            device.get("name"),
            device.get("attributes"),
            {name: _amount(capacity.get("value")) for name, capacity in (device.get("capacity") or {}).items()},
        )
        for device in sorted(devices, key=_name)
    ]


def _amount(value: object) -> object:
    try:
        return parse_quantity(value)
    except QuantityError:
        return value


def _name(device: JsonObject) -> str:
    return str(device.get("name", ""))


def _first_name(spec: JsonObject) -> str:
    return min(map(_name, spec.get("devices") or ({},)))
