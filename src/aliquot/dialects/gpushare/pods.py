"""gpushare (Aliyun): a card's memory, in one whole unit for the whole cluster, GiB or MiB.

All containers of a Pod share its card. `aliyun.com/gpu-count: "4"` on the Pod spreads each container's gpu-mem evenly
over four cards; a container that asks for gpu-count alone has so many whole cards. Beside gpu-mem,
`aliyun.com/gpu-core.percentage` is compute, on nodes that ACK calls core_mem. A grant is written in two forms, because
peers read one or the other:

    ALIYUN_COM_GPU_MEM_IDX, _DEV, _POD, _ASSIGNED, _ASSUME_TIME    the old form, for one card only
    scheduler.framework.gpushare.allocation                        {"<container>": {"<card>": memory}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import Any

import msgspec

from aliquot.dialects import elastic, native
from aliquot.dialects.nodes import MOST_CARDS, Capacity, NodeView, advertised
from aliquot.dialects.pods import Container, Json, Pod, Words, count_at, mapping_at, unnamed
from aliquot.model.claim import Claim, ContainerClaim, Role, Slice
from aliquot.model.device import CORE_MILLI, Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Isolation, Node, Offer, Order
from aliquot.model.refusal import Invalid, show

DIALECT = "gpushare"
MEMORY = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"
CORE = "aliyun.com/gpu-core.percentage"
RESOURCES = (MEMORY, COUNT, CORE)

INDEX = "ALIYUN_COM_GPU_MEM_IDX"
CARD_SIZE = "ALIYUN_COM_GPU_MEM_DEV"
POD_TOTAL = "ALIYUN_COM_GPU_MEM_POD"
CONTAINER_TOTAL = "ALIYUN_COM_GPU_MEM_CONTAINER"
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
ALLOCATION = "scheduler.framework.gpushare.allocation"
ANNOTATIONS = (COUNT, ALLOCATION, INDEX, CARD_SIZE, POD_TOTAL, ASSIGNED, ASSUME_TIME)
MARKS = (COUNT,)  # annotations, and here labels too, that are part of what a Pod requests

NODE_LABEL = "gpushare"
ACK_LABEL = "ack.node.gpu.schedule"  # what ACK's nodes have instead
ACK_PLACEMENT = "ack.node.gpu.placement"
LABELS = (NODE_LABEL, ACK_LABEL, ACK_PLACEMENT)
ACK_SHARED = ("cgpu", "core_mem", "share", "mps")  # values of ACK_LABEL
_ACK_WHOLE = ("default", "topology")  # cards that ACK hands out whole, under another name than ours
_CORE_MEM = "core_mem"
_PERCENT = CORE_MILLI // 100
_WHOLE = Slice(memory_percent=100, exclusive=True)
# What a Pod needs instead where gpu-mem alone must bring the kubelet to call an agent.
_BY_DEVICES = {Offer.GPUSHARE: Offer.GPUSHARE_DEVICES, Offer.GPUSHARE_CORE: Offer.GPUSHARE_CORE_DEVICES}
_BY_PLACES = {by_devices: offer for offer, by_devices in _BY_DEVICES.items()}
CONFIG_NAMESPACE = "kube-system"  # of the ConfigMaps that take cards out of use
_UNHEALTHY = "unhealthy-gpu-"


class MemoryUnit(StrEnum):
    """The unit of gpu-mem: --memory-unit of the device plugin."""

    GIB = "GiB"
    MIB = "MiB"

    @property
    def mib(self) -> int:
        """The unit in MiB."""
        return 1024 if self is MemoryUnit.GIB else 1


def first_mention(pod: Pod) -> str | None:
    """The first field in which the Pod uses this dialect."""
    field = pod.first_mention(RESOURCES)
    if field is None and COUNT in pod.labels:
        return f'metadata.labels["{COUNT}"]'
    if field is None and COUNT in pod.annotations:
        return f'metadata.annotations["{COUNT}"]'
    return field


def parse_pod(pod: Pod, unit: MemoryUnit) -> Claim | list[Invalid]:
    """The claim of a Pod of this dialect, or every rule it violates."""
    asking = pod.asking(MEMORY, CORE)
    if not asking and (whole := pod.asking(COUNT)) and COUNT not in pod.labels and pod.annotation(COUNT) is None:
        return _whole_cards(pod, whole)
    problems = unnamed(asking)
    cards = _cards(pod, problems)
    if not asking:
        field = f'spec.containers[*].resources.limits["{MEMORY}"]'
        problems.append(
            Invalid(
                field,
                None,
                f"required with {COUNT}: the memory on all cards together, in whole {unit}; for whole cards, write"
                f" {COUNT} as a limit of the container instead",
            )
        )
    containers = []
    for container in asking:
        if not container.asks(MEMORY):
            allowed = f"required with {CORE}: whole {unit}, at least 1"
            problems.append(Invalid(container.field(MEMORY), None, allowed))
        memory = container.count(MEMORY, problems, allowed=f"whole {unit}, at least 1, without a unit")
        most = 100 * (cards or 1)
        core = container.count(CORE, problems, allowed=f"1 to {most} percent of compute", most=most)
        if memory is None or cards is None:
            continue
        for resource, amount in ((MEMORY, memory), (CORE, core or 0)):
            if amount % cards:
                allowed = f"a multiple of {cards}: {COUNT} spreads it evenly over {cards} cards"
                problems.append(Invalid(container.field(resource), container.value(resource), allowed))
        core_milli = None if core is None else core // cards * _PERCENT
        containers.append(container.claim(Slice(memory // cards * unit.mib, core_milli=core_milli), cards))
    if problems:
        return problems
    offer = Offer.GPUSHARE_CORE if any(part.slice.core_milli is not None for part in containers) else Offer.GPUSHARE
    if unit is MemoryUnit.MIB and not all(container.asks(native.PLACE, COUNT, CORE) for container in asking):
        offer = _BY_DEVICES[offer]
    return pod.claim(DIALECT, offer, containers, together=True)


def as_admitted(claim: Claim) -> Claim:
    """The claim of a Pod that is yet to be created: the webhook will add a place where the cluster needs it."""
    return replace(claim, offer=_BY_PLACES.get(claim.offer, claim.offer))


def lacks_place(claim: Claim) -> bool:
    """Whether the kubelet calls an agent for all its containers only where gpu-mem is a device."""
    return claim.offer in _BY_PLACES


def places(claim: Claim) -> dict[str, int]:
    """By container, how many of `native.PLACE` it needs where gpu-mem is no device."""
    shared = claim.offer in _BY_DEVICES or claim.offer in _BY_PLACES
    return {container.name: 1 for container in claim.containers} if shared else {}


def _whole_cards(pod: Pod, asking: list[Container]) -> Claim | list[Invalid]:
    """gpu-count alone: each container has its own."""
    problems = unnamed(asking)
    allowed = "a whole number of cards, at least 1"
    counts = [container.count(COUNT, problems, allowed=allowed) for container in asking]
    if problems:
        return problems
    claims = (container.claim(_WHOLE, count) for container, count in zip(asking, counts, strict=True))
    return pod.claim(DIALECT, Offer.GPUSHARE_WHOLE, claims)


def _cards(pod: Pod, problems: list[Invalid]) -> int | None:
    """The number of cards of the Pod: 1 unless a label, annotation or container gives it; they must agree."""
    allowed = "a whole number of cards, at least 1"
    counts: list[tuple[str, int | None]] = []
    for field, value in (
        (f'metadata.labels["{COUNT}"]', pod.labels.get(COUNT)),
        (f'metadata.annotations["{COUNT}"]', pod.annotation(COUNT)),
    ):
        if value is not None:
            counts.append((field, count_at(value, field, problems, allowed=allowed)))
    counts += [
        (container.field(COUNT), container.count(COUNT, problems, allowed=allowed)) for container in pod.asking(COUNT)
    ]
    if any(count is None for _, count in counts):
        return None
    if not counts:
        return 1
    first, cards = counts[0]
    for field, other in counts[1:]:
        if other != cards:
            problems.append(Invalid(field, other, f"the same number of cards as {first} ({cards})"))
            return None
    return cards


def words(claim: Claim, unit: MemoryUnit) -> Words:
    """The claim in the words of this dialect."""
    if claim.containers[0].slice.exclusive:
        return Words({container.name: {COUNT: container.count or 1} for container in claim.containers}, {})
    cards = claim.containers[0].count or 1
    place = {native.PLACE: 1} if unit is MemoryUnit.MIB and claim.offer in _BY_DEVICES else {}
    return Words(
        limits={container.name: _spell(container.slice, cards, unit) | place for container in claim.containers},
        annotations={COUNT: str(cards)} if cards > 1 else {},
    )


def _spell(piece: Slice, cards: int, unit: MemoryUnit) -> dict[str, int]:
    core = {} if piece.core_milli is None else {CORE: piece.core_milli * cards // _PERCENT}
    return {MEMORY: piece.memory_mib * cards // unit.mib, **core}


def offers(node: NodeView, notes: list[str], *, inventory: bool) -> frozenset[Offer]:
    """A node offers gpushare if it advertises gpu-mem or, with our inventory, if it has the label, or one of ACK's.

    With an inventory only the allocatable amount counts: the capacity outlives a plugin by five minutes. Whole cards
    need one: the peers' plugin knows no such request, and would give the Pod any card.
    """
    mode = _ack_mode(node.labels, notes)
    advertised = node.amount(MEMORY, 1, []) if inventory else node.count(MEMORY, [])
    offered = advertised or (inventory and labelled(node.labels))
    if not offered:
        return frozenset()
    found = {Offer.GPUSHARE: True, Offer.GPUSHARE_CORE: mode == _CORE_MEM, Offer.GPUSHARE_WHOLE: inventory}
    return frozenset(offer for offer, there in found.items() if there)


def offers_in(unit: MemoryUnit, offers: frozenset[Offer], cards: Iterable[Card], *, counted: bool) -> frozenset[Offer]:
    """What of `offers` a node with these cards has in a cluster that counts in that unit. `counted`: its agent counts
    gpu-mem in the Node's status. Then only Pods for which the kubelet calls the agent by something else may go there,
    as on all nodes with more MiB than the kubelet handles as devices."""
    shared, offers = offers.intersection(_BY_DEVICES), offers.difference(_BY_PLACES)
    if unit is MemoryUnit.GIB:
        return offers - shared if counted else offers
    if counted or sum(card.bookable_mib for card in cards) > native.MOST_DEVICES:
        return offers
    return offers.union(_BY_DEVICES[offer] for offer in shared)


def _ack_mode(labels: Json, notes: list[str]) -> object:
    """The label is ACK's, which may add values: an unknown one is noted, and the rest of the node decides."""
    mode = labels.get(ACK_LABEL)
    if mode is not None and mode not in (*ACK_SHARED, *_ACK_WHOLE):
        allowed = f"known are {', '.join(ACK_SHARED)} (shared), {' and '.join(_ACK_WHOLE)} (not shared)"
        notes.append(f"label {ACK_LABEL}: {show(mode)} is not known and counts as no label: {allowed}")
    return mode


