"""A Node as the model has it: its cards, by our inventory or by what plugins advertise, and what it offers of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from math import floor

from msgspec.structs import replace

from aliquot.dialects import dra, elastic, gpushare, hami, kai, native, qgpu, t9k
from aliquot.dialects.gpushare import MemoryUnit
from aliquot.dialects.nodes import Capacity, NodeView, amount_for_pods, cards_from
from aliquot.dialects.pods import MIB, amount_at
from aliquot.dialects.rules import DEFAULT_RULES, Rules
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject, NodeStatus
from aliquot.dialects.wire.views import node_view
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.device import LEAST_FACTOR, Card
from aliquot.model.node import LIMITED_SHARING, Isolation, Node, NodeNote, NoteKind, Offer
from aliquot.model.refusal import Invalid


def parse_node(
    node: object | NodeObject, rules: Rules = DEFAULT_RULES, unhealthy: frozenset[int] = frozenset()
) -> Node | tuple[Invalid, ...]:
    """The node, its cards and what it offers; or every rule it breaks. Never raises on any JSON."""
    read = node if isinstance(node, NodeObject) else read_object(node, NodeObject, "node")
    if isinstance(read, Invalid):
        return (read,)
    view = node_view(read)
    problems = list(view.problems)
    notes: list[NodeNote] = []
    inventory = native.parse_inventory(view.annotations, problems)
    advertised = _capacities(view, rules, notes, problems)
    if inventory is None:
        cards = cards_from(advertised, notes, problems)
    else:
        cards, notes = inventory, []
    factor = elastic.factor_of(view.labels, view.annotations, notes)
    offers = _offers(view, rules, notes, problems, inventory=inventory is not None)
    if unhealthy:
        cards = tuple(replace(card, healthy=card.healthy and card.index not in unhealthy) for card in cards)
    cards = _limited(cards, offers, rules, factor)
    counted = native.counts(view.annotations, gpushare.MEMORY)
    if counted and rules.gpushare_unit is MemoryUnit.GIB:
        notes.append(NodeNote(NoteKind.OTHER_UNIT, gpushare.MEMORY))
    offers = gpushare.offers_in(rules.gpushare_unit, offers, () if inventory is None else cards, counted=counted)
    result = Node(
        name=view.name,
        cards=cards,
        offers=offers,
        isolation=qgpu.isolation(view.labels, problems, default=_usual_isolation(offers, view.labels)),
        cpu_milli=view.cpu_milli(problems),
        memory_mib=view.memory_mib(problems),
        notes=tuple(notes),
        pool_mib=elastic.pool_mib(view.annotations),
        together=native.runs_groups(view.annotations),
        card_order=gpushare.card_order(view.labels, problems) if Offer.GPUSHARE in offers else None,
    )
    return tuple(problems) if problems else result


def _usual_isolation(offers: frozenset[Offer], labels: JsonView) -> Isolation:
    """Of a node without a policy label. HAMi limits compute to gpucores while others use the card too."""
    ack = gpushare.usual_isolation(labels) if Offer.GPUSHARE in offers else None
    return ack or (Isolation.BURST_SHARE if Offer.HAMI in offers else Isolation.BEST_EFFORT)


def _limited(cards: tuple[Card, ...], offers: frozenset[Offer], rules: Rules, factor: float) -> tuple[Card, ...]:
    """The cards, with how many Pods may share each, and how far each may be booked beyond its memory."""
    if not LIMITED_SHARING & offers:
        return cards if factor == LEAST_FACTOR else tuple(card.shared_by(card.max_slices, factor) for card in cards)
    return tuple(card.shared_by(qgpu.max_slices(card.memory_mib, rules.qgpu), factor) for card in cards)


def _offers(
    node: NodeView, rules: Rules, notes: list[NodeNote], problems: list[Invalid], *, inventory: bool
) -> frozenset[Offer]:
    """What the node offers of the dialects that are served. What is wrong in the words of another is not looked at."""
    found: frozenset[Offer] = frozenset()
    if qgpu.DIALECT in rules.served:
        found |= qgpu.offers(node.labels)
    if t9k.DIALECT in rules.served:
        found |= t9k.offers(node.labels, problems)
    if gpushare.DIALECT in rules.served:
        found |= gpushare.offers(node, notes, inventory=inventory)
    if hami.DIALECT in rules.served and inventory:
        found |= hami.offers(node)
    if kai.DIALECT in rules.served and inventory:
        found |= kai.offers(node.labels)
    mix = node.labels.get(native.MIX_LABEL, "false")
    if mix not in ("true", "false"):
        problems.append(Invalid(f'metadata.labels["{native.MIX_LABEL}"]', mix, "true or false"))
    by_claims = node.labels.get(dra.LABEL, "false")
    if by_claims not in ("true", "false"):
        problems.append(Invalid(f'metadata.labels["{dra.LABEL}"]', by_claims, "true or false"))
    if by_claims == "true":  # kube-scheduler gives its cards to claims
        return frozenset()
    return found if mix == "true" or Offer.QGPU not in found else found - {Offer.T9K_EXCLUSIVE}


def qgpu_bars_whole_cards(labels: JsonView, served: frozenset[str]) -> bool:
    """Whether the labels ask for whole cards on a node of qGPU: it offers none (seed 001) unless its owner mixes."""
    both = {qgpu.DIALECT, t9k.DIALECT} <= served and labels.get(native.MIX_LABEL) != "true"
    return both and Offer.T9K_EXCLUSIVE in t9k.offers(labels, []) and Offer.QGPU in qgpu.offers(labels)


# What a node of qGPU lacks to offer whole cards.
WHOLE_CARDS_NEED = f"T9k's labels for xgn, and label {qgpu.ENABLE_LABEL}=disable or {native.MIX_LABEL}=true"


_LONGEST_KIND = 8192  # characters of what a kind of node is known by: an agent could fill our memory with longer ones


def _is_short(kind: object) -> bool:
    try:
        return len(str(kind)) <= _LONGEST_KIND
    except ValueError:  # a number that is too long to print
        return False


class NodeReader:
    """Reads the Nodes of one cluster. Most differ in names, cards, CPU and memory only: each kind is read once.

    Those with very long texts are not kept: an agent could fill our memory with them.
    """

    _MOST = 4096

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._known: dict[object, Node | tuple[Invalid, ...]] = {}

    def read(self, node: NodeObject) -> Node | tuple[Invalid, ...]:
        """As `parse_node` says it."""
        name, annotations = node.metadata.name, node.metadata.annotations or {}
        problems: list[Invalid] = []
        inventory = native.parse_inventory(annotations, problems)
        cpu, memory = _amount(node.status, "cpu", 1000), _amount(node.status, "memory", 1)
        if problems or not name or _UNREADABLE in (cpu, memory):
            return parse_node(node, self.rules)
        key = self._kind(node, inventory)
        known = self._known.get(key)
        if known is None:
            known = parse_node(_without_machine(node), self.rules)
            if len(self._known) >= self._MOST:
                self._known.clear()
            if _is_short(key):
                self._known[key] = known
        if not isinstance(known, Node):
            return known
        mib = None if memory is None else memory // MIB
        if inventory is None:
            return replace(known, name=name, cpu_milli=cpu, memory_mib=mib)
        factor = known.cards[0].oversubscribe if known.cards else LEAST_FACTOR
        cards = _limited(inventory, known.offers, self.rules, factor)
        found = replace(known, name=name, cards=cards, cpu_milli=cpu, memory_mib=mib)
        if self.rules.gpushare_unit is MemoryUnit.GIB or Offer.GPUSHARE not in known.offers:
            return found
        counted = native.counts(annotations, gpushare.MEMORY)
        offers = gpushare.offers_in(self.rules.gpushare_unit, found.offers, found.cards, counted=counted)
        return found if offers == found.offers else replace(found, offers=offers)

    @staticmethod
    def _kind(node: NodeObject, inventory: tuple[Card, ...] | None) -> object:
        labels, annotations, status = node.metadata.labels, node.metadata.annotations, node.status
        return (
            None if inventory is None else bool(inventory),
            tuple(map(annotations.get, _NODE_ANNOTATIONS)) if annotations else None,
            tuple(map(labels.get, _NODE_LABELS)) if labels else None,
            tuple(map(status.capacity.get, _NODE_AMOUNTS)) if status.capacity else None,
            tuple(map(status.allocatable.get, _NODE_AMOUNTS)) if status.allocatable else None,
        )


_MACHINE = ("cpu", "memory")
_UNREADABLE = -1
_LONGEST_AMOUNT = 64  # characters


def _amount(status: NodeStatus, resource: str, scale: int) -> int | None:
    """As `NodeView.amount` says it; _UNREADABLE where it is to be asked itself."""
    _, amount = amount_for_pods(status.capacity or {}, status.allocatable or {}, resource)
    if amount is None:
        return None
    if isinstance(amount, str) and len(amount) <= _LONGEST_AMOUNT:  # what an API server writes
        return _scaled(amount, scale)
    return _UNREADABLE


@lru_cache(maxsize=4096)
def _scaled(amount: str, scale: int) -> int:
    problems: list[Invalid] = []
    found = floor(amount_at(amount, "", problems) * scale)
    return _UNREADABLE if problems else found


def _without_machine(node: NodeObject) -> NodeObject:
    """The Node as if it had no CPU and memory, which differ from node to node."""
    status = node.status
    capacity, allocatable = (
        {name: "0" if name in _MACHINE else amount for name, amount in (amounts or {}).items()}
        for amounts in (status.capacity, status.allocatable)
    )
    return replace(node, status=replace(status, capacity=capacity, allocatable=allocatable))


_NODE_LABELS = (
    *qgpu.LABELS,
    *t9k.LABELS,
    *gpushare.LABELS,
    *hami.LABELS,
    *kai.LABELS,
    *dra.LABELS,
    native.MIX_LABEL,
    elastic.OVERSUBSCRIBE,
)
_NODE_ANNOTATIONS = (elastic.POOL, elastic.OVERSUBSCRIBE, native.TOGETHER, native.COUNTED)
_NODE_AMOUNTS = (*qgpu.RESOURCES, *t9k.RESOURCES, *gpushare.RESOURCES, *hami.COUNTED)


def _capacities(node: NodeView, rules: Rules, notes: list[NodeNote], problems: list[Invalid]) -> list[Capacity]:
    return [
        gpushare.capacity(node, rules.gpushare_unit, problems),
        qgpu.capacity(node, notes, problems),
        t9k.capacity(node, notes, problems),
    ]


# --- the unit of gpu-mem, which follows from the amounts that nodes advertise ----------------------------------------


class UnitPoll:
    """What the nodes of a cluster, by name, say of the unit of gpu-mem. Five thousand are mostly alike: each kind is
    read once."""

    _MOST = 4096

    def __init__(self) -> None:
        self._said: dict[str, gpushare.UnitVote | None] = {}  # by those that ever said any
        self._votes = Counter[gpushare.UnitVote]()
        self._known: dict[object, gpushare.UnitVote | None] = {}

    def hear(self, node: NodeObject, name: str | None = None) -> bool:
        """A node is there, or has changed. True if it says something for the first time."""
        name = node.metadata.name if name is None else name
        vote, known = self._vote(node), name in self._said
        if vote is None and not known:
            return False
        self.forget(name)
        self._said[name] = vote
        if vote is not None:
            self._votes[vote] += 1
        return not known

    def forget(self, name: str) -> None:
        """A node is gone."""
        vote = self._said.pop(name, None)
        if vote is not None:
            self._votes[vote] -= 1

    def unit(self, now: MemoryUnit | None = None) -> MemoryUnit | None:
        """As `gpushare.elected_unit` says it."""
        return gpushare.elected_unit(self._votes, now)

    @property
    def only_away(self) -> bool:
        """Whether no node says anything whose agent is there."""
        return not any(self._votes[unit, False] for unit in MemoryUnit)

    def _vote(self, node: NodeObject) -> gpushare.UnitVote | None:
        capacity, allocatable = node.status.capacity or {}, node.status.allocatable or {}
        marks = node.metadata.annotations or {}
        kind = (
            marks.get(native.COUNTED),
            marks.get(native.AGENT),
            elastic.factor_of(node.metadata.labels or {}, marks, []),
            capacity.get(gpushare.MEMORY),
            capacity.get(gpushare.COUNT),
            allocatable.get(gpushare.MEMORY),
            allocatable.get(gpushare.COUNT),
        )
        if kind in self._known:
            return self._known[kind]
        vote = gpushare.unit_vote(node_view(node))
        if len(self._known) >= self._MOST:
            self._known.clear()
        if _is_short(kind):
            self._known[kind] = vote
        return vote


def advertised_gpushare_unit(nodes: Iterable[object]) -> MemoryUnit | None:
    """The unit of gpu-mem in the cluster with these nodes; None where none of them advertises any."""
    poll = UnitPoll()
    for at, node in enumerate(nodes):
        read = node if isinstance(node, NodeObject) else read_object(node, NodeObject, "node")
        if isinstance(read, NodeObject):
            poll.hear(read, str(at))  # two may lack a name
    return poll.unit()


def guess_gpushare_unit(nodes: Iterable[object]) -> MemoryUnit:
    """The unit of gpu-mem that the nodes' capacities show; GiB if no node shows it."""
    return advertised_gpushare_unit(nodes) or MemoryUnit.GIB
