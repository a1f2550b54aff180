"""Small Kubernetes objects for tests, so that only what matters shows."""

from __future__ import annotations

import json
from typing import Any

MEM = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"
QGPU_MEMORY = "tke.cloud.tencent.com/qgpu-memory"
QGPU_CORE = "tke.cloud.tencent.com/qgpu-core"
QGPU_GREEDY = "tke.cloud.tencent.com/qgpu-core-greedy"
APP_CLASS = "tke.cloud.tencent.com/app-class"
T9K_CARDS = "tensorstack.dev/nvidia-gpu"
T9K_PERCENT = "tensorstack.dev/nvidia-gpu-percent"
T9K_NODE = "tensorstack.dev/nvidia-gpu-node"

QGPU = {"qgpu-device-enable": "enable"}
MIXED = {**QGPU, "mixed-qgpu-enable": "enable"}
WHOLE_BESIDE_QGPU = {"aliquot.dev/mix-qgpu-and-whole-cards": "true"}
XGN = {"sched.tensorstack.dev/accelerator": "nvidia-gpu", "sched.tensorstack.dev/node-alloc-mode": "xgn"}
SGN = {"sched.tensorstack.dev/accelerator": "nvidia-gpu", "sched.tensorstack.dev/node-alloc-mode": "sgn"}

Json = dict[str, Any]


def a_node(
    name: str = "n1",
    *cards_gib: int,
    labels: dict[str, str] | None = None,
    capacity: Json | None = None,
    **spec: Any,
) -> Json:
    """A Node whose agent found cards of those sizes; with none, one that has only its capacity to tell."""
    metadata: Json = {"name": name, "labels": labels or {}}
    if cards_gib:
        cards = [{"index": index, "memory_mib": size * 1024} for index, size in enumerate(cards_gib)]
        metadata["annotations"] = {"aliquot.dev/inventory": json.dumps({"v": 1, "cards": cards})}
    return {"kind": "Node", "metadata": metadata, "spec": spec, "status": {"capacity": capacity or {}}}


def gpushare_node(name: str = "n1", *cards_gib: int, **more: Any) -> Json:
    """A Node that serves gpushare, with one card of 16 GiB when none is given."""
    return a_node(name, *(cards_gib or (16,)), labels={"gpushare": "true", **more.pop("labels", {})}, **more)


def a_container(name: str = "main", limits: Json | None = None, *, requests: Json | None = None) -> Json:
    """A container that asks for that much."""
    return {"name": name, "resources": {"limits": limits or {}, "requests": requests or {}}}


def a_pod(
    name: str = "p",
    *containers: Json,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    init: list[Json] | None = None,
    on: str | None = None,
    owner: str | None = None,
    status: Json | None = None,
    **spec: Any,
) -> Json:
    """A Pod of these containers; bound to the node `on`."""
    metadata: Json = {"name": name, "annotations": annotations or {}, "labels": labels or {}}
    if owner:
        kind, owner_name = owner.split("/")
        metadata["ownerReferences"] = [{"kind": kind, "name": owner_name, "controller": True}]
    if on:
        metadata["uid"] = f"uid-of-{name}"
        spec["nodeName"] = on
    if init:
        spec["initContainers"] = init
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": list(containers), **spec}, "status": status}


def asking(limits: Json, name: str = "p", **more: Any) -> Json:
    """A Pod of one container with those limits."""
    return a_pod(name, a_container("main", limits), **more)


def gpushare_pod(name: str = "p", gib: int = 1, **more: Any) -> Json:
    """A Pod that asks for that much of a card in gpushare's dialect."""
    return a_pod(name, a_container("main", {MEM: gib}), **more)


def on_card(name: str, gib: int, card: int, node: str = "n1", **more: Any) -> Json:
    """A gpushare Pod that runs on that card."""
    return gpushare_pod(name, gib, on=node, annotations={"ALIYUN_COM_GPU_MEM_IDX": str(card)}, **more)


def replicas(number: int, pod: Json, kind: str = "Deployment", name: str = "web") -> Json:
    """A workload of that many such Pods."""
    template = {"metadata": {}, "spec": pod["spec"]}
    return {"kind": kind, "metadata": {"name": name}, "spec": {"replicas": number, "template": template}}
