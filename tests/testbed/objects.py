"""Objects for the control plane: nodes by hand, Pods, and doing things to thousands of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from testbed.build import VERSION
from testbed.client import MERGE_PATCH, Client
from testbed.plane import ControlPlane
from testbed.processes import wait_until as wait_until

T = TypeVar("T")
R = TypeVar("R")
Amounts = Mapping[str, str | int]
Object = dict[str, Any]

FAT_BYTES = 6900  # what a Node of a real cluster weighs as JSON, with its conditions and images
_NOON = "2026-01-01T12:00:00Z"
_PATHS = {
    "Node": "/api/v1/nodes",
    "Namespace": "/api/v1/namespaces",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
}


def node(
    name: str,
    resources: Amounts | None = None,
    *,
    allocatable: Amounts | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    cpu: int = 96,
    memory: str = "768Gi",
    pods: int = 250,
) -> Object:
    """A ready Node with these extended resources, created with its status as kubelet does: no second write needed."""
    machine: Amounts = {"cpu": cpu, "memory": memory, "pods": pods, "ephemeral-storage": "1Ti"}
    capacity = _amounts({**machine, **(resources or {})})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": {"taints": [dict(taint) for taint in taints]} if taints else {},
        "status": {
            "capacity": capacity,
            "allocatable": _amounts({**capacity, **(allocatable or {})}),
            "conditions": [_condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
        },
    }


def nodes(count: int, resources: Amounts | None = None, *, prefix: str = "node", **more: Any) -> list[Object]:
    """That many alike: node-0000, node-0001, ..."""
    return [node(f"{prefix}-{index:04d}", resources, **more) for index in range(count)]


def fat(plain: Object, size: int = FAT_BYTES) -> Object:
    """The Node with the conditions, system information and images of a real one, until its JSON has `size` bytes."""
    calm = [
        _condition(kind, "False", f"KubeletHas{reason}", f"kubelet has {reason}")
        for kind, reason in (
            ("MemoryPressure", "SufficientMemory"),
            ("DiskPressure", "NoDiskPressure"),
            ("PIDPressure", "SufficientPID"),
        )
    ]
    status = {
        **plain["status"],
        "conditions": [*calm, *plain["status"]["conditions"]],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": "11111111-2222-3333-4444-555555555555",
            "containerRuntimeVersion": "containerd://2.1.4",
            "kernelVersion": "6.1.0-18-amd64",
            "kubeProxyVersion": "",
            "kubeletVersion": VERSION,
            "machineID": "0123456789abcdef0123456789abcdef",
            "operatingSystem": "linux",
            "osImage": "Debian GNU/Linux 12 (bookworm)",
            "systemUUID": "11111111-2222-3333-4444-555555555555",
        },
        "images": [],
    }
    whole = {**plain, "status": status}
    while (missing := size - _weight(whole)) > 0:
        number = len(status["images"])
        names = [
            f"registry.example/team/image-{number:03d}@sha256:{number:064x}",
            f"registry.example/team/image-{number:03d}:v1",
        ]
        if missing < 260:  # the last one is made to measure
            names = ["x" * max(1, missing - 40)]
        status["images"].append({"names": names, "sizeBytes": 100_000_000 + number})
    return whole


def pod(
    name: str,
    limits: Amounts | None = None,
    *,
    namespace: str = "default",
    scheduler: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    containers: Sequence[Object] | None = None,
    init: Sequence[Object] = (),
    tolerations: Sequence[Mapping[str, str]] = (),
    node: str | None = None,
    **spec: Any,
) -> Object:
    """A Pod of one container with these limits, or of the given containers (`container` makes one)."""
    said: Object = {
        "containers": list(containers) if containers is not None else [container("main", limits)],
        "initContainers": list(init) or None,
        "tolerations": [dict(toleration) for toleration in tolerations] or None,
        "schedulerName": scheduler,
        "nodeName": node,
        "terminationGracePeriodSeconds": 0,  # no kubelet is there to end it in grace
        **spec,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {key: value for key, value in said.items() if value is not None},
    }


def container(name: str, limits: Amounts | None = None, **more: Any) -> Object:
    return {"name": name, "image": "registry.example/pause", "resources": {"limits": _amounts(limits or {})}, **more}


# Doing


def create(plane: ControlPlane | Client, *objects: Object) -> list[Object]:
    """Creates them one after the other; what the API server made of them."""
    api = plane.api if isinstance(plane, ControlPlane) else plane
    return [api("POST", _collection(thing), thing) for thing in objects]


def bulk(things: Iterable[T], do: Callable[[T], R], *, threads: int = 8) -> list[R]:
    """`do` for each of them, by several threads; the results in order. The first error ends it."""
    with ThreadPoolExecutor(threads, thread_name_prefix="bulk") as pool:
        return list(pool.map(do, things))


def create_many(plane: ControlPlane, things: Iterable[Object], *, threads: int = 8) -> None:
    """Thousands of them, in no promised order."""
    bulk(things, lambda thing: plane.api("POST", _collection(thing), thing) and None, threads=threads)


def set_resources(plane: ControlPlane, name: str, resources: Mapping[str, str | int | None]) -> None:
    """The node has these amounts from now on (None: no such resource); others stay."""
    change = {key: None if amount is None else str(amount) for key, amount in resources.items()}
    body = {"status": {"capacity": change, "allocatable": change}}
    plane.api("PATCH", f"/api/v1/nodes/{name}/status", body, content_type=MERGE_PATCH)


def get_pod(plane: ControlPlane, name: str, namespace: str = "default") -> Object:
    found: Object = plane.api("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
    return found


def get_node(plane: ControlPlane, name: str) -> Object:
    found: Object = plane.api("GET", f"/api/v1/nodes/{name}")
    return found


def list_pods(plane: ControlPlane, namespace: str | None = None) -> list[Object]:
    where = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
    found: list[Object] = plane.api("GET", where)["items"]
    return found


def delete_pod(plane: ControlPlane, name: str, namespace: str = "default") -> None:
    """Delete the Pod at once: there is no kubelet to wait for."""
    plane.api("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})


def finish_pod(plane: ControlPlane, name: str, namespace: str = "default", *, phase: str = "Succeeded") -> None:
    """As kubelet would say it: the Pod's work is done, its cards are free."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
    plane.api("PATCH", path, {"status": {"phase": phase}}, content_type=MERGE_PATCH)


