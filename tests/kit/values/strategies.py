"""Kubernetes objects of any kind and shape, for property tests.

`pods` and `nodes` are what an API server would take, in all dialects and none, with mistakes that only we see.
`mutated` puts anything anywhere into a valid value. `clusters` are a handful of Nodes, Pods and ConfigMaps that have to
do with each other: their numbers are small, so that Pods and cards often just fit or just do not.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from aliquot.dialects import render_inventory
from aliquot.model.device import Card
from kit.values.anyjson import any_json
from kit.values.manifests import (
    APP_CLASS,
    COUNT,
    MEM,
    MIXED,
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    SGN,
    T9K_CARDS,
    T9K_NODE,
    T9K_PERCENT,
    WHOLE_BESIDE_QGPU,
    XGN,
    Json,
)

# --- any Pod and Node that an API server would take ------------------------------------------------------------------

RESOURCES = (MEM, COUNT, QGPU_MEMORY, QGPU_CORE, QGPU_GREEDY, T9K_CARDS, T9K_PERCENT, T9K_NODE)
words = st.text("abcdefg-0123456789", min_size=1, max_size=6)
quantities = st.sampled_from(["1", "2", "4", "8", "100", "250m", "1.5", "64Mi", "2Gi", "1k"])
counts = st.sampled_from(["1", "2", "4", "5", "30", "100", "150", "1k", "0", "5Gi"])
amounts = st.dictionaries(st.sampled_from(["cpu", "memory"]), quantities, max_size=2)
# Most Pods speak one dialect with one or two words; some speak several, or none.
ours = st.sampled_from(
    [
        (),
        *((MEM,), (QGPU_MEMORY,), (T9K_CARDS,), (T9K_PERCENT,), (T9K_NODE,)),
        *((QGPU_MEMORY, QGPU_CORE), (QGPU_MEMORY, QGPU_GREEDY), (MEM, COUNT), (MEM, T9K_CARDS)),
    ]
)


def optional(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The value, or null."""
    return st.none() | value


@st.composite
def resources(draw: st.DrawFn, asked: tuple[str, ...]) -> Json:
    limits = {**draw(amounts), **{resource: draw(counts) for resource in asked}}
    requests = draw(st.just(None) | st.just(limits) | amounts)
    return {"limits": limits or None, "requests": requests}


@st.composite
def containers(draw: st.DrawFn, asked: tuple[str, ...]) -> Json:
    one: Json = {"name": draw(words), "image": "x", "ports": [{"containerPort": 80}]}
    restart = draw(st.sampled_from([None, None, "Always", "Never"]))
    if restart:
        one["restartPolicy"] = restart
    if draw(st.integers(0, 4)):
        one["resources"] = draw(resources(asked if draw(st.integers(0, 2)) else ()))
    return one


@st.composite
def pods(draw: st.DrawFn) -> Json:
    asked = draw(ours)
    marks = st.dictionaries(
        st.sampled_from([COUNT, APP_CLASS, "app"]), st.sampled_from(["2", "1", "online", "offline", "x"]), max_size=2
    )
    metadata: Json = {
        "name": draw(words),
        "uid": draw(words),
        "resourceVersion": "7",
        "creationTimestamp": draw(st.sampled_from([None, "2026-11-15T00:00:00Z"])),
        "labels": draw(optional(marks)),
        "annotations": draw(optional(marks)),
        "managedFields": [{"manager": "kubectl"}],
    }
    if draw(st.booleans()):
        metadata["namespace"] = draw(words)
    if draw(st.booleans()):
        owner = {"kind": draw(st.sampled_from(["DaemonSet", "ReplicaSet"])), "name": draw(words), "apiVersion": "v1"}
        metadata["ownerReferences"] = [owner, {**owner, "controller": draw(st.booleans())}]
    if draw(st.integers(0, 5)) == 0:
        metadata |= {"name": "", "uid": "", "generateName": f"{draw(words)}-"}
    spec: Json = {
        "containers": draw(st.lists(containers(asked), min_size=1, max_size=3)),
        "tolerations": [{"operator": "Exists"}],
    }
    if draw(st.booleans()):
        spec["initContainers"] = draw(optional(st.lists(containers(asked), max_size=2)))
    if draw(st.booleans()):
        spec["overhead"] = draw(optional(amounts))
    if draw(st.booleans()):
        spec["resources"] = draw(optional(resources(())))
    if draw(st.booleans()):
        spec["nodeName"] = draw(st.sampled_from(["", "n1"]))
    status = draw(optional(st.fixed_dictionaries({"phase": st.sampled_from([None, "Running", "Succeeded", "Failed"])})))
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


