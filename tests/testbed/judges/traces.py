"""What a product could leave on a cluster: objects of any kind, marks on Nodes, and files, mounts, processes there.

Two looks are compared, so that whatever a cluster has by itself does not count. A kubelet keeps the capacity of a
resource whose plugin is gone for some minutes; what can still be had of it (allocatable) counts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from testbed.client import MERGE_PATCH, Refused
from testbed.cluster import Cluster
from testbed.processes import wait_until
from testbed.realnodes import house
from testbed.realnodes.nodes import RealNode

Traces = Mapping[str, str]  # what is there, in words -> where: a path of the API server, or of a file

_FLEETING = {"Event", "Endpoints", "EndpointSlice", "ComponentStatus", "Lease", "PodMetrics", "NodeMetrics", "Node"}
_OWN_LEASES = ("kube-system", "kube-node-lease")
_OWN_RESOURCES = ("cpu", "memory", "pods", "ephemeral-storage", "hugepages-")
_FOLDERS = (
    "/run/aliquot",
    "/run/cdi",
    "/etc/cdi",
    "/var/lib/aliquot",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/plugins_registry",
    "/run/.layers/etc/upper",  # all that was written to /etc and /var/lib and is on no file system of its own
    "/run/.layers/var/lib/upper",
)
_OWN_FILES = ("kubelet_internal_checkpoint", "kubelet.sock", "DEPRECATION")
_OWN_FOLDERS = ("/run/.layers/var/lib/upper/cni",)  # containerd's notes on Pod networks
_OWN_MOUNTS = ("/run/containerd", "/run/netns", "/var/run/netns", "/var/lib/kubelet/pods", "/var/lib/containerd")
_RUNTIMES_OWN = "containerd-shim"
_FIRST = ("webhookconfigurations", "deployments", "daemonsets", "statefulsets", "jobs", "replicasets", "pods")


def traces(cluster: Cluster) -> Traces:
    """Everything, now."""
    return {**_objects(cluster), **_marks(cluster), **_on_nodes(cluster)}


def _on_nodes(cluster: Cluster) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in cluster.nodes:
        found |= {**_files(node), **_mounts(node), **_processes(node), **_cgroups(node)}
    return found


def left(before: Traces, after: Traces) -> list[str]:
    """What is there now and was not, a sentence each."""
    return sorted(set(after) - set(before))


def until_gone(cluster: Cluster, before: Traces, seconds: float = 60.0) -> list[str]:
    """What is left after at most that time: controllers and kubelets need a moment to tidy up.

    Objects are looked at last, and only when nothing else is left: that is a hundred requests.
    """

    def gone() -> bool:
        return not any(left(before, look(cluster)) for look in (_marks, _on_nodes, traces))

    with contextlib.suppress(TimeoutError):
        wait_until(gone, seconds, "nothing is left", every=0.2)
        return []
    return left(before, traces(cluster))


def remove(cluster: Cluster, before: Traces) -> None:
    """By force, after a test that failed: the next one finds the cluster as it was."""
    after = traces(cluster)
    paths = [after[words] for words in left(before, after)]
    objects = [path for path in paths if path.startswith("/api")]
    for path in sorted(objects, key=lambda path: not any(kind in path for kind in _FIRST)):
        with contextlib.suppress(Refused, OSError):
            _unmark(cluster, path) if path.startswith("/api/v1/nodes/") else _delete(cluster, path)
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not left(before, _objects(cluster)), 60, "all objects are gone", every=0.5)
    for path in paths:
        if path.startswith("/proc/"):
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()


def _unmark(cluster: Cluster, path: str) -> None:
    name, field, key = path.removeprefix("/api/v1/nodes/").split("/", 2)
    body = {"metadata": {field: {key: None}}}
    cluster.plane.api("PATCH", f"/api/v1/nodes/{name}", body, content_type=MERGE_PATCH)


def _delete(cluster: Cluster, path: str) -> None:
    with contextlib.suppress(Refused):
        cluster.plane.api("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)
    cluster.plane.api("DELETE", path, {"gracePeriodSeconds": 1, "propagationPolicy": "Background"})


# The API server's


def _objects(cluster: Cluster) -> dict[str, str]:
    found: dict[str, str] = {}
    for version, resource in _kinds(cluster):
        base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        with contextlib.suppress(Refused):
            for item in cluster.plane.api("GET", f"{base}/{resource['name']}")["items"]:
                metadata = item["metadata"]
                space = metadata.get("namespace")
                if resource["kind"] == "Lease" and space in _OWN_LEASES and "aliquot" not in metadata["name"]:
                    continue
                where = f"/namespaces/{space}" if space else ""
                name = f"{space}/{metadata['name']}" if space else metadata["name"]
                path = f"{base}{where}/{resource['name']}/{metadata['name']}"
                found[f"{resource['kind']} {name}"] = path
    return found


def _kinds(cluster: Cluster) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every kind that can be listed, once, in the version the API server prefers."""
    api = cluster.plane.api
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in api("GET", "/apis")["groups"])]
    for version in versions:
        base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        try:
            resources = api("GET", base)["resources"]
        except Refused:  # of an API service that is gone
            continue
        for resource in resources:
            fleeting = resource["kind"] in _FLEETING - {"Lease"}
            if "list" in resource["verbs"] and "/" not in resource["name"] and not fleeting:
                yield version, resource


