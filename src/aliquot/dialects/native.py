"""Our own annotations: the cards of a node, the grant of a Pod. Versioned JSON; tests prove the round trip.

    on a Node   aliquot.dev/inventory   {"v":1,"cards":[{"index":0,"uuid":"GPU-..","memory_mib":23028,"model":"A30"}]}
                aliquot.dev/agent       0.1.0, or "away" while no agent serves the kubelet
                aliquot.dev/counted-resources   aliyun.com/gpu-mem: not devices, but an amount that its agent writes
                aliquot.dev/left-behind {"v":1,"image":".."}: uninstalled, but files of running Pods are left
    (label)     aliquot.dev/mix-qgpu-and-whole-cards    "true": its owner wants both on one node
    on a Pod    aliquot.dev/reviewed    "true": the webhook has reviewed it
                aliquot.dev/grant       {"v":1,"node":"n1","containers":[{"name":"main","cards":[{"index":0,..}]}]}

Fields with default values are omitted. Unknown fields are ignored, so that a newer writer may add some; a change that
an older reader would misunderstand gets a new version. Only its writer ever rewrites an annotation, so ignored fields
are not lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec.structs import replace

from aliquot.dialects import elastic
from aliquot.dialects.nodes import MOST_CARDS
from aliquot.dialects.pods import LARGEST_COUNT, Pod, annotation_field, listed_models, user_of
from aliquot.model.claim import AppClass, Claim, ContainerClaim, Role, Slice
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node, Offer
from aliquot.model.refusal import Invalid
from aliquot.model.withheld import CardHolder, Withheld, WithheldCode

PREFIX = "aliquot.dev/"  # of all our annotations
INVENTORY = "aliquot.dev/inventory"
GRANT = "aliquot.dev/grant"
ADDRESS = "aliquot.dev/address"  # on the scheduler's Lease: address of the leader
CALLS = "aliquot.dev/calls"  # on the Lease: how often, and when last, the leader was called
AGENT = "aliquot.dev/agent"  # on a Node: the release of its agent, or AWAY
AWAY = "away"  # no agent, or it is about to stop: a Pod bound there now would fail for good
LEFT_BEHIND = "aliquot.dev/left-behind"  # on a Node, after the agent: wire/leftovers.py
SEEN = "aliquot.dev/seen"  # on a Node: the scheduler acknowledges that the agent stops, and binds no Pod there
RETRIED = "aliquot.dev/retried"  # on a Pod: when we last made kube-scheduler retry it
PLACE = "aliquot.dev/card-place"  # resource: by it the kubelet calls us for Pods that name none of their own
PLACES = 100  # of PLACE for each card: more than any number of Pods that share one
MANY_PLACES = 1000  # the same where shares are counted in MiB, and each container needs one
# Of one resource. The kubelet copies the whole list each time, and accepts no message of more than 4 MiB: 61,000
# devices of the longest names. With 49,152 of them a Pod with 8,138 starts in 2 to 5 s (kubelet 1.36).
MOST_DEVICES = 50_000
COUNTED = "aliquot.dev/counted-resources"  # on a Node: those of its status that its agent counts, not the kubelet
REVIEWED = "aliquot.dev/reviewed"  # on a Pod: the webhook has reviewed it
CARD_MODELS = "aliquot.dev/card-models"  # on a Pod of any dialect, by its author: parts of model names, with commas
TOGETHER = "aliquot.dev/together"  # on a Pod: its group (docs/together.md); "true" on a Node: its agent runs groups
ANNOTATIONS = (GRANT, CARD_MODELS, TOGETHER)
MARKS = (CARD_MODELS, TOGETHER)  # part of what a Pod requests
MIX_LABEL = "aliquot.dev/mix-qgpu-and-whole-cards"  # on a Node, by its owner: whole cards beside qGPU

UNREADABLE = "unreadable"  # instead of a dialect: claims that are known only by their grants

_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_VERSION = 1
_INVENTORY_FIELD = f'metadata.annotations["{INVENTORY}"]'
_ROOM_PERCENT = 105  # of today's value of a percentage: the size of a card varies a little with the driver version

Index = Annotated[int, msgspec.Meta(ge=0, lt=MOST_CARDS)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]


class _Card(msgspec.Struct, kw_only=True, omit_defaults=True):
    index: Index
    uuid: str = ""
    memory_mib: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_COUNT)]
    model: str = ""
    healthy: bool = True
    numa: int | None = None
    withheld: WithheldCode | None = None
    held_by: CardHolder | None = None


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


# Built once: loading a cluster reads 10,000 grants.
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
    advice = "use that release for scheduler and agents, or recreate the Pod"
    return Invalid(field, value, f"version {_VERSION}; version {version} is from another release of aliquot: {advice}")


def _version(value: str) -> int | None:
    """The version field alone."""
    try:
        return msgspec.json.decode(value, type=_Versioned).v
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def is_of_another_version(annotations: JsonView) -> bool:
    """Whether there is a grant of another release that we cannot read."""
    value = annotations.get(GRANT)
    return isinstance(value, str) and _version(value) not in (None, _VERSION)


def card_models(pod: Pod, problems: list[Invalid]) -> tuple[str, ...]:
    """The models of which the Pod's cards may be; none: any."""
    words = listed_models(pod, CARD_MODELS, problems)
    if not words and CARD_MODELS in pod.annotations and not problems:
        allowed = "parts of the names of card models, such as A100,H200, or omit the annotation"
        problems.append(Invalid(annotation_field(CARD_MODELS), pod.annotations[CARD_MODELS], allowed))
    return words


