"""Which world a node's cards belong to: device plugins (Pods placed by our scheduler) or claims (DRA). Pure.

A node is in one world at a time, and changes only while no Pod holds anything in the other:

    label set       nothing is offered to the kubelet any more; once no Pod holds a card, the slices are published
    label removed   the slices are deleted; once no claim holds a card, resources are offered again

In between neither world gives anything away.
"""

from __future__ import annotations

from enum import StrEnum


class World(StrEnum):
    """Kept in the agent's database, so that a restart in between forgets nothing."""

    PLUGINS = "device-plugins"
    CLAIMS = "claims"


def next_world(world: World, *, wanted: bool, pods: bool, claims: bool) -> World:
    """`wanted`: the label is set. `pods`, `claims`: whether any may hold a card."""
    if wanted and world is World.PLUGINS and not pods:
        return World.CLAIMS
    if not wanted and world is World.CLAIMS and not claims:
        return World.PLUGINS
    return world


def offers_resources(world: World, *, wanted: bool) -> bool:
    """Whether device plugins may offer the cards, and new Pods be admitted to them."""
    return world is World.PLUGINS and not wanted


def admits_claims(world: World, *, wanted: bool) -> bool:
    """Whether the slices are published and new claims prepared."""
    return world is World.CLAIMS and wanted