def labelled(labels: Json) -> bool:
    """Whether the node is to take such Pods: by gpushare's label, or by ACK's."""
    return bool(labels.get(NODE_LABEL) == "true") or labels.get(ACK_LABEL) in ACK_SHARED


def usual_isolation(labels: Json) -> Isolation | None:
    """The policy that ACK's label means; None: another decides."""
    return Isolation.FIXED_SHARE if labels.get(ACK_LABEL) == _CORE_MEM else None


def card_order(labels: Json, problems: list[Invalid]) -> Order | None:
    """In which order the node's cards are taken by ordinary Pods; None: by the scheduler's policy."""
    value = labels.get(ACK_PLACEMENT)
    if value is None:
        return None
    if value in tuple(Order):
        return Order(value)
    problems.append(Invalid(f'metadata.labels["{ACK_PLACEMENT}"]', value, "binpack or spread"))
    return None


_SHARED_NEEDS = f"capacity {MEMORY}, or label {NODE_LABEL}=true and cards that the agent found"
_CORE_NEEDS = f"label {ACK_LABEL}={_CORE_MEM}"
_DEVICES_NEED = (
    f"and at most {native.MOST_DEVICES:,} MiB in all, because this Pod has no {native.PLACE}: the webhook adds that to "
    f"new Pods, so create the Pod again; without the webhook write {native.PLACE}: 1 as a limit of each container with "
    f"{MEMORY}"
)
ENABLED_BY = {
    Offer.GPUSHARE: _SHARED_NEEDS,
    Offer.GPUSHARE_CORE: _CORE_NEEDS,
    Offer.GPUSHARE_DEVICES: f"{_SHARED_NEEDS}, {_DEVICES_NEED}",
    Offer.GPUSHARE_CORE_DEVICES: f"{_CORE_NEEDS}, {_DEVICES_NEED}",
    Offer.GPUSHARE_WHOLE: f"cards that an aliquot agent reports, and capacity {MEMORY} or label {NODE_LABEL}=true",
}


