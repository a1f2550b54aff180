"""Whether the agent is ready. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from aliquot.model.refusal import Invalid


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the agent has come."""

    node_name: str
    node_listed: bool  # the API server was asked for the Node
    node_exists: bool
    pods_listed: bool
    restored: bool  # the tenants
    missing: Collection[str]  # resources that the kubelet has not accepted yet
    not_advertised: Invalid | None
    not_counted: Invalid | None
    uncounted: Collection[str]  # resources whose amounts are not in the Node's status yet
    dra: str | None  # what the driver for claims waits for
    published: bool  # the inventory, on the Node


def waits_for(at: Progress) -> str | None:
    """None when the agent is ready, else what it waits for."""
    if at.node_listed and not at.node_exists:
        return f"Node {at.node_name} does not exist: set --nodename to its name"
    if not at.pods_listed or not at.node_exists:
        return "the Node and its Pods have not been read from the API server yet"
    if not at.restored:
        return "the tenants are not restored yet"
    if at.missing:
        return f"the kubelet has not accepted {', '.join(sorted(at.missing))} yet"
    if at.not_advertised is not None:
        return f"no resource can be advertised: {at.not_advertised.sentence()}"
    if at.not_counted is not None:
        return f"gpu-mem cannot be offered: {at.not_counted.sentence()}"
    if at.uncounted:
        return f"{', '.join(at.uncounted)} is not in the Node's status yet"
    if at.dra is not None:
        return at.dra
    return None if at.published else "the inventory is not on the Node yet"
