"""The one place that knows all dialects: finds which of them a Pod or a Node speaks, and asks that one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from aliquot.model.claim import Claim
from aliquot.model.grant import Grant, Share
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid

from . import gpushare, native, pods, qgpu, t9k
from .gpushare import MemoryUnit, parse_unhealthy
from .native import render_inventory
from .nodes import Capacity, NodeView, cards_from, read_node
from .pods import Pod, read_pod, with_requests
from .qgpu import QgpuRules
from .t9k import Taints, missing_tolerations, taints, tolerations

__all__ = [
    "DEFAULT_RULES",
    "ENABLED_BY",
    "MemoryUnit",
    "QgpuRules",
    "Rules",
    "Taints",
    "guess_gpushare_unit",
    "missing_tolerations",
    "parse_grant",
    "parse_node",
    "parse_pod",
    "parse_unhealthy",
    "render_env",
    "render_grant",
    "render_inventory",
    "render_pod",
    "taints",
    "tolerations",
]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a cluster decides for all of its Pods."""

    qgpu: QgpuRules = QgpuRules.SEED
    gpushare_unit: MemoryUnit = MemoryUnit.GIB


DEFAULT_RULES = Rules()

guess_gpushare_unit = gpushare.guess_unit

# What a node must have to offer each way of use, in words.
ENABLED_BY = {**qgpu.ENABLED_BY, **t9k.ENABLED_BY, **gpushare.ENABLED_BY}


@dataclass(frozen=True, slots=True)
class _Dialect:
    """The part of a dialect that reads and writes Pods."""

    name: str
    first_mention: Callable[[Pod], str | None]
    parse: Callable[[Pod, Rules], Claim | list[Invalid]]
    words: Callable[[Claim, Rules], pods.Words]


_DIALECTS = (
    _Dialect(
        qgpu.DIALECT,
        qgpu.first_mention,
        lambda pod, rules: qgpu.parse_pod(pod, rules.qgpu),
        lambda claim, rules: qgpu.words(claim),
    ),
    _Dialect(
        t9k.DIALECT,
        t9k.first_mention,
        lambda pod, rules: t9k.parse_pod(pod),
        lambda claim, rules: t9k.words(claim),
    ),
    _Dialect(
        gpushare.DIALECT,
        gpushare.first_mention,
        lambda pod, rules: gpushare.parse_pod(pod, rules.gpushare_unit),
        lambda claim, rules: gpushare.words(claim, rules.gpushare_unit),
    ),
)

_OUR_ANNOTATIONS = frozenset(qgpu.ANNOTATIONS + t9k.ANNOTATIONS + gpushare.ANNOTATIONS + native.ANNOTATIONS)


def parse_pod(pod: object, rules: Rules = DEFAULT_RULES) -> Claim | tuple[Invalid, ...] | None:
    """What the Pod asks for; every rule it breaks; or None for a Pod that is not ours. Never raises on any JSON."""
    view = read_pod(pod)
    if view is None:
        return None
    spoken = [(dialect, field) for dialect in _DIALECTS if (field := dialect.first_mention(view)) is not None]
    slips = _misplaced(view) if spoken or any(key in _OUR_ANNOTATIONS for key in view.misplaced) else []
    if not spoken:
        return tuple(slips) or None
    view = with_requests(view)
    problems = [*view.problems, *slips]
    (dialect, first), *others = spoken
    if others:
        problems += [
            Invalid(field, other.name, f"one dialect in a Pod: {first} already speaks {dialect.name}")
            for other, field in others
        ]
        return tuple(problems)
    claim = dialect.parse(view, rules)
    if isinstance(claim, list):
        problems += claim
    return tuple(problems) if problems or isinstance(claim, list) else claim


def _misplaced(pod: Pod) -> list[Invalid]:
    """The slip in the vendor's own example: annotations beside metadata, where Kubernetes drops them."""
    if not pod.misplaced:
        return []
    allowed = "annotations belong in metadata: move them to metadata.annotations"
    if "spec" in pod.misplaced:
        allowed += ", and spec out of them, to the top"
    return [Invalid("annotations", pod.misplaced, allowed)]


