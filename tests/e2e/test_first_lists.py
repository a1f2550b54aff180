"""The first lists of a real API server: as protobuf they are read as they are as JSON, in the same pages or whole."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec

from aliquot.adapters.kubernetes.kube import Kube, find_server
from aliquot.adapters.kubernetes.listing import request_pages
from kit.clusters.gowriting import Nodes, Pods, forget_unwritten
from testbed import objects
from testbed.client import MERGE_PATCH
from testbed.plane import ControlPlane
from testbed.programs.product import AliquotScheduler

PODS = "/api/v1/namespaces/default/pods"


def _held_by(container: str, cpu: str) -> dict[str, Any]:
    about = {"name": container, "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    return {**about, "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}, "state": {"waiting": {"reason": "x"}}}


STATUS = {
    "phase": "Running",
    "startTime": "2026-02-28T23:59:59Z",
    "nominatedNodeName": "n2",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": '0/3 nodes: "größer"\t\\o/'},
        # Only with this one the lists as protobuf have what containers hold.
        {"type": "PodResizePending", "status": "True", "reason": "Infeasible"},
    ],
    "containerStatuses": [_held_by("main", "250m"), _held_by("second", "1")],
    "initContainerStatuses": [_held_by("first", "2"), _held_by("side", "10m")],
    "resourceClaimStatuses": [{"name": "one", "resourceClaimName": "p-one-x7"}, {"name": "none"}],
    "extendedResourceClaimStatus": {
        "resourceClaimName": "extended",
        "requestMappings": [{"containerName": "main", "resourceName": "aliyun.com/gpu-mem", "requestName": "r"}],
    },
}

# What the Pod with all the rest cannot have: it waits, it is not going, has a name, no RuntimeClass and no PodGroup.
ABSENT = {"node_name", "deletion_timestamp", "generate_name", "overhead", "scheduling_group"}


def rich_pod() -> dict[str, Any]:
    """With every field that is read, and many that are not."""
    asked = {"limits": {"aliyun.com/gpu-mem": "4", "cpu": "0.5", "memory": "1.5Gi"}, "requests": {"cpu": "100m"}}
    field = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    other = {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    main = objects.container("main") | {
        "resources": {**asked, "claims": [{"name": "one"}, {"name": "two", "request": "gpu"}]},
        "env": [field, other, {"name": "PLAIN", "value": "x"}],
        "securityContext": {"runAsUser": 0, "allowPrivilegeEscalation": False},
        "livenessProbe": {"exec": {"command": ["true"]}},
    }
    expression = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return objects.pod(
        "rich",
        labels={"app": "x", "empty": ""},
        annotations={"large": 'ä"\\' * 20_000, "aliquot.dev/grant": '{"v":1}', "lines": "a\nb\r\n\t\u2028\x7f"},
        containers=[main, objects.container("second", {"cpu": 1})],
        init=[objects.container("first"), objects.container("side") | {"restartPolicy": "Always"}],
        tolerations=[
            {"operator": "Exists"},
            {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 0},  # type: ignore[dict-item]
        ],
        scheduler="nobody",
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        schedulingGates=[{"name": "example.com/wait"}],
        resourceClaims=[
            {"name": "one", "resourceClaimTemplateName": "t"},
            {"name": "two", "resourceClaimName": "c"},
            {"name": "none", "resourceClaimTemplateName": "t"},
        ],
        securityContext={"runAsUser": 1000, "fsGroup": 5},
        hostUsers=True,
        resources={"limits": {"memory": "8Gi"}},
        preemptionPolicy="PreemptLowerPriority",
        volumes=[{"name": "v", "emptyDir": {}}],
        terminationGracePeriodSeconds=30,
    )


def fill(plane: ControlPlane) -> None:
    added = {"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}
    taints = (added, {"key": "e", "effect": "NoSchedule"})
    plane.api("POST", "/api/v1/nodes", objects.fat(objects.node("n1", {"qgpu": 8}, taints=taints)))
    plane.api("POST", "/api/v1/nodes", objects.node("n2") | {"spec": {"unschedulable": True}})
    plane.api("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n3"}})
    owner = plane.api("GET", "/api/v1/nodes/n1")["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": owner, "controller": True}
    pod = rich_pod()
    pod["metadata"] |= {"ownerReferences": [reference], "finalizers": ["example.com/keep"]}
    plane.api("POST", PODS, pod)
    plane.api("PATCH", f"{PODS}/rich/status", {"status": STATUS}, content_type=MERGE_PATCH)
    plane.api("POST", PODS, objects.pod("bound", node="n2"))
    plane.api("POST", PODS, objects.pod("priority", priorityClassName="system-node-critical"))
    going = objects.pod("going", node="n2")
    going["metadata"] |= {"finalizers": ["example.com/keep"]}
    plane.api("POST", PODS, going)
    plane.api("DELETE", f"{PODS}/going", {"gracePeriodSeconds": 0})


async def listed(kube: Kube, path: str, form: Any, *, protobuf: bool) -> tuple[int, list[Any]]:
    """How many pages, and all objects."""
    pages, count, found = request_pages(kube, path, limit=2, protobuf=protobuf), 0, []
    while (raw := await pages.take()) is not None:
        read = msgspec.json.decode(raw, type=form)
        assert read.metadata.resource_version
        assert protobuf is not raw.startswith(b'{"kind"')  # what we make of protobuf says no more than is read
        count += 1
        found += read.items
    return count, found


# The whole list at once, in pages of a few hundred bytes; a page that is requested in the ordinary way fails.
RECEIVING = """
import asyncio, json, sys
from functools import partial
from pathlib import Path
from aliquot.adapters.kubernetes import receiving
from aliquot.adapters.kubernetes.kube import find_server
from aliquot.adapters.kubernetes.listing import request_pages

