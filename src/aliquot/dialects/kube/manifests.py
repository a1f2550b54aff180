"""The Pods that a manifest makes, as Kubernetes' controllers would make them.

Wrong shapes never raise: the first is returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from aliquot.dialects.kube.conditions import unselected
from aliquot.dialects.kube.shapes import mapping, sequence
from aliquot.dialects.kube.templates import is_custom, template_pods
from aliquot.dialects.pods import tolerates
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.refusal import Invalid

# More replicas than a cluster has Pods; keeps a manifest that says "replicas: 1000000000" from filling our memory.
MOST_PODS = 150_000
# The kinds that make Pods, and where each writes how many. A DaemonSet does not: it has one on every node it selects.
WORKLOADS = {
    "Deployment": "replicas",
    "ReplicaSet": "replicas",
    "StatefulSet": "replicas",
    "ReplicationController": "replicas",
    "Job": "parallelism",
    "DaemonSet": "",
    "CronJob": "",
}
# What the DaemonSet controller adds to its Pods.
_DAEMON_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{condition}", "operator": "Exists", "effect": effect}
    for condition, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
]


def expand(
    manifest: object, nodes: Iterable[NodeObject] = (), *, operators: bool = False
) -> list[JsonObject] | Invalid:
    """The Pods a manifest would make, in order.

    A Pod is itself; a Deployment, ReplicaSet, StatefulSet, ReplicationController or Job of any apiVersion is its
    replicas (a Job: its parallelism, no more than its completions; none while it is suspended), named NAME-0, NAME-1,
    ... and owned by it; a CronJob is the Pods of one run; a DaemonSet one Pod on each of `nodes` that it selects; a
    List is all of its items. With `operators`, the objects of other operators are the Pods of the templates in them
    (templates.py). Other kinds make no Pods: the empty list, as for an empty YAML document.
    """
    nodes = tuple(nodes)
    found: list[JsonObject] = []
    waiting = deque([("", manifest)])  # what is left to read, and its path
    while waiting:
        path, obj = waiting.popleft()
        if obj is None:
            continue
        if not isinstance(obj, dict):
            return Invalid(path.removesuffix(".") or "manifest", obj, "a Kubernetes object")
        kind = obj.get("kind")
        if not isinstance(kind, str):
            return Invalid(f"{path}kind", kind, "the kind of a Kubernetes object")
        made = _items(obj, kind, path) if kind.endswith("List") and "items" in obj else None
        if isinstance(made, Invalid):
            return made
        if made is not None:
            waiting.extendleft(reversed(made))
            continue
        pods: list[JsonObject] | Invalid = [obj] if kind == "Pod" else []
        if operators and is_custom(obj):
            pods = template_pods(obj, path)
        elif kind in WORKLOADS:
            pods = _pods_of(obj, kind, path, nodes)
        if isinstance(pods, Invalid):
            return pods
        found += pods
        if len(found) > MOST_PODS:
            return Invalid(path.removesuffix(".") or "manifest", len(found), f"no more than {MOST_PODS:,} Pods in all")
    return found


def _items(whole: JsonObject, kind: str, path: str) -> list[tuple[str, object]] | Invalid:
    items = whole["items"] if whole["items"] is not None else []
    if not isinstance(items, list):
        return Invalid(f"{path}items", items, "a list")
    of = kind.removesuffix("List")
    return [(f"{path}items[{index}].", _with_kind(item, of)) for index, item in enumerate(items)]


def _with_kind(item: object, kind: str) -> object:
    """The items of a PodList do not repeat that they are Pods."""
    return {"kind": kind, **item} if kind and isinstance(item, dict) else item


def _pods_of(workload: JsonObject, kind: str, path: str, nodes: Sequence[NodeObject]) -> list[JsonObject] | Invalid:
    if kind == "CronJob":
        job = job_of(workload, path)
        if isinstance(job, Invalid):
            return job
        pods = _replicas(job, "Job", f"{path}spec.jobTemplate.")
        return [] if isinstance(pods, list) and workload["spec"].get("suspend") else pods
    made = _replicas(workload, kind, path)
    return _on_every_node(made[0], nodes) if kind == "DaemonSet" and isinstance(made, list) else made


def job_of(cron_job: JsonView, path: str = "") -> JsonObject | Invalid:
    """The Job of one run of a CronJob, under its name."""
    metadata, spec = mapping(cron_job.get("metadata")), mapping(cron_job.get("spec"))
    name, suspend, template = metadata.get("name"), spec.get("suspend"), spec.get("jobTemplate")
    if not isinstance(name, str) or not name:
        return Invalid(f"{path}metadata.name", name, "a name")
    if suspend is not None and not isinstance(suspend, bool):
        return Invalid(f"{path}spec.suspend", suspend, "true or false")
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        return Invalid(f"{path}spec.jobTemplate", template, "a Job template with a spec")
    inner = {**mapping(template.get("metadata")), "name": name, "namespace": metadata.get("namespace") or "default"}
    return {**template, "apiVersion": "batch/v1", "kind": "Job", "metadata": inner}


def _on_every_node(pod: JsonObject, nodes: Sequence[NodeObject]) -> list[JsonObject]:
    """The Pod once for each node that the DaemonSet controller would choose, and bound to it."""
    spec = pod["spec"]
    tolerations = [*sequence(spec.get("tolerations")), *_DAEMON_TOLERATIONS]
    name = pod["metadata"]["name"].removesuffix("-0")
    made = []
    for node in nodes:
        taints = [taint for taint in node.spec.taints or () if taint.get("effect") in ("NoSchedule", "NoExecute")]
        tolerated = all(any(tolerates(toleration, taint) for toleration in tolerations) for taint in taints)
        if tolerated and not unselected(spec, node):
            bound = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_only(node)]}}
            affinity = {**mapping(spec.get("affinity")), "nodeAffinity": bound}
            metadata = {**pod["metadata"], "name": f"{name}-{node.metadata.name}"}
            made.append(
                {**pod, "metadata": metadata, "spec": {**spec, "tolerations": tolerations, "affinity": affinity}}
            )
    return made


def _only(node: NodeObject) -> JsonObject:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node.metadata.name]}]}


def _replicas(workload: JsonObject, kind: str, path: str) -> list[JsonObject] | Invalid:
    metadata, spec = workload.get("metadata"), workload.get("spec")
    if not isinstance(metadata, dict):
        return Invalid(f"{path}metadata", metadata, "a mapping with a name")
    if not isinstance(spec, dict):
        return Invalid(f"{path}spec", spec, "a mapping with a template")
    name, namespace = metadata.get("name"), metadata.get("namespace", "default")
    if not isinstance(name, str) or not name:
        return Invalid(f"{path}metadata.name", name, "a name")
    template = spec.get("template")
    inner = template.get("metadata") or {} if isinstance(template, dict) else None
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict) or not isinstance(inner, dict):
        return Invalid(f"{path}spec.template", template, "a Pod template with a spec")
    number = spec.get(WORKLOADS[kind]) if WORKLOADS[kind] else 1
    number = 1 if number is None else number
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST_PODS:
        return Invalid(f"{path}spec.{WORKLOADS[kind]}", number, f"a whole number, 0 to {MOST_PODS}")
    completions = spec.get("completions")
    if kind == "Job" and isinstance(completions, int):
        number = min(number, max(0, completions))
    suspend = spec.get("suspend")
    if kind == "Job" and suspend is not None and not isinstance(suspend, bool):
        return Invalid(f"{path}spec.suspend", suspend, "true or false")
    if kind == "Job" and suspend:
        number = 0
    owner = {"apiVersion": workload.get("apiVersion"), "kind": kind, "name": name, "controller": True}
    # What stands beside metadata and spec in the template is kept, so that a slip there is found like any other.
    return [
        {
            **template,
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**inner, "name": f"{name}-{index}", "namespace": namespace, "ownerReferences": [owner]},
        }
        for index in range(number)
    ]
