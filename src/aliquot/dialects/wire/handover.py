"""Which cards another device plugin, such as gpushare's, gave a container, by the response that the kubelet keeps.

The response is more reliable than the Pod's annotation: the annotation has the card's number of that time, and plugins
that match Pods by size and age confuse Pods of one size. Device IDs say nothing: the kubelet chooses them freely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from aliquot.dialects import native
from aliquot.dialects.wire.cdi import VENDOR
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.node import Node

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def is_ours(cdi: Iterable[str], env: Mapping[str, str], *, mark: str) -> bool:
    """Whether the response is ours: it names one of our CDI specs or, for runtimes without CDI, has our variable."""
    return mark in env or any(name.startswith(f"{VENDOR}/") for name in cdi)


def cards_given(env: Mapping[str, str], node: Node) -> tuple[int, ...] | None:
    """The current numbers of the cards that the container got; None if it names cards that the node does not have.

    Numbers in the response do not count: they were right at that time, and nothing says what they are today.
    """
    known = {card.uuid: card.index for card in node.cards if card.uuid}
    words = [word.strip() for word in env.get(VISIBLE, "").split(",")]
    found = [known[word] for word in words if word in known]
    return tuple(sorted(found)) if found and len(found) == len(words) else None


def on_cards(grant: Grant, given: Iterable[int], node: Node) -> Grant:
    """The grant moved to the cards that were really given, if those differ and are as many."""
    named = {share.card for container in grant.containers for share in container.shares}
    actual = set(given)
    if actual == named or len(actual) != len(named):
        return grant
    return _on(grant, dict(zip(sorted(named - actual), sorted(actual - named), strict=True)), node)


def render_own_grant(claim: Claim, grant: Grant, node: Node) -> dict[str, str]:
    """Our annotation for a Pod that a peer's scheduler placed, with the UUIDs of its cards. Empty for a grant that we
    could not read back: peers may spread a Pod unevenly."""
    annotations = native.render_grant(_on(grant, {}, node))
    return annotations if isinstance(native.parse_grant(annotations, claim, node.name, node), Grant) else {}


def _on(grant: Grant, moved: Mapping[int, int], node: Node) -> Grant:
    """Every card with its current number and its UUID."""
    uuids = {card.index: card.uuid for card in node.cards}
    containers = []
    for container in grant.containers:
        shares = (replace(share, card=moved.get(share.card, share.card)) for share in container.shares)
        named = (replace(share, uuid=uuids.get(share.card, share.uuid)) for share in shares)
        containers.append(replace(container, shares=tuple(named)))
    return replace(grant, containers=tuple(containers))