def capacity(node: NodeView, unit: MemoryUnit, problems: list[Invalid]) -> Capacity:
    """The node's cards according to gpu-mem and gpu-count. A count alone is left over from a plugin and ignored."""
    memory = advertised(MEMORY, node.count(MEMORY, problems))
    cards = advertised(COUNT, node.count(COUNT, problems))
    return Capacity(cards if memory else None, memory, unit.mib)


def amounts(card: Card, offers: frozenset[Offer], unit: MemoryUnit) -> dict[str, int]:
    """What the card adds to the node's resources. Memory in whole units, rounded down."""
    core = {CORE: 100} if Offer.GPUSHARE_CORE in offers else {}
    return {MEMORY: card.bookable_mib // unit.mib, COUNT: 1, **core} if Offer.GPUSHARE in offers else {}


def advertised_unit(nodes: Iterable[NodeView]) -> MemoryUnit | None:
    """The cluster's unit, from its nodes: no card has more than 1000 GiB. None if no node advertises gpu-mem.

    One node with more is enough: another may have lost most of its cards and advertise too little. Agents count only
    MiB in the Node's status, and leave their mark there while they are away.
    """
    found = None
    for node in nodes:
        if native.counts(node.annotations, MEMORY):
            return MemoryUnit.MIB
        memory, cards = node.count(MEMORY, []), node.count(COUNT, [])
        factor = elastic.factor_of(node.labels, node.annotations, [])
        if memory and memory > 1000 * (cards or 1) * factor:
            return MemoryUnit.MIB
        found = MemoryUnit.GIB if memory else found
    return found


def parse_unhealthy(configmap: object) -> tuple[str, frozenset[int]] | Invalid | None:
    """The node and the cards that ConfigMap kube-system/unhealthy-gpu-NODE takes out of use; None for other objects."""
    problems: list[Invalid] = []
    whole = mapping_at(configmap, "", problems)
    metadata = mapping_at(whole.get("metadata"), "metadata", problems)
    name = metadata.get("name")
    if whole.get("kind", "ConfigMap") != "ConfigMap" or metadata.get("namespace") != CONFIG_NAMESPACE:
        return None
    if not isinstance(name, str) or not name.startswith(_UNHEALTHY):
        return None
    gpus = mapping_at(whole.get("data"), "data", problems).get("gpus", "")
    if not isinstance(gpus, str):
        problems.append(Invalid("data.gpus", gpus, 'card numbers separated by commas, such as "0,2"'))
    if problems:
        return problems[0]
    cards = [_card(part.strip()) for part in str(gpus).split(",") if part.strip()]
    if any(card is None for card in cards):
        return Invalid("data.gpus", gpus, 'card numbers separated by commas, such as "0,2"')
    return name.removeprefix(_UNHEALTHY), frozenset(card for card in cards if card is not None)


def _card(text: str) -> int | None:
    """A card number in the peers' form; None for anything else."""
    readable = text.isascii() and text.isdigit() and len(text) <= 4
    return int(text) if readable and int(text) < MOST_CARDS else None


def parse_grant(annotations: Json, claim: Claim) -> tuple[ContainerGrant, ...] | Invalid | None:
    """The grant from the peers' annotations, the newer form first. None if there is neither."""
    if claim.containers and claim.containers[0].slice.exclusive:  # a request that the peers do not have
        return None
    allocation = annotations.get(ALLOCATION)
    if allocation is not None:
        granted = _from_allocation(allocation, claim)
        if granted is not None:
            return granted
    index = annotations.get(INDEX)
    return None if index is None else _from_index(index, claim)


def _from_allocation(value: object, claim: Claim) -> tuple[ContainerGrant, ...] | Invalid | None:
    field = f'metadata.annotations["{ALLOCATION}"]'
    try:
        wire = msgspec.json.decode(value if isinstance(value, str) else "", type=dict[str, dict[str, int]])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Invalid(field, value, 'JSON as {"<container>": {"<card>": memory}}')
    if not any(wire.values()):
        return None
    cards: dict[int, tuple[Share, ...]] = {}
    for container in claim.containers:
        if container.role is not Role.MAIN:
            continue
        shares = _shares(wire.get(str(container.index), {}), container)
        if shares is None:
            return Invalid(
                field, value, f"the cards of container {container.name}, with the gpu-mem it requests in total"
            )
        cards[container.index] = shares
    # The annotation has no init containers: they run on the Pod's cards, like all its containers.
    indexes = sorted({share.card for shares in cards.values() for share in shares})
    if not indexes:
        return None
    return tuple(
        ContainerGrant(
            container.name,
            container.index,
            container.role,
            cards[container.index] if container.role is Role.MAIN else _evenly(indexes, container),
        )
        for container in claim.containers
    )


def _shares(amounts: dict[str, int], container: ContainerClaim) -> tuple[Share, ...] | None:
    """The annotation has no unit; the container's request has, and both must be equal."""
    total, total_mib = sum(amounts.values()), container.slice.memory_mib * (container.count or 1)
    unit = next((unit.mib for unit in MemoryUnit if total * unit.mib == total_mib), None)
    if unit is None or any(amount < 0 for amount in amounts.values()):
        return None
    shares = []
    for key, amount in amounts.items():
        card = _card(key)
        if card is None:
            return None
        if amount:
            shares.append(Share(card, amount * unit, container.slice.core_milli))
    return tuple(sorted(shares, key=lambda share: share.card))


def _evenly(cards: list[int], container: ContainerClaim) -> tuple[Share, ...]:
    mib = -(-container.slice.memory_mib * (container.count or 1) // len(cards))
    return tuple(Share(card, mib, container.slice.core_milli) for card in cards)


def _from_index(value: object, claim: Claim) -> tuple[ContainerGrant, ...] | Invalid:
    """A scheduler that writes only the old annotation uses one card for the whole Pod."""
    card = _card(value) if isinstance(value, str) else None
    if card is None:
        return Invalid(f'metadata.annotations["{INDEX}"]', value, "the number of a card, 0 or more")
    return tuple(
        ContainerGrant(
            container.name,
            container.index,
            container.role,
            (Share(card, container.slice.memory_mib * (container.count or 1), container.slice.core_milli),),
        )
        for container in claim.containers
    )


def render_grant(grant: Grant, node: Node, now_ns: int, unit: MemoryUnit) -> dict[str, str]:
    """The peers' annotations of the grant, old and new. Not assigned yet: the agent sets that later."""
    allocation = {
        str(container.index): {str(share.card): share.memory_mib // unit.mib for share in container.shares}
        for container in grant.containers
        if container.role is Role.MAIN
    }
    return {
        **_totals(grant, node, unit),
        ASSIGNED: "false",
        ASSUME_TIME: str(now_ns),
        ALLOCATION: json.dumps(allocation, separators=(",", ":")),
    }


def render_assigned() -> dict[str, str]:
    """The annotation of a Pod whose container runs on its cards."""
    return {ASSIGNED: "true"}


def render_env(grant: Grant, granted: ContainerGrant, node: Node, visible: str, unit: MemoryUnit) -> dict[str, str]:
    """The environment promised to the container."""
    return {
        "NVIDIA_VISIBLE_DEVICES": visible,
        **_totals(grant, node, unit),
        CONTAINER_TOTAL: str(sum(share.memory_mib for share in granted.shares) // unit.mib),
    }


def _totals(grant: Grant, node: Node, unit: MemoryUnit) -> dict[str, str]:
    usage = grant.usage()
    first = min(usage)
    size = next((card.memory_mib for card in node.cards if card.index == first), 0)
    return {
        INDEX: str(first),
        CARD_SIZE: str(size // unit.mib),
        POD_TOTAL: str(sum(use.memory_mib for use in usage.values()) // unit.mib),
    }


# --- inspect: the JSON of the peer's GET /inspect, all memory in the cluster's unit ----------------------------------


def render_inspected_card(index: int, *, total: int, used: int, pods: Iterable[tuple[str, str, int]]) -> dict[str, Any]:
    """One card, and the namespace, name and memory of each Pod on it."""
    listed = [{"name": name, "namespace": namespace, "usedGPU": memory} for namespace, name, memory in pods]
    return {"id": index, "totalGPU": total, "usedGPU": used, "pods": listed}


def render_inspected_node(name: str, *, total: int, used: int, cards: Iterable[Json]) -> dict[str, Any]:
    """One node."""
    return {"name": name, "totalGPU": total, "usedGPU": used, "devs": list(cards)}


def render_inspected(nodes: Iterable[Json]) -> dict[str, Any]:
    """All of them."""
    return {"nodes": list(nodes)}
