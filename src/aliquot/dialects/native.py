"""Our own annotations: what cards a node has, and what a Pod got. Versioned JSON; the tests prove the round trip.

    on a Node   aliquot.dev/inventory   {"v":1,"cards":[{"index":0,"uuid":"GPU-..","memory_mib":23028,"model":"A30"}]}
                aliquot.dev/agent       0.1.0, or "away" while the kubelet does not have its devices from an agent
                aliquot.dev/left-behind {"v":1,"image":".."}: uninstalled, and files of Pods that run on are still there
    on a Pod    aliquot.dev/grant       {"v":1,"node":"n1","containers":[{"name":"main","cards":[{"index":0,..}]}]}

A field at its default is left out. Fields we do not know are passed over, so that a newer writer may add some; what
an older reader would misunderstand gets a new version. Nobody but its writer ever writes an annotation anew, so what
was passed over stays there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import msgspec

from aliquot.dialects.nodes import MOST_CARDS, NodeView
from aliquot.dialects.pods import LARGEST_COUNT, Json
from aliquot.model.claim import Claim, ContainerClaim, Slice
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid

PREFIX = "aliquot.dev/"  # of all of them
INVENTORY = "aliquot.dev/inventory"
GRANT = "aliquot.dev/grant"
ADDRESS = "aliquot.dev/address"  # on the scheduler's Lease: where the leader is
CALLS = "aliquot.dev/calls"  # there too: how often, and when last, it was called
AGENT = "aliquot.dev/agent"  # on a Node: the release of its agent, or AWAY
AWAY = "away"  # the agent is, or is about to be: a Pod that is bound there now would fail for good
LEFT_BEHIND = "aliquot.dev/left-behind"  # there too, after the agent: leftovers.py
SEEN = "aliquot.dev/seen"  # there too: the scheduler knows that the agent goes, and sends no Pod
RETRIED = "aliquot.dev/retried"  # when a waiting Pod was last touched, so that kube-scheduler tries it again
ANNOTATIONS = (GRANT,)

_VERSION = 1
_ROOM_PERCENT = 105  # of what a percentage takes today: cards change their size a little with the driver's version

Index = Annotated[int, msgspec.Meta(ge=0, lt=MOST_CARDS)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]


class _Card(msgspec.Struct, kw_only=True, omit_defaults=True):
    index: Index
    uuid: str = ""
    memory_mib: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_COUNT)]
    model: str = ""
    healthy: bool = True
    numa: int | None = None


class _Versioned(msgspec.Struct):
    v: int


class _Inventory(msgspec.Struct, kw_only=True):
    v: int
    cards: list[_Card]


class _Share(msgspec.Struct, kw_only=True, omit_defaults=True):
    index: Index
    uuid: str = ""
    memory_mib: Amount
    core_milli: Amount | None = None
    greedy_milli: Amount | None = None
    exclusive: bool = False


class _Container(msgspec.Struct, kw_only=True):
    name: str
    cards: list[_Share]


class _Grant(msgspec.Struct, kw_only=True, omit_defaults=True):
    v: int
    node: str
    whole_node: bool = False
    containers: list[_Container]


_Wire = TypeVar("_Wire", _Inventory, _Grant)


# Made once: ten thousand grants are read when a cluster is loaded.
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {form: msgspec.json.Decoder(form) for form in (_Inventory, _Grant)}
_GRANT_FIELD = f'metadata.annotations["{GRANT}"]'


def _decode(value: object, field: str, form: type[_Wire]) -> _Wire | Invalid:
    if not isinstance(value, str):
        return Invalid(field, value, "JSON text")
    try:
        wire: _Wire = _DECODERS[form].decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        version = _version(value)
        if version in (None, _VERSION):
            return Invalid(field, value, f"what aliquot writes there ({error})")
    else:
        version = wire.v
        if version == _VERSION:
            return wire
    advice = "run that one, scheduler and agents alike, or make the Pod anew"
    return Invalid(field, value, f"version {_VERSION}; version {version} is of another release of aliquot: {advice}")


def _version(value: str) -> int | None:
    """Of which version it says it is, whatever else it says."""
    try:
        return msgspec.json.decode(value, type=_Versioned).v
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def is_of_another_version(annotations: Json) -> bool:
    """Whether a grant is there that another release wrote, and that we cannot read."""
    value = annotations.get(GRANT)
    return isinstance(value, str) and _version(value) not in (None, _VERSION)


def render_inventory(cards: Iterable[Card]) -> dict[str, str]:
    """The annotation that tells a node's cards."""
    wire = _Inventory(
        v=_VERSION,
        cards=[
            _Card(
                index=card.index,
                uuid=card.uuid,
                memory_mib=card.memory_mib,
                model=card.model,
                healthy=card.healthy,
                numa=card.numa,
            )
            for card in cards
        ],
    )
    return {INVENTORY: msgspec.json.encode(wire).decode()}


def render_agent(version: str, *, here: bool) -> dict[str, str]:
    """The annotation that tells whether an agent answers the kubelet."""
    return {AGENT: version if here else AWAY}


