"""A Node of gpushare: what it offers by resources and labels, ACK's among them; which of its cards are out of use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aliquot.dialects import elastic, native
from aliquot.dialects.gpushare.names import (
    ACK_LABEL,
    ACK_PLACEMENT,
    ACK_SHARED,
    ACK_WHOLE,
    CGPU_LABEL,
    CONFIG_NAMESPACE,
    CORE,
    COUNT,
    MEMORY,
    NODE_LABEL,
    MemoryUnit,
    card_number,
)
from aliquot.dialects.gpushare.pods import BY_DEVICES, BY_PLACES
from aliquot.dialects.nodes import Capacity, NodeView, advertised
from aliquot.dialects.pods import mapping_at
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.device import Card
from aliquot.model.node import Isolation, NodeNote, NoteKind, Offer, Order
from aliquot.model.refusal import Invalid, show

_CORE_MEM = "core_mem"
_UNHEALTHY = "unhealthy-gpu-"


def offers(node: NodeView, notes: list[NodeNote], *, inventory: bool) -> frozenset[Offer]:
    """A node offers gpushare if it advertises gpu-mem or, with our inventory, if it has the label, or one of ACK's.

    With an inventory only the allocatable amount counts: the capacity outlives a plugin by five minutes. Whole cards
    need one: the peers' plugin knows no such request, and would give the Pod any card. Where ACK's label says that
    cards are not shared, what the node still advertises is left over: a node of ACK has one mode at a time.
    """
    mode = _ack_mode(node.labels, notes)
    if mode in ACK_WHOLE:
        return frozenset()
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
    shared, offers = offers.intersection(BY_DEVICES), offers.difference(BY_PLACES)
    if unit is MemoryUnit.GIB:
        return offers - shared if counted else offers
    if counted or sum(card.bookable_mib for card in cards) > native.MOST_DEVICES:
        return offers
    return offers.union(BY_DEVICES[offer] for offer in shared)


def _ack_mode(labels: JsonView, notes: list[NodeNote]) -> object:
    """The label is ACK's, which may add values: an unknown one is noted, and the rest of the node decides."""
    mode = labels.get(ACK_LABEL)
    if mode is not None and mode not in (*ACK_SHARED, *ACK_WHOLE):
        notes.append(NodeNote(NoteKind.UNKNOWN_MODE, ACK_LABEL, other=show(mode)))
    return mode


def labelled(labels: JsonView) -> bool:
    """Whether the node is to take such Pods: by gpushare's label, or by ACK's, of today or of before."""
    mode = labels.get(ACK_LABEL)
    named = "true" in (labels.get(NODE_LABEL), labels.get(CGPU_LABEL))
    return mode in ACK_SHARED or (named and mode not in ACK_WHOLE)


def usual_isolation(labels: JsonView) -> Isolation | None:
    """The policy that ACK's label means; None: another decides."""
    return Isolation.FIXED_SHARE if labels.get(ACK_LABEL) == _CORE_MEM else None


def card_order(labels: JsonView, problems: list[Invalid]) -> Order | None:
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


UnitVote = tuple[MemoryUnit, bool]  # a node says that its gpu-mem is counted in that; whether its agent is away


def elected_unit(votes: Mapping[UnitVote, int], now: MemoryUnit | None = None) -> MemoryUnit | None:
    """The cluster's unit, by how many nodes say what. None if no node advertises gpu-mem.

    Most nodes decide, because one may lie, and then all Pods of the cluster would be read wrongly. Where as many say
    the one as the other it is MiB: a node may have lost most of its cards and advertise too little. What a node says
    whose agent is away may be older than the unit, so it counts only where no other node says anything.

    `now`: the unit that nodes said before. It stays until more of them say the other.
    """
    units = (MemoryUnit.GIB, MemoryUnit.MIB) if now is MemoryUnit.GIB else (MemoryUnit.MIB, MemoryUnit.GIB)
    for away in (False, True) if now is None else (False,):
        said = [votes.get((unit, away), 0) for unit in units]
        if any(said):
            return units[said[1] > said[0]]
    return now


def unit_vote(node: NodeView) -> UnitVote | None:
    """The unit that the node's gpu-mem shows; None if it has none.

    No card has more than 1000 GiB: a node with more counts in MiB. Agents count only MiB in the Node's status, and
    leave their mark there while they are away.
    """
    unit = _unit_of(node)
    return None if unit is None else (unit, node.annotations.get(native.AGENT) == native.AWAY)


def _unit_of(node: NodeView) -> MemoryUnit | None:
    if native.counts(node.annotations, MEMORY):
        return MemoryUnit.MIB
    memory, cards = node.count(MEMORY, []), node.count(COUNT, [])
    if not memory:
        return None
    factor = elastic.factor_of(node.labels, node.annotations, [])
    return MemoryUnit.MIB if memory > 1000 * (cards or 1) * factor else MemoryUnit.GIB


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
    cards = [card_number(part.strip()) for part in str(gpus).split(",") if part.strip()]
    if any(card is None for card in cards):
        return Invalid("data.gpus", gpus, 'card numbers separated by commas, such as "0,2"')
    return name.removeprefix(_UNHEALTHY), frozenset(card for card in cards if card is not None)
