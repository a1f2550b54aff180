"""An allocated ResourceClaim: which cards kube-scheduler chose, how much of each, of what class. Pure.

Each request of the claim is to the grant what a container is to a Pod's: requests on one card add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from aliquot.dialects.dra import CORE, DEVICE_CLASSES, DRIVER, MEMORY
from aliquot.dialects.dra.config import ClaimConfig, parse_config
from aliquot.dialects.dra.slices import device_name
from aliquot.dialects.kube.shapes import mapping, sequence
from aliquot.dialects.wire.objects import Metadata
from aliquot.model.claim import AppClass, Role
from aliquot.model.device import CORE_MILLI, Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Isolation
from aliquot.model.numbers.quantity import QuantityError, parse_quantity
from aliquot.model.refusal import Invalid

_MIB = 1 << 20
_PERCENT = CORE_MILLI // 100
_RESULTS = "status.allocation.devices.results"
_CONFIG = "status.allocation.devices.config"
_ONLINE = (
    "the claim is not online, and only online work takes the card from others (class: online, or DeviceClass "
    "online.aliquot.dev)"
)


class _Result(msgspec.Struct, rename="camel"):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, str | int | float] | None = None
    admin_access: bool | None = None


class _Opaque(msgspec.Struct):
    driver: str = ""
    parameters: Any = None


class _Config(msgspec.Struct):
    source: str = ""
    requests: list[str] | None = None
    opaque: _Opaque | None = None


class _Devices(msgspec.Struct):
    results: list[_Result] | None = None
    config: list[_Config] | None = None


class _Allocation(msgspec.Struct):
    devices: _Devices = msgspec.field(default_factory=_Devices)


class _Consumer(msgspec.Struct):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _Status(msgspec.Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class ClaimObject(msgspec.Struct):
    """A ResourceClaim, with the fields that are used."""

    metadata: Metadata
    spec: Any = None
    status: _Status | None = None

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def pods(self) -> dict[str, str]:
        """The Pods that may use it: names by UID."""
        consumers = (self.status.reserved_for if self.status else None) or ()
        return {consumer.uid: consumer.name for consumer in consumers if consumer.resource == "pods"}

    @property
    def allocated(self) -> bool:
        """Whether it has a card of any node."""
        return bool(self._ours())

    @property
    def allocated_elsewhere(self) -> bool:
        """Whether it has devices, and none of them is a card of ours."""
        return self.status is not None and self.status.allocation is not None and not self.allocated

    @property
    def wants_ours(self) -> bool:
        """Whether a request names one of our own DeviceClasses. Which driver serves another class, a claim does not
        say."""
        devices = mapping(mapping(self.spec).get("devices"))
        requests = [mapping(request) for request in sequence(devices.get("requests"))]
        parts = (part for item in requests for part in (item.get("exactly"), *sequence(item.get("firstAvailable"))))
        return any(mapping(part).get("deviceClassName") in DEVICE_CLASSES for part in parts)

    @property
    def node(self) -> str:
        """The node of its cards; empty where it has none."""
        return next((result.pool for _, result in self._ours()), "")

    def holds(self, node: str) -> bool:
        """Whether it has a card of that node."""
        return any(result.pool == node for _, result in self._ours())

    def _ours(self) -> list[tuple[int, _Result]]:
        allocation = self.status.allocation if self.status else None
        results = (allocation.devices.results if allocation else None) or ()
        return [(at, result) for at, result in enumerate(results) if result.driver == DRIVER]


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device of a claim, as the kubelet is answered."""

    request: str  # without a subrequest: containers name the request
    pool: str
    name: str
    share_id: str | None
    uuid: str


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """A claim with its cards of this node."""

    uid: str
    namespace: str
    name: str
    app_class: AppClass
    policy: Isolation | None  # that the node must have
    grant: Grant
    devices: tuple[AllocatedDevice, ...]
    latency: float | None = None  # seconds that an online claim accepts to have added to its requests; None: not said


def parse_claim(claim: ClaimObject, node: str, cards: Sequence[Card]) -> AllocatedClaim | list[Invalid]:
    """The claim on this node's cards, or all that is wrong with it."""
    problems: list[Invalid] = []
    found = claim._ours()
    if not found:
        allowed = f"a claim that kube-scheduler has allocated devices of driver {DRIVER} to"
        return [Invalid(_RESULTS, None, allowed)]
    config = _configured(claim, [result for _, result in found], problems)
    app_class = config.app_class or AppClass.NORMAL
    by_name = {device_name(card.uuid): card for card in cards if card.uuid}
    devices, shares = [], dict[str, list[Share]]()
    for at, result in found:
        field = f"{_RESULTS}[{at}]"
        card = by_name.get(result.device) if result.pool == node else None
        if card is None:
            problems.append(Invalid(f"{field}.device", f"{result.pool}/{result.device}", f"a card of node {node}"))
            continue
        if result.admin_access:
            problems.append(Invalid(f"{field}.adminAccess", True, "no administrative access: request a share"))
            continue
        share = _share(result, card, app_class, field, problems)
        if share is not None:
            request = result.request.partition("/")[0]
            shares.setdefault(request, []).append(share)
            devices.append(AllocatedDevice(request, result.pool, result.device, result.share_id, card.uuid))
    if problems:
        return problems
    metadata = claim.metadata
    requests = (
        ContainerGrant(request, at, Role.MAIN, tuple(given)) for at, (request, given) in enumerate(shares.items())
    )
    grant = Grant(metadata.uid, node, tuple(requests))
    return AllocatedClaim(
        metadata.uid,
        metadata.namespace,
        metadata.name,
        app_class,
        config.policy,
        grant,
        tuple(devices),
        config.latency,
    )