receiving.ListCutter = partial(receiving.ListCutter, 300)
received = receiving.start_receiving(find_server(Path(sys.argv[1])), [], sys.argv[2], limit=2)

async def main():
    pages, found, count = request_pages(None, sys.argv[2], limit=2, protobuf=True, received=received), [], 0
    while (raw := await pages.take()) is not None:
        found += [item["metadata"]["name"] for item in json.loads(raw)["items"]]
        count += 1
    assert count > 1
    print(json.dumps(found))

asyncio.run(main())
"""


def received(plane: ControlPlane, path: str) -> list[str]:
    """The names in the list that another process receives as a whole."""
    words = [sys.executable, "-c", RECEIVING, str(plane.kubeconfig), path]
    names: list[str] = json.loads(subprocess.run(words, capture_output=True, timeout=60, check=True).stdout)
    return names


def test_lists_as_protobuf_are_read_as_those_in_json(clean: ControlPlane) -> None:
    fill(clean)
    try:

        async def scene() -> None:
            async with Kube(find_server(clean.kubeconfig)) as kube:
                for path, form, names in (
                    ("/api/v1/nodes", Nodes, {"n1", "n2", "n3"}),
                    ("/api/v1/pods", Pods, {"rich", "bound", "priority", "going"}),
                ):
                    for _ in range(5):  # until no controller writes in between
                        count, items = await listed(kube, path, form, protobuf=False)
                        as_json = deepcopy(items)
                        for item in items:
                            forget_unwritten(item)
                        as_protobuf = await listed(kube, path, form, protobuf=True)
                        if as_protobuf == (count, items):
                            break
                    assert as_protobuf == (count, items)
                    assert count > 1
                    assert names <= {one.metadata.name for one in items}
                    assert received(clean, path) == [item.metadata.name for item in items]
                rich = next(pod for pod in as_json if pod.metadata.name == "rich")
                parts = (rich.metadata, rich.spec, rich.status)
                empty = {key for part in parts for key in part.__struct_fields__ if getattr(part, key) in (None, "")}
                assert empty == ABSENT

        asyncio.run(asyncio.wait_for(scene(), 60))
    finally:
        for name in ("rich", "going"):
            clean.api("PATCH", f"{PODS}/{name}", {"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)


def test_the_scheduler_reads_its_first_lists_as_protobuf(
    clean: ControlPlane, aliquot_scheduler: Callable[..., AliquotScheduler]
) -> None:
    clean.api("POST", "/api/v1/nodes", objects.node("n1", {"aliyun.com/gpu-mem": 184, "aliyun.com/gpu-count": 8}))
    ours = aliquot_scheduler()
    assert "list_not_protobuf" not in ours.log
