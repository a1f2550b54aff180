"""The JSON of the peer's GET /inspect, all memory in the cluster's unit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict


class InspectedPod(TypedDict):
    """A Pod on a card."""

    name: str
    namespace: str
    usedGPU: int


class InspectedCard(TypedDict):
    """A card; -1 is that of Pods whose cards are not known."""

    id: int
    totalGPU: int
    usedGPU: int
    pods: list[InspectedPod]


class InspectedNode(TypedDict):
    """A node with its cards."""

    name: str
    totalGPU: int
    usedGPU: int
    devs: list[InspectedCard]


class InspectedNodes(TypedDict):
    """The whole answer."""

    nodes: list[InspectedNode]


def render_inspected_card(index: int, *, total: int, used: int, pods: Iterable[tuple[str, str, int]]) -> InspectedCard:
    """One card, and the namespace, name and memory of each Pod on it."""
    listed: list[InspectedPod] = [
        {"name": name, "namespace": namespace, "usedGPU": memory} for namespace, name, memory in pods
    ]
    return {"id": index, "totalGPU": total, "usedGPU": used, "pods": listed}


def render_inspected_node(name: str, *, total: int, used: int, cards: Iterable[InspectedCard]) -> InspectedNode:
    """One node."""
    return {"name": name, "totalGPU": total, "usedGPU": used, "devs": list(cards)}


def render_inspected(nodes: Iterable[InspectedNode]) -> InspectedNodes:
    """All of them."""
    return {"nodes": list(nodes)}