def with_group(claim: Claim, pod: Pod, problems: list[Invalid], *, one_user: bool) -> Claim:
    """The claim, as a member of the group that the Pod names, or that its dialect means. `one_user`: it has the user of
    whoever submitted it; otherwise the Pod must say one."""
    if TOGETHER not in pod.annotations and not claim.group:
        return claim
    name = pod.annotations.get(TOGETHER, claim.group)
    if not isinstance(name, str) or not _GROUP.fullmatch(name):
        allowed = "a name of at most 63 characters: letters, digits and . _ -, the first a letter or digit"
    elif claim.whole_node or any(container.slice.exclusive for container in claim.containers):
        allowed = "the Pod has whole cards, which it shares with no other Pod"
    elif elastic.PARK in pod.annotations:
        allowed = f"not beside {elastic.PARK}: the memory of a group's members does not leave the card"
    else:
        names = (container.name for container in claim.containers)
        return replace(claim, group=name, user=None if one_user else user_of(pod, names, problems))
    problems.append(Invalid(annotation_field(TOGETHER), name, allowed))
    return claim


def render_inventory(cards: Iterable[Card]) -> dict[str, str]:
    """The annotation with a node's cards."""
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
                withheld=card.withheld.code if card.withheld else None,
                held_by=card.withheld.holder if card.withheld else None,
            )
            for card in cards
        ],
    )
    return {INVENTORY: msgspec.json.encode(wire).decode()}


def render_together(together: bool) -> dict[str, str]:
    """The annotation by which an agent says whether it runs groups of Pods side by side."""
    return {TOGETHER: "true" if together else "false"}


def runs_groups(annotations: JsonView) -> bool:
    """Whether the Node's agent says so. An older agent says nothing."""
    return bool(annotations.get(TOGETHER) == "true")


def render_agent(version: str, *, here: bool) -> dict[str, str]:
    """The annotation that says whether an agent serves the kubelet."""
    return {AGENT: version if here else AWAY}


def render_counted(resources: Iterable[str]) -> dict[str, str]:
    """The annotation with the resources that the agent counts in the Node's status; empty without any."""
    names = ",".join(sorted(resources))
    return {COUNTED: names} if names else {}


def parse_counted(annotations: JsonView) -> frozenset[str]:
    """The resources that an agent counts, or counted, in the Node's status."""
    names = annotations.get(COUNTED)
    return frozenset(names.split(",")) - {""} if isinstance(names, str) else frozenset()


def counts(annotations: JsonView, resource: str) -> bool:
    """Whether the node's agent counts the resource in the Node's status."""
    return COUNTED in annotations and resource in parse_counted(annotations)


def parse_inventory(annotations: JsonView, problems: list[Invalid]) -> tuple[Card, ...] | None:
    """The node's cards, sorted by index; None if the annotation is missing or invalid (added to `problems`)."""
    if INVENTORY not in annotations:
        return None
    field = _INVENTORY_FIELD
    wire = _decode(annotations[INVENTORY], field, _Inventory)
    if isinstance(wire, Invalid):
        problems.append(wire)
        return None
    indexes = [card.index for card in wire.cards]
    uuids = [card.uuid for card in wire.cards if card.uuid]
    for what, seen in (("index", indexes), ("uuid", uuids)):
        if len(set(seen)) != len(seen):
            twice = next(value for value, times in Counter(seen).items() if times > 1)
            problems.append(Invalid(field, twice, f"a unique {what} for every card"))
            return None
    cards = [
        Card(card.index, card.memory_mib, card.uuid, card.model, card.healthy, card.numa, None, _withheld(card))
        for card in wire.cards
    ]
    return tuple(cards if indexes == sorted(indexes) else sorted(cards, key=lambda card: card.index))


