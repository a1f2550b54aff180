"""Pods, nodes and ConfigMaps as an API server sends them, for tests of watches."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from aliquot.dialects import Rules, render_grant
from aliquot.dialects.wire.objects import ConfigMapObject, NodeObject, PodObject
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.grant import Grant
from aliquot.model.node import Node
from aliquot.services.scheduler.cluster import Cluster, Placed
from kit.values.builders import GIB
from kit.values.manifests import MEM, MIXED, SGN, WHOLE_BESIDE_QGPU, XGN, Json, a_container, a_pod

ALL = {"gpushare": "true", **MIXED, **XGN, **WHOLE_BESIDE_QGPU}
SHARED = {"gpushare": "true", **MIXED, **SGN}
REFUSED = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}


def node_json(name: str = "n1", *gib: int, labels: dict[str, str] | None = None, **status: Any) -> Json:
    """A node with cards of those sizes (one of 16 GiB when none is given) that serves every dialect."""
    cards = [{"index": at, "memory_mib": size * 1024, "uuid": f"{name}-{at}"} for at, size in enumerate(gib or (16,))]
    return {
        "metadata": {
            "name": name,
            "labels": ALL if labels is None else labels,
            "annotations": {"aliquot.dev/inventory": json.dumps({"v": 1, "cards": cards})},
        },
        "status": {"capacity": status},
    }


def inventory_json(name: str, cards: list[Card], labels: dict[str, str] | None = None) -> Json:
    """A node with those cards."""
    conditions = [
        {"index": card.index, "memory_mib": card.memory_mib, "uuid": card.uuid, "healthy": card.healthy}
        for card in cards
    ]
    node = node_json(name, labels=labels)
    node["metadata"]["annotations"]["aliquot.dev/inventory"] = json.dumps({"v": 1, "cards": conditions})
    return node


def live_node(name: str = "n1", *gib: int, labels: dict[str, str] | None = None, **status: Any) -> NodeObject:
    """A Node as it is decoded."""
    return as_node(node_json(name, *gib, labels=labels, **status))


def as_node(node: Json) -> NodeObject:
    return msgspec.json.decode(msgspec.json.encode(node), type=NodeObject)


def as_pod(pod: Json) -> PodObject:
    return msgspec.json.decode(msgspec.json.encode(pod), type=PodObject)


def pod_json(
    name: str = "p", limits: Json | None = None, *, uid: str = "", on: str = "", refused: bool = False, **more: Any
) -> Json:
    """A Pod of namespace ns that asks for that, else for 4 GiB in gpushare's dialect."""
    pod = a_pod(name, a_container("main", {MEM: "4"} if limits is None else limits), **more)
    pod["metadata"] |= {"namespace": "ns", "uid": uid or f"uid-{name}"}
    if on:
        pod["spec"]["nodeName"] = on
    if refused:
        pod["status"] = REFUSED
    return pod


def live_pod(name: str = "p", limits: Json | None = None, **more: Any) -> PodObject:
    """A Pod as it is decoded."""
    return as_pod(pod_json(name, limits, **more))


def claim_of(cluster: Cluster, pod: PodObject) -> Claim:
    claim = cluster.read(pod)
    assert isinstance(claim, Claim)
    return claim


def bound_json(pod: Json, claim: Claim, grant: Grant, node: Node, rules: Rules) -> Json:
    """The Pod after the API server took our binding."""
    annotations = {**(pod["metadata"].get("annotations") or {}), **render_grant(claim, grant, node, 1, rules)}
    return {
        **pod,
        "metadata": {**pod["metadata"], "annotations": annotations},
        "spec": {**pod["spec"], "nodeName": grant.node},
        "status": {"phase": "Running"},
    }


def unhealthy(node: str, cards: str) -> ConfigMapObject:
    """The ConfigMap that takes those cards out."""
    return msgspec.convert(
        {"metadata": {"name": f"unhealthy-gpu-{node}", "namespace": "kube-system"}, "data": {"gpus": cards}},
        type=ConfigMapObject,
    )


def a_cluster(*nodes: NodeObject, policy: str = "binpack") -> Cluster:
    """A cluster of these nodes."""
    cluster = Cluster(policy)
    for node in nodes:
        cluster.set_node(node)
    return cluster


def free(cluster: Cluster, node: str = "n1", card: int = 0) -> int:
    """GiB left on the card."""
    return int(cluster.board.room_memory[cluster.board.row_of[node], card]) // GIB


def assumed(cluster: Cluster, pod: PodObject, node: str = "n1") -> Placed:
    placed = cluster.assume(claim_of(cluster, pod), node)
    assert isinstance(placed, Placed)
    return placed


def bound(cluster: Cluster, pod: Json, placed: Placed) -> PodObject:
    """The Pod after the API server took the binding."""
    node = cluster.board.node(placed.grant.node)
    assert node is not None
    return as_pod(bound_json(pod, placed.claim, placed.grant, node, cluster.rules))