def parse_inventory(node: NodeView, problems: list[Invalid]) -> tuple[Card, ...] | None:
    """The node's cards by their number; None where the annotation is missing or became one more problem."""
    if INVENTORY not in node.annotations:
        return None
    field = f'metadata.annotations["{INVENTORY}"]'
    wire = _decode(node.annotations[INVENTORY], field, _Inventory)
    if isinstance(wire, Invalid):
        problems.append(wire)
        return None
    for what, seen in (
        ("index", Counter(card.index for card in wire.cards)),
        ("uuid", Counter(card.uuid for card in wire.cards if card.uuid)),
    ):
        twice = [each for each, times in seen.items() if times > 1]
        if twice:
            problems.append(Invalid(field, twice[0], f"every card has its own {what}"))
            return None
    cards = (Card(card.index, card.memory_mib, card.uuid, card.model, card.healthy, card.numa) for card in wire.cards)
    return tuple(sorted(cards, key=lambda card: card.index))


def render_grant(grant: Grant) -> dict[str, str]:
    """The annotation that tells what a Pod got."""
    containers = [
        _Container(
            name=container.name,
            cards=[
                _Share(
                    index=share.card,
                    uuid=share.uuid,
                    memory_mib=share.memory_mib,
                    core_milli=share.core_milli,
                    greedy_milli=share.greedy_milli,
                    exclusive=share.exclusive,
                )
                for share in container.shares
            ],
        )
        for container in grant.containers
    ]
    wire = _Grant(v=_VERSION, node=grant.node, whole_node=grant.whole_node, containers=containers)
    return {GRANT: msgspec.json.encode(wire).decode()}


def parse_grant(annotations: Json, claim: Claim, node_name: str, node: Node | None) -> Grant | Invalid | None:
    """What the Pod got; None where the annotation is missing."""
    if GRANT not in annotations:
        return None
    field, value = _GRANT_FIELD, annotations[GRANT]
    wire = _decode(value, field, _Grant)
    if isinstance(wire, Invalid):
        return wire
    if wire.node != node_name:
        return Invalid(field, wire.node, f"the grant of the node the Pod is on, {node_name}; this one is stale")
    granted = {container.name: container.cards for container in wire.containers}
    asked = [container.name for container in claim.containers]
    if len(granted) != len(wire.containers) or granted.keys() != set(asked):
        return Invalid(field, ", ".join(granted), f"one grant for each container that asks: {', '.join(asked)}")
    largest = max((card.memory_mib for card in node.cards), default=None) if node else None
    for container in claim.containers:
        wrong = _not_what_was_asked(container, granted[container.name], largest)
        if wrong or wire.whole_node != claim.whole_node:
            return Invalid(field, value, wrong or "the whole node if the Pod requests one, and only then")
    named = node is not None and any(card.uuid for container in wire.containers for card in container.cards)
    today = {card.uuid: card.index for card in node.cards if card.uuid} if node and named else {}
    return Grant(
        uid=claim.uid,
        node=node_name,
        containers=tuple(
            ContainerGrant(
                container.name,
                container.index,
                container.role,
                tuple(_share(wire, today) for wire in granted[container.name]),
            )
            for container in claim.containers
        ),
        whole_node=wire.whole_node,
    )


def _not_what_was_asked(container: ContainerClaim, cards: list[_Share], largest: int | None) -> str | None:
    """How the shares differ from the request: who can write annotations could book less than it uses, or more.

    `largest` is the memory of the node's largest card, where that is known: of a percentage nothing else tells.
    """
    asked = container.slice
    if len(cards) > 1 and len({card.index for card in cards}) != len(cards):
        return f"each card of {container.name} once"
    wanted = container.count or max(len(cards), 1)  # of a whole node: as many as it had
    if len(cards) != wanted:
        return f"as many cards as {container.name} asks for"
    least = max(asked.memory_mib, min(asked.memory_percent, 1))
    most = _most_memory(asked, largest)
    compute = (asked.core_milli, asked.greedy_milli, asked.exclusive)
    for card in cards:
        if card.memory_mib < least or (most is not None and card.memory_mib > most):
            return f"as much memory as {container.name} asks for"
        if (card.core_milli, card.greedy_milli, card.exclusive) != compute:
            return f"the compute that {container.name} asks for"
    return None


def _most_memory(asked: Slice, largest: int | None) -> int | None:
    """The MiB of one card that the request may have become; None: as many as are written."""
    if not asked.memory_percent:
        return asked.memory_mib
    return None if largest is None else max(1, asked.memory_on(largest) * _ROOM_PERCENT // 100)


def _share(wire: _Share, today: dict[str, int]) -> Share:
    """The card is who its UUID says, whatever its number was. One that is gone keeps its number, and so is counted."""
    return Share(
        card=today.get(wire.uuid, wire.index),
        memory_mib=wire.memory_mib,
        core_milli=wire.core_milli,
        greedy_milli=wire.greedy_milli,
        exclusive=wire.exclusive,
        uuid=wire.uuid,
    )
