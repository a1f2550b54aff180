"""What another device plugin gave a container, gpushare's say, read from the answer that the kubelet keeps of it.

Which card that is, the answer knows better than the Pod's annotation: the annotation has the card's number of then,
and peers that go by size and age mix up Pods of one size. Device IDs tell nothing: kubelets choose them freely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from aliquot.dialects import native
from aliquot.dialects.wire.cdi import VENDOR
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.node import Node

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def is_ours(cdi: Iterable[str], env: Mapping[str, str], *, mark: str) -> bool:
    """Whether the answer is one of ours: it names a spec of ours or, for runtimes without CDI, has our variable."""
    return mark in env or any(name.startswith(f"{VENDOR}/") for name in cdi)


def cards_given(env: Mapping[str, str], node: Node) -> tuple[int, ...] | None:
    """Today's numbers of the cards that the container was given; None where it names others than the node has.

    A plugin that names cards by number meant those of its own time: nothing tells what they are today.
    """
    known = {card.uuid: card.index for card in node.cards if card.uuid}
    words = [word.strip() for word in env.get(VISIBLE, "").split(",")]
    found = [known[word] for word in words if word in known]
    return tuple(sorted(found)) if found and len(found) == len(words) else None


def on_cards(grant: Grant, given: Iterable[int], node: Node) -> Grant:
    """The grant on the cards that were really given, by their UUIDs; where these are as many, and others."""
    named = {share.card for container in grant.containers for share in container.shares}
    really = set(given)
    if really == named or len(really) != len(named):
        return grant
    return _on(grant, dict(zip(sorted(named - really), sorted(really - named), strict=True)), node)


def render_own_grant(claim: Claim, grant: Grant, node: Node) -> dict[str, str]:
    """Our annotation for a Pod that a peer's scheduler placed, with its cards by their UUIDs. None for a grant that it
    could not be read back from: peers may spread a Pod unevenly."""
    marks = native.render_grant(_on(grant, {}, node))
    return marks if isinstance(native.parse_grant(marks, claim, node.name, node), Grant) else {}


def _on(grant: Grant, moved: Mapping[int, int], node: Node) -> Grant:
    """Every card by the number it has now, and by its UUID."""
    uuids = {card.index: card.uuid for card in node.cards}
    containers = []
    for container in grant.containers:
        shares = (replace(share, card=moved.get(share.card, share.card)) for share in container.shares)
        named = (replace(share, uuid=uuids.get(share.card, share.uuid)) for share in shares)
        containers.append(replace(container, shares=tuple(named)))
    return replace(grant, containers=tuple(containers))
