"""What another device plugin gave a container, gpushare's say, read from the answer that the kubelet keeps of it.

Which card that is, the answer knows better than the Pod's annotation: the annotation has the card's number of then,
and peers that go by size and age mix up Pods of one size. Device IDs tell nothing: kubelets choose them freely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from aliquot.model.grant import Grant
from aliquot.model.node import Node

from .cdi import VENDOR
from .native import render_grant

VISIBLE = "NVIDIA_VISIBLE_DEVICES"

__all__ = ["cards_given", "is_ours", "on_cards", "render_grant"]


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
    named = {share.card for each in grant.containers for share in each.shares}
    really = set(given)
    if really == named or len(really) != len(named):
        return grant
    moved = dict(zip(sorted(named - really), sorted(really - named), strict=True))
    uuids = {card.index: card.uuid for card in node.cards}
    containers = []
    for each in grant.containers:
        shares = (replace(share, card=moved.get(share.card, share.card)) for share in each.shares)
        containers.append(replace(each, shares=tuple(replace(s, uuid=uuids.get(s.card, s.uuid)) for s in shares)))
    return replace(grant, containers=tuple(containers))
