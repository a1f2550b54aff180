"""The JSON of the peer's GET /inspect, all memory in the cluster's unit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aliquot.model.openjson import JsonView


def render_inspected_card(index: int, *, total: int, used: int, pods: Iterable[tuple[str, str, int]]) -> dict[str, Any]:
    """One card, and the namespace, name and memory of each Pod on it."""
    listed = [{"name": name, "namespace": namespace, "usedGPU": memory} for namespace, name, memory in pods]
    return {"id": index, "totalGPU": total, "usedGPU": used, "pods": listed}


def render_inspected_node(name: str, *, total: int, used: int, cards: Iterable[JsonView]) -> dict[str, Any]:
    """One node."""
    return {"name": name, "totalGPU": total, "usedGPU": used, "devs": list(cards)}


def render_inspected(nodes: Iterable[JsonView]) -> dict[str, Any]:
    """All of them."""
    return {"nodes": list(nodes)}