def _marks(cluster: Cluster) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in cluster.plane.api("GET", "/api/v1/nodes")["items"]:
        name, metadata = item["metadata"]["name"], item["metadata"]
        for field in ("labels", "annotations"):
            for key in metadata.get(field, {}):
                found[f"{field[:-1]} {key} of Node {name}"] = f"/api/v1/nodes/{name}/{field}/{key}"
        for finalizer in metadata.get("finalizers", ()):
            found[f"finalizer {finalizer} of Node {name}"] = ""
        for taint in item["spec"].get("taints", ()):
            found[f"taint {taint['key']} of Node {name}"] = ""
        for condition in item["status"]["conditions"]:
            found[f"condition {condition['type']} of Node {name}"] = ""
        for resource, amount in item["status"]["allocatable"].items():
            if not resource.startswith(_OWN_RESOURCES) and amount != "0":
                found[f"{resource} to be had of Node {name}"] = ""
    return found


# The nodes'


def _files(node: RealNode) -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in _FOLDERS:
        for path in _walk(node.path(folder)):
            there = f"{folder}/{path.relative_to(node.path(folder))}"
            with contextlib.suppress(OSError):
                if path.name not in _OWN_FILES and not there.startswith(_OWN_FOLDERS):
                    found[f"{_sort(path)} {there} on {node.name}"] = str(path)
    return found


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        yield from (Path(folder, name) for name in [*folders, *files])


def _sort(path: Path) -> str:
    mode = path.lstat().st_mode
    return "folder" if stat.S_ISDIR(mode) else "socket" if stat.S_ISSOCK(mode) else "file"


def _mounts(node: RealNode) -> dict[str, str]:
    lines = node.path("/proc/1/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in lines]
    return {f"mount {point} on {node.name}": "" for point in points if not point.startswith(_OWN_MOUNTS)}


def _processes(node: RealNode) -> dict[str, str]:
    """A process in a container is in the list itself; what holds a container is the runtime's.

    A containerd that is killed while it makes a sandbox forgets the shim it had started, which then waits for ever.
    """
    found = {command for _, command in node.processes() if command and _RUNTIMES_OWN not in command.split()[0]}
    return {f"process `{command}` on {node.name}": "" for command in found}


def _cgroups(node: RealNode) -> dict[str, str]:
    """Of Pods; kubelet and runtime make and remove them, but not while a process is in there."""
    found: dict[str, str] = {}
    for hierarchy in house.hierarchies():
        for folder in (hierarchy / node.cgroup).glob("kubepods/**/pod*"):
            found[f"cgroup {folder.name} on {node.name}"] = ""
    return found
