"""Nodes and Pods of the three dialects, for the scenarios: only what matters shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kit.values.manifests import (
    APP_CLASS,
    COUNT,
    MEM,
    QGPU,
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    SGN,
    T9K_CARDS,
    T9K_NODE,
    T9K_PERCENT,
    XGN,
)
from testbed.objects import Object, node, pod

TAINT = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}
TOLERATION = {**TAINT, "operator": "Equal"}
INVENTORY = "aliquot.dev/inventory"


def inventory(*cards_gib: int, sick: Sequence[int] = ()) -> dict[str, str]:
    """The annotation by which a node's agent tells its cards; those that are sick by their number."""
    cards: list[dict[str, Any]] = [
        {"index": index, "uuid": f"GPU-{index}", "memory_mib": size * 1024, "healthy": index not in sick}
        for index, size in enumerate(cards_gib)
    ]
    return {INVENTORY: json.dumps({"v": 1, "cards": cards})}


def gpushare_node(name: str, *cards_gib: int, **more: Any) -> Object:
    """Equal cards need no inventory: their number and their memory in all tell them."""
    inventories = inventory(*cards_gib) if len(set(cards_gib)) > 1 else {}
    labels = {"gpushare": "true", **more.pop("labels", {})}
    amounts = {MEM: sum(cards_gib), COUNT: len(cards_gib)}
    return node(name, amounts, labels=labels, annotations={**inventories, **more.pop("annotations", {})}, **more)


def unhealthy(name: str, cards: str) -> Object:
    """gpushare's ConfigMap that takes cards of a node out."""
    metadata = {"name": f"unhealthy-gpu-{name}", "namespace": "kube-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"gpus": cards}}


def qgpu_node(name: str, *cards_gib: int, labels: Mapping[str, str] = QGPU, **more: Any) -> Object:
    amounts = {QGPU_MEMORY: sum(cards_gib), QGPU_CORE: 100 * len(cards_gib), QGPU_GREEDY: 100 * len(cards_gib)}
    return node(name, amounts, labels=labels, **more)


def xgn_node(name: str, cards: int = 4, **more: Any) -> Object:
    return node(name, {T9K_CARDS: cards, T9K_NODE: 1}, labels=XGN, **more)


def sgn_node(name: str, cards: int = 4, **more: Any) -> Object:
    return node(name, {T9K_PERCENT: 100 * cards}, labels=SGN, **more)


def gpushare_pod(name: str, gib: int, *, cards: int = 1, **more: Any) -> Object:
    """`gib` in all, over that many cards."""
    annotations = {**({COUNT: str(cards)} if cards > 1 else {}), **more.pop("annotations", {})}
    return pod(name, {MEM: gib}, annotations=annotations, **more)


def online_pod(name: str, gib: int, **more: Any) -> Object:
    return pod(name, {QGPU_MEMORY: gib}, annotations={APP_CLASS: "online"}, **more)


def offline_pod(name: str, gib: int, greedy: int = 50, **more: Any) -> Object:
    return pod(name, {QGPU_MEMORY: gib, QGPU_GREEDY: greedy}, annotations={APP_CLASS: "offline"}, **more)


def t9k_pod(name: str, resource: str, amount: int, *, tolerant: bool = True, **more: Any) -> Object:
    """Tolerant of xgn nodes, as the webhook would make it, where it needs one."""
    tolerations = [TOLERATION] if tolerant and resource != T9K_PERCENT else []
    return pod(name, {resource: amount}, scheduler="t9k-scheduler", tolerations=tolerations, **more)
