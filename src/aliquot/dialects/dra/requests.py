"""What a ResourceClaim asks for, before it is allocated, as a Pod's request would say it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from aliquot.dialects.dra import CORE, DEVICE_CLASSES, DRIVER, MEMORY
from aliquot.dialects.dra.claims import ClaimObject
from aliquot.dialects.dra.config import ClaimConfig, parse_config
from aliquot.dialects.kube.shapes import mapping, sequence
from aliquot.model.claim import AppClass, ContainerClaim, Role, Slice
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.device import CORE_MILLI
from aliquot.model.numbers.quantity import QuantityError, parse_quantity

_MIB = 1 << 20
_CLASSES = {"online.aliquot.dev": AppClass.ONLINE, "offline.aliquot.dev": AppClass.OFFLINE}


def requested_class(claim: ClaimObject) -> AppClass:
    """Of its DeviceClass, else of its own configuration. Another DeviceClass may set one that is not known here."""
    devices = mapping(mapping(claim.spec).get("devices"))
    for _, request in _requests(devices):
        if (found := _CLASSES.get(str(request.get("deviceClassName")))) is not None:
            return found
    for entry in map(mapping, sequence(devices.get("config"))):
        opaque = mapping(entry.get("opaque"))
        config = parse_config(opaque.get("parameters"), "parameters") if opaque.get("driver") == DRIVER else None
        if isinstance(config, ClaimConfig) and config.app_class is not None:
            return config.app_class
    return AppClass.NORMAL


def requested(claim: ClaimObject) -> tuple[ContainerClaim, ...]:
    """Each request for our cards, as a container's; of a prioritized list its first choice."""
    devices, offline = mapping(mapping(claim.spec).get("devices")), requested_class(claim) is AppClass.OFFLINE
    found = (
        (name, request) for name, request in _requests(devices) if request.get("deviceClassName") in DEVICE_CLASSES
    )
    return tuple(
        ContainerClaim(name, at, Role.MAIN, _slice(request, offline), _count(request))
        for at, (name, request) in enumerate(found)
    )


def _requests(devices: JsonView) -> Iterator[tuple[str, JsonView]]:
    for request in map(mapping, sequence(devices.get("requests"))):
        first = next(iter(sequence(request.get("firstAvailable"))), None)
        yield str(request.get("name", "")), mapping(request.get("exactly") or first)


def _slice(request: JsonView, offline: bool) -> Slice:
    asked = mapping(mapping(request.get("capacity")).get("requests"))
    memory, core = (_amount(asked.get(name, asked.get(f"{DRIVER}/{name}"))) for name in (MEMORY, CORE))
    if memory is None:
        return Slice(exclusive=True)
    milli = None if core is None else int(core * CORE_MILLI / 100)
    return Slice(
        math.ceil(memory / _MIB), core_milli=None if offline else milli, greedy_milli=milli if offline else None
    )


def _amount(value: object) -> Fraction | None:
    try:
        return None if value is None else parse_quantity(value)
    except QuantityError:  # the API server takes none such
        return None


def _count(request: JsonView) -> int | None:
    """The number of cards that the request asks for; None: every card of the node."""
    count = request.get("count")
    return None if request.get("allocationMode") == "All" else count if isinstance(count, int) and count > 0 else 1