cards = st.lists(
    st.builds(Card, st.integers(0, 7), st.integers(1, 10**5), st.just("") | words, st.sampled_from(["", "A10"])),
    max_size=4,
    unique_by=(lambda card: card.index, lambda card: card.uuid or card.index),
)


@st.composite
def nodes(draw: st.DrawFn) -> Json:
    labels: dict[str, str] = {}
    for more in (
        {"gpushare": "true"},
        MIXED,
        XGN,
        SGN,
        WHOLE_BESIDE_QGPU,
        {"tke.cloud.tencent.com/qgpu-schedule-policy": "fs"},
    ):
        labels |= more if draw(st.booleans()) else {}
    choices = st.dictionaries(st.sampled_from([*RESOURCES, "cpu", "memory"]), counts, max_size=4)
    metadata: Json = {"name": draw(words), "labels": draw(optional(st.just(labels)))}
    if draw(st.booleans()):
        metadata["annotations"] = render_inventory(draw(cards)) | ({} if draw(st.booleans()) else {"other": "x"})
    return {
        "kind": "Node",
        "metadata": metadata,
        "spec": {"podCIDR": "10.0.0.0/24", "taints": draw(st.sampled_from([None, [{"key": "a"}]]))},
        "status": {"capacity": draw(optional(choices)), "allocatable": draw(optional(choices)), "images": []},
    }


# --- any JSON --------------------------------------------------------------------------------------------------------

OUR_WORDS = [
    "tke.cloud.tencent.com/qgpu-core",
    "tke.cloud.tencent.com/qgpu-memory",
    "tke.cloud.tencent.com/qgpu-core-greedy",
    "tke.cloud.tencent.com/app-class",
    "tke.cloud.tencent.com/qgpu-schedule-policy",
    "tensorstack.dev/nvidia-gpu",
    "tensorstack.dev/nvidia-gpu-percent",
    "tensorstack.dev/nvidia-gpu-node",
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-count",
    "aliquot.dev/grant",
    "aliquot.dev/inventory",
    "sched.tensorstack.dev/node-alloc-mode",
    *("metadata", "spec", "status", "labels", "annotations", "containers", "resources", "limits", "capacity", "name"),
    *("offline", "enable", "xgn", "1", "100", "1e999", "-1", "5Gi", "16k", "\ud800", '{"v":1,"cards":[]}'),
]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**70),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(OUR_WORDS),
)
anything = any_json(scalars, st.sampled_from(OUR_WORDS) | st.text(max_size=3))


def places_of(value: object) -> list[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and its key there."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in list(keys) for place in ((value, key), *places_of(value[key]))]  # type: ignore[index]


@st.composite
def mutated(draw: st.DrawFn, valid: st.SearchStrategy[Any], least: int = 1) -> Any:
    """A valid value with up to three places of it replaced by anything."""
    value = copy.deepcopy(draw(valid))
    for _ in range(draw(st.integers(least, 3))):
        places = places_of(value)
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        holder[key] = draw(anything)
    return value


# --- whole clusters --------------------------------------------------------------------------------------------------

NODE_NAMES = ("n1", "n2", "n3")
_TAINT = {"key": "team", "value": "ml", "effect": "NoSchedule"}
_XGN_TAINT = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}
_ASKS: list[Json] = [
    *({MEM: amount} for amount in ("1", "6", "16", "17", "5Gi")),
    {MEM: "6", COUNT: "2"},
    *({QGPU_MEMORY: amount} for amount in ("2", "9")),
    *({QGPU_MEMORY: "4", QGPU_CORE: core} for core in ("30", "100")),
    {QGPU_MEMORY: "3", QGPU_GREEDY: "50"},
    *({T9K_CARDS: count} for count in ("1", "2")),
    *({T9K_PERCENT: percent} for percent in ("30", "80")),
    *({T9K_NODE: "1"}, {MEM: "1", T9K_CARDS: "1"}, {}),
]


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """What `kubectl get` would print, and some Pods that somebody is about to create."""

    nodes: list[Any]
    pods: list[Any]
    config_maps: list[Any]
    new: list[Json]

    @property
    def all(self) -> list[Any]:
        """Everything that is there."""
        return [*self.config_maps, *self.nodes, *self.pods]