def bound_to(plane: ControlPlane, name: str, namespace: str = "default") -> str | None:
    """The node the Pod is bound to, None while it waits."""
    found: str | None = get_pod(plane, name, namespace)["spec"].get("nodeName")
    return found


def events_of(plane: ControlPlane, name: str, namespace: str = "default") -> list[tuple[str, str]]:
    """The events about the object of that name: reason and message."""
    params = {"fieldSelector": f"involvedObject.name={name}"}
    items = plane.api("GET", f"/api/v1/namespaces/{namespace}/events", params=params)["items"]
    return [(event.get("reason", ""), event.get("message", "")) for event in items]


def wait_bound(plane: ControlPlane, *names: str, namespace: str = "default", seconds: float = 120.0) -> dict[str, str]:
    """Where these Pods were put, once all are; the error tells who waits, and what the events say of the first."""
    where: dict[str, str] = {}

    def waiting() -> list[str]:
        where.update({p["metadata"]["name"]: p["spec"].get("nodeName", "") for p in list_pods(plane, namespace)})
        return [name for name in names if not where.get(name)]

    def events() -> object:
        left = waiting()
        return {"waiting": left, "events": events_of(plane, left[0], namespace) if left else []}

    wait_until(lambda: not waiting(), seconds, f"{len(names)} Pods bound", saw=events)
    return {name: where[name] for name in names}


def remove_all(plane: ControlPlane) -> None:
    """Every Pod, Node, webhook, Lease, Secret and event. Namespaces (20 s to end one) and roles stay."""
    now = {"gracePeriodSeconds": 0}
    for kind in ("validating", "mutating"):  # first: a webhook nobody answers would hold up the rest
        plane.api("DELETE", f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations")
    for space in _names(plane.api("GET", "/api/v1/namespaces")["items"]):
        for things in ("pods", "secrets", "events"):
            plane.api("DELETE", f"/api/v1/namespaces/{space}/{things}", now)
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases"
        plane.api("DELETE", leases, now, params={"labelSelector": "!apiserver.kubernetes.io/identity"})
    plane.api("DELETE", "/api/v1/nodes", now)
    wait_until(lambda: not list_pods(plane), 20, "all Pods are gone", saw=lambda: _names(list_pods(plane)))


def _names(things: Iterable[Object]) -> list[str]:
    return [thing["metadata"]["name"] for thing in things]


def _collection(thing: Object) -> str:
    return _PATHS[thing["kind"]].format(namespace=thing["metadata"].get("namespace", "default"))


def _amounts(said: Amounts) -> dict[str, str]:
    return {name: str(amount) for name, amount in said.items()}


def _condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    times = {"lastHeartbeatTime": _NOON, "lastTransitionTime": _NOON}
    return {"type": kind, "status": status, "reason": reason, "message": message, **times}


def _weight(thing: Object) -> int:
    return len(json.dumps(thing, separators=(",", ":")))
