"""Nodes whose cards another device plugin or DRA driver hands out, and cards that are given away twice because of it:
objects in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aliquot.dialects.wire.objects import Amounts
from aliquot.dialects.wire.otherplugins import SHARE, hand_out, share_command, switch_off_command
from aliquot.model.node import Node
from aliquot.model.numbers.quantity import QuantityError, parse_count
from aliquot.services.doctor.findings import Finding, Level, found
from aliquot.services.explain.snapshot import Snapshot
from aliquot.wording.withheld import withheld_words

_WHOLE = "nvidia.com/gpu"  # of this resource one device is one card, unless cards are time-sliced
_FIX = (
    f"switch it off on the node (GPU Operator: {switch_off_command('NODE')}), or share the cards: "
    f"{share_command('NODE')}; with {SHARE}=false it is left to the other. See docs/migration.md"
)


def other_plugin_findings(snapshot: Snapshot) -> Iterator[Finding]:
    """All that is wrong, or worth knowing, about cards that others hand out too."""
    for name, others in snapshot.cluster.reported.others.items():
        left = (snapshot.nodes[name].metadata.labels or {}).get(SHARE) == "false"
        what = f"offers nothing: {hand_out(others)}"
        yield Finding("other-plugins", Level.NOTE if left else Level.FINDING, (name,), what, _FIX)
    ours, requested = _used(snapshot), _requested(snapshot)
    for name, obj in snapshot.nodes.items():
        node = snapshot.cluster.board.node(name)
        if node is None:
            continue
        if any(card.withheld for card in node.cards):
            yield from _withheld(node, ours)
        elif _count(obj.status.capacity, _WHOLE) <= len(node.cards):  # else a card is several devices: time-slicing
            yield from _too_many(node, ours, requested.get(name, 0))


def _withheld(node: Node, ours: Mapping[tuple[str, int], list[str]]) -> Iterator[Finding]:
    """Cards that the agent does not offer."""
    for card in node.cards:
        if card.withheld is None:
            continue
        about, pods = f"{node.name}, GPU {card.index}", ours.get((node.name, card.index), [])
        if pods:
            what = f"is allocated twice: {withheld_words(card.withheld)}, and aliquot gave it to {', '.join(pods[:5])}"
            fix = "delete one of these Pods; then let one product hand out the node's cards: docs/migration.md"
            yield found("over-allocated", about, what, fix)
        else:
            yield Finding("other-plugins", Level.NOTE, (about,), f"is not offered: {withheld_words(card.withheld)}")


def _too_many(node: Node, ours: Mapping[tuple[str, int], list[str]], requested: int) -> Iterator[Finding]:
    """Compare numbers alone, where no agent reports who holds a card."""
    used = sum((node.name, card.index) in ours for card in node.cards)
    if used and requested + used > len(node.cards):
        what = f"Pods hold {requested} by {_WHOLE}, and aliquot's Pods use {used}, of {len(node.cards)} cards in all"
        fix = "let one product hand out the node's cards: docs/migration.md"
        yield found("over-allocated", node.name, f"cards are allocated twice: {what}", fix)


def _used(snapshot: Snapshot) -> dict[tuple[str, int], list[str]]:
    """The Pods that we placed, by node and card."""
    found: dict[tuple[str, int], list[str]] = {}
    for key, placed in sorted(snapshot.running.items()):
        for index in placed.grant.usage():
            found.setdefault((placed.grant.node, index), []).append(key)
    return found


def _requested(snapshot: Snapshot) -> dict[str, int]:
    """The number of cards that Pods hold by NVIDIA's device plugin, by node."""
    found: dict[str, int] = {}
    for pod in snapshot.pods:
        name = pod.read.spec.node_name
        if name and not pod.read.finished:
            resources = (container.resources for container in pod.read.spec.containers or ())
            cards = sum(_count(of.limits, _WHOLE) for of in resources if of is not None)
            found[name] = found.get(name, 0) + cards
    return found


def _count(amounts: Amounts | None, resource: str) -> int:
    """0 where it is missing or cannot be read."""
    try:
        return parse_count((amounts or {}).get(resource, 0))
    except QuantityError:
        return 0