def _share(result: _Result, card: Card, app_class: AppClass, field: str, problems: list[Invalid]) -> Share | None:
    """Without consumed capacity the cluster does not share devices: the whole card."""
    consumed = result.consumed_capacity
    if not consumed:
        return Share(card.index, card.memory_mib, exclusive=True, uuid=card.uuid)
    whole = f"{card.memory_mib}Mi"
    memory = _amount(consumed, MEMORY, whole, _MIB, card.memory_mib, f"1Mi to {whole} in whole MiB", field, problems)
    core = _amount(consumed, CORE, "0", 1, 100, "0 to 100", field, problems)
    if memory is None or core is None:
        return None
    if memory == 0:
        problems.append(Invalid(f'{field}.consumedCapacity["{MEMORY}"]', "0", f"1Mi to {whole} in whole MiB"))
        return None
    milli = core * _PERCENT or None
    offline = app_class is AppClass.OFFLINE
    return Share(
        card.index,
        memory,
        core_milli=None if offline else milli,
        greedy_milli=milli if offline else None,
        exclusive=memory == card.memory_mib,
        uuid=card.uuid,
    )


def _amount(
    consumed: Mapping[str, str | int | float],
    name: str,
    default: str,
    unit: int,
    most: int,
    allowed: str,
    field: str,
    problems: list[Invalid],
) -> int | None:
    value = consumed.get(name, consumed.get(f"{DRIVER}/{name}", default))
    try:
        number = parse_quantity(value) / unit
    except QuantityError:
        number = None
    if number is None or number.denominator != 1 or not 0 <= number <= most:
        problems.append(Invalid(f'{field}.consumedCapacity["{name}"]', value, allowed))
        return None
    return int(number)


def _configured(claim: ClaimObject, results: Sequence[_Result], problems: list[Invalid]) -> ClaimConfig:
    """The configuration of the whole claim."""
    entries = _entries(claim, problems)
    classes: dict[AppClass, None] = {}
    policies: dict[Isolation, None] = {}
    latencies: dict[float, str] = {}  # with the field
    for request in dict.fromkeys(result.request for result in results):
        given = [(entry, config, field) for entry, config, field in entries if _applies(entry.requests, request)]
        found = _merged(given, problems)
        classes[found.app_class or AppClass.NORMAL] = None
        if found.policy is not None:
            policies[found.policy] = None
        if found.latency is not None:
            field = next(field for _, config, field in given if config.latency == found.latency)
            latencies[found.latency] = f"{field}.latency"
    for name, values in (("class", classes), ("policy", policies), ("latency", map(_time, latencies))):
        named = sorted(filter(None, values))
        if len(named) > 1:
            problems.append(Invalid(f"{_CONFIG} ({name})", ", ".join(named), f"one {name} for all requests of a claim"))
    app_class, latency = next(iter(classes)), next(iter(latencies), None)
    if latency is not None and app_class is not AppClass.ONLINE:
        problems.append(Invalid(latencies[latency], _time(latency), _ONLINE))
    return ClaimConfig(app_class, next(iter(policies), None), latency)


def _entries(claim: ClaimObject, problems: list[Invalid]) -> list[tuple[_Config, ClaimConfig, str]]:
    """The entries for our driver, each with the name of its field."""
    assert claim.status is not None
    assert claim.status.allocation is not None
    entries = []
    for at, entry in enumerate(claim.status.allocation.devices.config or ()):
        if entry.opaque is None or entry.opaque.driver != DRIVER:
            continue
        field = f"{_CONFIG}[{at}].opaque.parameters"
        config = parse_config(entry.opaque.parameters, field)
        if isinstance(config, ClaimConfig):
            entries.append((entry, config, field))
        else:
            problems += config
    return entries


def _merged(entries: Iterable[tuple[_Config, ClaimConfig, str]], problems: list[Invalid]) -> ClaimConfig:
    """The configuration of one request. What a DeviceClass has set, a claim cannot change."""
    found = ClaimConfig()
    for entry, config, field in sorted(entries, key=lambda item: item[0].source != "FromClass"):
        if entry.source != "FromClass":
            _check_same(found.app_class, config.app_class, f"{field}.class", problems)
            _check_same(found.policy, config.policy, f"{field}.policy", problems)
            _check_same(_time(found.latency), _time(config.latency), f"{field}.latency", problems)
        found = ClaimConfig(
            config.app_class or found.app_class, config.policy or found.policy, config.latency or found.latency
        )
    return found


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1000:g}ms"


def _check_same(before: str | None, now: str | None, field: str, problems: list[Invalid]) -> None:
    if before is not None and now is not None and before != now:
        problems.append(Invalid(field, str(now), f"{before}, which the DeviceClass or an earlier entry has set"))


def _applies(requests: Iterable[str] | None, request: str) -> bool:
    """An entry without requests applies to all; one with a request's name to its subrequests too."""
    names = list(requests or ())
    return not names or request in names or request.partition("/")[0] in names