def render_pod(claim: Claim, rules: Rules = DEFAULT_RULES) -> dict[str, Any]:
    """A Pod manifest that says the claim in its own dialect."""
    for dialect in _DIALECTS:
        if dialect.name == claim.dialect:
            return pods.render_pod(claim, dialect.words(claim, rules))
    raise ValueError(f"no dialect is called {claim.dialect}")


def parse_node(
    node: object, rules: Rules = DEFAULT_RULES, unhealthy: frozenset[int] = frozenset()
) -> Node | tuple[Invalid, ...]:
    """The node, its cards and what it offers; or every rule it breaks. Never raises on any JSON."""
    view = read_node(node)
    if isinstance(view, Invalid):
        return (view,)
    problems = list(view.problems)
    notes: list[str] = []
    inventory = native.parse_inventory(view, problems)
    advertised = _capacities(view, rules, notes, problems)
    if inventory is None:
        cards = cards_from(advertised, notes, problems)
    else:
        cards, notes = inventory, []
    by_qgpu = qgpu.offers(view.labels)
    offers = by_qgpu | t9k.offers(view.labels, problems) | gpushare.offers(view, inventory=inventory is not None)
    result = Node(
        name=view.name,
        cards=tuple(
            replace(
                card,
                healthy=card.healthy and card.index not in unhealthy,
                max_slices=qgpu.max_slices(card.memory_mib, rules.qgpu) if by_qgpu else None,
            )
            for card in cards
        ),
        offers=offers,
        isolation=qgpu.isolation(view.labels, problems),
        cpu_milli=view.cpu_milli(problems),
        memory_mib=view.memory_mib(problems),
        notes=tuple(notes),
    )
    return tuple(problems) if problems else result


def _capacities(node: NodeView, rules: Rules, notes: list[str], problems: list[Invalid]) -> list[Capacity]:
    return [
        gpushare.capacity(node, rules.gpushare_unit, problems),
        qgpu.capacity(node, notes, problems),
        t9k.capacity(node, notes, problems),
    ]


def parse_grant(pod: object, claim: Claim, node: Node | None) -> Grant | tuple[Invalid, ...] | None:
    """What a bound Pod got, by its annotations: ours first, then the peers'. None where nothing tells.

    A share may name a card the node no longer has: the Pod still holds it, and the caller decides what that means.
    """
    view = read_pod(pod)
    name = _node_name(pod)
    if view is None or name is None:
        return None
    granted = native.parse_grant(view, claim, name, node)
    if isinstance(granted, Invalid):
        return (granted,)
    if granted is not None:
        return granted
    if claim.whole_node:
        return None if node is None else replace(t9k.whole_node_grant(claim, node), node=name)
    if claim.dialect != gpushare.DIALECT:
        return None
    containers = gpushare.parse_grant(view, claim)
    if isinstance(containers, Invalid):
        return (containers,)
    return None if containers is None else Grant(uid=claim.uid, node=name, containers=containers)


def _node_name(pod: object) -> str | None:
    spec = pod.get("spec") if isinstance(pod, dict) else None
    name = spec.get("nodeName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) and name else None


def render_grant(claim: Claim, grant: Grant, node: Node, now_ns: int, rules: Rules = DEFAULT_RULES) -> dict[str, str]:
    """All annotations that tell what the Pod got: ours, and those the dialect's own tools read."""
    annotations = native.render_grant(grant)
    if claim.dialect == gpushare.DIALECT:
        annotations |= gpushare.render_grant(grant, node, now_ns, rules.gpushare_unit)
    return annotations


def render_env(claim: Claim, grant: Grant, node: Node, container: str, rules: Rules = DEFAULT_RULES) -> dict[str, str]:
    """The environment that one container is promised; nothing for one that has no card."""
    granted = next((each for each in grant.containers if each.name == container), None)
    if granted is None:
        return {}
    visible = _visible(granted.shares, node)
    if claim.dialect == t9k.DIALECT:
        return t9k.render_env(claim, granted, visible)
    if claim.dialect == gpushare.DIALECT:
        return gpushare.render_env(grant, granted, node, visible, rules.gpushare_unit)
    return {"NVIDIA_VISIBLE_DEVICES": visible}


def _visible(shares: Iterable[Share], node: Node) -> str:
    """Cards by UUID where it is known: their numbers change over reboots."""
    known = {card.index: card.uuid for card in node.cards}
    return ",".join(share.uuid or known.get(share.card) or str(share.card) for share in shares)