@st.composite
def cluster_nodes(draw: st.DrawFn, name: str) -> Json:
    """A node that may be cordoned, tainted, not ready, without its agent, or break a rule."""
    labels: dict[str, str] = {"zone": draw(st.sampled_from("ab"))}
    for more in ({"gpushare": "true"}, MIXED, WHOLE_BESIDE_QGPU, draw(st.sampled_from([XGN, SGN]))):
        labels |= more if draw(st.booleans()) else {}
    sizes = draw(st.lists(st.sampled_from([8, 16]), max_size=3))
    annotations: dict[str, str] = {}
    capacity = {"cpu": "4", "memory": "8Gi"} if draw(st.booleans()) else {}
    if draw(st.integers(0, 3)):
        cards = [
            Card(at, gib * 1024, f"{name}-{at}", healthy=draw(st.integers(0, 5)) > 0) for at, gib in enumerate(sizes)
        ]
        annotations |= render_inventory(cards)
    else:
        capacity |= {MEM: str(sum(sizes)), COUNT: str(len(sizes))}
    if draw(st.integers(0, 3)) == 0:
        annotations["aliquot.dev/agent"] = draw(st.sampled_from(["away", "0.1.0"]))
    if draw(st.integers(0, 9)) == 0:
        labels["sched.tensorstack.dev/node-alloc-mode"] = "both"  # breaks a rule
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {
            "unschedulable": draw(st.integers(0, 5)) == 0,
            "taints": draw(st.sampled_from([None, None, [_TAINT], [_XGN_TAINT]])),
        },
        "status": {
            "capacity": capacity,
            "conditions": [{"type": "Ready", "status": draw(st.sampled_from(["True", "True", "True", "False"]))}],
        },
    }


@st.composite
def cluster_pods(draw: st.DrawFn, name: str, *, new: bool = False) -> Json:
    """A Pod that waits or is on a node, with or without an annotation that names its cards; a `new` one only waits."""
    asks = draw(st.sampled_from(_ASKS))
    number = draw(st.sampled_from([1, 1, 1, 2]))
    requests = draw(st.sampled_from([{}, {}, {"cpu": "1"}, {"memory": "6Gi"}]))
    amounts = {"limits": asks, "requests": {**asks, **requests}}
    metadata: Json = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": {}}
    if draw(st.integers(0, 2)) == 0:
        metadata["annotations"][APP_CLASS] = draw(st.sampled_from(["online", "offline", "other"]))
    owner = draw(st.sampled_from([None, None, "ReplicaSet", "DaemonSet"]))
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "owner", "controller": True}]
    spec: Json = {
        "containers": [{"name": f"c{at}", "resources": amounts} for at in range(number)],
        "tolerations": draw(st.sampled_from([[], [{"operator": "Exists"}]])),
        "nodeSelector": draw(st.sampled_from([None, None, {"zone": "a"}])),
    }
    if new:
        return {"kind": "Pod", "metadata": metadata, "spec": spec}
    node = draw(st.sampled_from([None, *NODE_NAMES, "gone"]))
    if node:
        spec["nodeName"] = node
        card = draw(st.integers(0, 3))
        grant = {"name": "c0", "cards": [{"index": card, "memory_mib": draw(st.sampled_from([1024, 6144]))}]}
        ours = json.dumps({"v": 1, "node": node, "containers": [grant]})
        choices = [{}, {"ALIYUN_COM_GPU_MEM_IDX": str(card)}, {"aliquot.dev/grant": ours}, {"aliquot.dev/grant": "{"}]
        metadata["annotations"] |= draw(st.sampled_from(choices))
    phase = draw(st.sampled_from([None, "Running", "Running", "Succeeded"]))
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


@st.composite
def clusters(draw: st.DrawFn) -> ClusterObjects:
    """Nodes, Pods and ConfigMaps, some of them of a shape that no API server would send."""
    names = draw(st.lists(st.sampled_from(NODE_NAMES), min_size=1, unique=True))
    nodes: list[Any] = [draw(cluster_nodes(name)) for name in names]
    pods: list[Any] = [draw(cluster_pods(f"p{at}")) for at in range(draw(st.integers(0, 5)))]
    maps: list[Any] = [
        {
            "kind": "ConfigMap",
            "metadata": {"name": f"unhealthy-gpu-{name}", "namespace": "kube-system"},
            "data": {"gpus": draw(st.sampled_from(["0", "0,2", "", "first"]))},
        }
        for name in draw(st.lists(st.sampled_from(NODE_NAMES), max_size=2, unique=True))
    ]
    for objects in (nodes, pods, maps):
        if objects and draw(st.integers(0, 3)) == 0:
            at = draw(st.integers(0, len(objects) - 1))
            kind = objects[at]["kind"]
            broken = draw(mutated(st.just(objects[at])))
            objects[at] = {**broken, "kind": kind} if isinstance(broken, dict) else broken
    new = [draw(cluster_pods(f"new{at}", new=True)) for at in range(draw(st.integers(1, 3)))]
    return ClusterObjects(nodes, pods, maps, new)