def _withheld(card: _Card) -> Withheld | None:
    return Withheld(card.withheld, card.held_by) if card.withheld else None


def render_grant(grant: Grant) -> dict[str, str]:
    """The annotation with a Pod's grant."""
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


def parse_grant(annotations: JsonView, claim: Claim, node_name: str, node: Node | None) -> Grant | Invalid | None:
    """The Pod's grant; None if the annotation is missing."""
    if GRANT not in annotations:
        return None
    field, value = _GRANT_FIELD, annotations[GRANT]
    wire = _decode(value, field, _Grant)
    if isinstance(wire, Invalid):
        return wire
    if wire.node != node_name:
        return Invalid(field, wire.node, f"a grant for the Pod's node, {node_name}; this one is stale")
    granted = {container.name: container.cards for container in wire.containers}
    asked = [container.name for container in claim.containers]
    if len(granted) != len(wire.containers) or granted.keys() != set(asked):
        return Invalid(
            field, ", ".join(granted), f"one entry for each container that requests a GPU: {', '.join(asked)}"
        )
    largest = max((card.memory_mib for card in node.cards), default=None) if node else None
    for container in claim.containers:
        wrong = _mismatch(container, granted[container.name], largest)
        if wrong or wire.whole_node != claim.whole_node:
            return Invalid(field, value, wrong or "the whole node if the Pod requests one, and only then")
    today = {card.uuid: card.index for card in node.cards if card.uuid} if node else {}
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


def claim_of_grant(
    annotations: JsonView, uid: str, namespace: str, name: str, roles: Mapping[str, Role]
) -> Claim | None:
    """What a Pod was granted, as a claim: of one whose own request cannot be read any more. `roles` are those of its
    containers, by name. None: the annotation is missing or unreadable, too."""
    wire = _decode(annotations.get(GRANT), _GRANT_FIELD, _Grant)
    if isinstance(wire, Invalid) or any(not container.cards for container in wire.containers):
        return None
    containers = tuple(
        ContainerClaim(
            container.name,
            at,
            roles.get(container.name, Role.MAIN),
            _granted_slice(container.cards),
            None if wire.whole_node else len(container.cards),
        )
        for at, container in enumerate(wire.containers)
    )
    offline = any(part.slice.greedy_milli is not None for part in containers)
    app_class = AppClass.OFFLINE if offline else AppClass.NORMAL
    return Claim(
        uid, namespace, name, UNREADABLE, Offer.ANY, containers, app_class=app_class, whole_node=wire.whole_node
    )


def _granted_slice(cards: list[_Share]) -> Slice:
    """A percentage is another amount on every card: then any amount will do."""
    first, same = cards[0], len({card.memory_mib for card in cards}) == 1
    memory = {"memory_mib": first.memory_mib} if same else {"memory_percent": 100}
    return Slice(core_milli=first.core_milli, greedy_milli=first.greedy_milli, exclusive=first.exclusive, **memory)


def _mismatch(container: ContainerClaim, cards: list[_Share], largest: int | None) -> str | None:
    """How the shares differ from the request: the author of a Pod could book less than it uses, or more.

    `largest` is the memory of the node's largest card, if known: the only bound for a percentage.
    """
    asked = container.slice
    if len({card.index for card in cards}) != len(cards):
        return f"every card of {container.name} once"
    wanted = container.count or max(len(cards), 1)  # for a whole node: as many as it had
    if len(cards) != wanted:
        return f"as many cards as {container.name} requests"
    least = max(asked.memory_mib, min(asked.memory_percent, 1))
    most = _most_memory(asked, largest)
    compute = (asked.core_milli, asked.greedy_milli, asked.exclusive)
    for card in cards:
        if card.memory_mib < least or (most is not None and card.memory_mib > most):
            return f"as much memory as {container.name} requests"
        if (card.core_milli, card.greedy_milli, card.exclusive) != compute:
            return f"the compute that {container.name} requests"
    return None


def _most_memory(asked: Slice, largest: int | None) -> int | None:
    """The most MiB of one card that the request allows; None: unlimited."""
    if not asked.memory_percent:
        return asked.memory_mib
    return None if largest is None else max(1, asked.memory_on(largest) * _ROOM_PERCENT // 100)


def _share(wire: _Share, today: dict[str, int]) -> Share:
    """The UUID identifies the card; its index may change. A missing card keeps its index, so that it still counts."""
    return Share(
        card=today.get(wire.uuid, wire.index),
        memory_mib=wire.memory_mib,
        core_milli=wire.core_milli,
        greedy_milli=wire.greedy_milli,
        exclusive=wire.exclusive,
        uuid=wire.uuid,
    )
