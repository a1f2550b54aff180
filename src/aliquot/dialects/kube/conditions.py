"""kube-scheduler's own conditions for a Pod on a node, and the Pods that a manifest makes, for commands that run
without a kube-scheduler.

Wrong shapes in a manifest never raise: a condition that cannot be read is not met.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from aliquot.dialects.pods import Json, tolerates
from aliquot.dialects.t9k import missing_tolerations, taints
from aliquot.dialects.wire.objects import NodeObject, NodeSpec
from aliquot.model.claim import Claim
from aliquot.model.refusal import Invalid, Reason, Refusal, show

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
# These taints say what the node's Ready condition says already.
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

# More replicas than a cluster has Pods; keeps a manifest that says "replicas: 1000000000" from filling our memory.
MOST_PODS = 150_000


def mapping(value: object) -> Json:
    """The mapping that is there; anything else is an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> list[Any]:
    """The list that is there; anything else is an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """The text that is there, or any other JSON in a few words."""
    return value if isinstance(value, str) else show(value)


def closing_taints(spec: NodeSpec) -> tuple[Json, ...]:
    """The taints that keep Pods from a node unless they tolerate them; a cordon is one."""
    found = [taint for taint in spec.taints or () if taint.get("effect") in ("NoSchedule", "NoExecute")]
    cordoned = spec.unschedulable and not any(taint.get("key") == _UNSCHEDULABLE["key"] for taint in found)
    return (*found, _UNSCHEDULABLE) if cordoned else tuple(found)


def untolerated(taints: Iterable[Json], tolerations: Iterable[object] | None) -> str | None:
    """The first of these taints that no toleration covers, as kubectl writes it; None: all are tolerated."""
    wanted = list(tolerations or ())
    for taint in taints:
        if not any(tolerates(toleration, taint) for toleration in wanted):
            return f"{as_text(taint.get('key'))}={as_text(taint.get('value') or '')}:{as_text(taint.get('effect'))}"
    return None


def node_refusals(pod: object, claim: Claim, node: NodeObject) -> list[Refusal]:
    """Why kube-scheduler would keep the Pod (a manifest) from the node; empty where it would not.

    Counted as they will be once our controller and webhook have seen them: the node with the T9k taint its labels call
    for, the Pod with the tolerations it gets by itself. Selectors are `never`; a taint or a sick node may pass.
    """
    spec = mapping(mapping(pod).get("spec"))
    tolerations = [*sequence(spec.get("tolerations")), *missing_tolerations(pod, claim)]
    return [
        *_unschedulable(node, tolerations),
        *_not_ready(node),
        *_taints(node, tolerations),
        *unselected(spec, node),
    ]


def _unschedulable(node: NodeObject, tolerations: list[Any]) -> list[Refusal]:
    if not node.spec.unschedulable:
        return []
    if any(tolerates(toleration, _UNSCHEDULABLE) for toleration in tolerations):
        return []
    return [Refusal(node.metadata.name, None, Reason.UNSCHEDULABLE, None, "cordoned", never=False)]


def _not_ready(node: NodeObject) -> list[Refusal]:
    ready = node.ready
    return [] if ready == "True" else [Refusal(node.metadata.name, None, Reason.NOT_READY, "True", ready, never=False)]


def _taints(node: NodeObject, tolerations: list[Any]) -> list[Refusal]:
    repeated = set(_NOT_READY) if node.ready != "True" else set()
    if node.spec.unschedulable:
        repeated.add(_UNSCHEDULABLE["key"])
    refusals = []
    present = node.spec.taints or []
    ours = taints(node.metadata.labels or {}, present)
    for taint in [*(taint for taint in present if taint not in ours.remove), *ours.add]:
        if taint.get("effect") not in ("NoSchedule", "NoExecute") or as_text(taint.get("key")) in repeated:
            continue
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            shown = f"{as_text(taint.get('key'))}={as_text(taint.get('value') or '')}:{taint['effect']}"
            refusals.append(Refusal(node.metadata.name, None, Reason.TAINT, None, shown, never=False))
    return refusals


def unselected(spec: Json, node: NodeObject) -> list[Refusal]:
    """Why nodeName, nodeSelector or node affinity keep the Pod from the node."""
    name = node.metadata.name
    labels, fields = node.metadata.labels or {}, {"metadata.name": name}
    refusals = []
    wanted_name = spec.get("nodeName")
    if isinstance(wanted_name, str) and wanted_name and wanted_name != name:
        refusals.append(Refusal(name, None, Reason.SELECTOR, f"spec.nodeName={wanted_name}", name, never=True))
    for key, value in mapping(spec.get("nodeSelector")).items():
        if key not in labels or labels[key] != value:
            had = f"{as_text(key)}={as_text(labels[key])}" if key in labels else None
            refusals.append(Refusal(name, None, Reason.SELECTOR, f"{as_text(key)}={as_text(value)}", had, never=True))
    affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        terms = [mapping(term) for term in sequence(mapping(required).get("nodeSelectorTerms"))]
        if not any(_term_matches(term, labels, fields) for term in terms):
            wanted = " or ".join(_term_text(term) for term in terms) or "nothing at all"
            refusals.append(Refusal(name, None, Reason.SELECTOR, wanted, None, never=True))
    return refusals


def selects_node(selector: object, name: str, labels: Mapping[str, object]) -> bool:
    """Whether a NodeSelector, as any JSON, selects the node: one of its terms is enough."""
    terms = (mapping(term) for term in sequence(mapping(selector).get("nodeSelectorTerms")))
    return any(_term_matches(term, dict(labels), {"metadata.name": name}) for term in terms)


def _term_matches(term: Json, labels: Json, fields: Json) -> bool:
    """All of a term must hold; a term that asks for nothing selects nothing."""
    expressions, on_fields = sequence(term.get("matchExpressions")), sequence(term.get("matchFields"))
    if not expressions and not on_fields:
        return False
    return all(holds(expression, labels) for expression in expressions) and all(
        holds(field, fields) for field in on_fields
    )


def _whole_number(value: object) -> int | None:
    try:
        return int(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _compare(value: object, values: list[Any], larger: Callable[[int, int], bool]) -> bool:
    left, right = _whole_number(value), _whole_number(values[0]) if len(values) == 1 else None
    return left is not None and right is not None and larger(left, right)


_OPERATORS: dict[str, Callable[[bool, object, list[Any]], bool]] = {
    "In": lambda present, value, values: present and value in values,
    "NotIn": lambda present, value, values: not present or value not in values,
    "Exists": lambda present, value, values: present,
    "DoesNotExist": lambda present, value, values: not present,
    "Gt": lambda present, value, values: present and _compare(value, values, int.__gt__),
    "Lt": lambda present, value, values: present and _compare(value, values, int.__lt__),
}


def holds(expression: object, labels: Json) -> bool:
    """Whether the labels meet an expression of a selector."""
    condition = mapping(expression)
    key, operator = condition.get("key"), condition.get("operator")
    if not isinstance(key, str) or not isinstance(operator, str) or operator not in _OPERATORS:
        return False
    return _OPERATORS[operator](key in labels, labels.get(key), sequence(condition.get("values")))


def _term_text(term: Json) -> str:
    conditions = [*sequence(term.get("matchExpressions")), *sequence(term.get("matchFields"))]
    return " and ".join(map(condition_text, conditions)) or "a term that selects nothing"


def condition_text(expression: object) -> str:
    """An expression of a selector, in words."""
    condition = mapping(expression)
    values = ", ".join(as_text(value) for value in sequence(condition.get("values")))
    shown = f"{as_text(condition.get('key'))} {as_text(condition.get('operator'))}"
    return f"{shown} [{values}]" if values else shown


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


def expand(manifest: object, nodes: Iterable[NodeObject] = ()) -> list[dict[str, Any]] | Invalid:
    """The Pods a manifest would make, in order.

    A Pod is itself; a Deployment, ReplicaSet, StatefulSet, ReplicationController or Job of any apiVersion is its
    replicas (a Job: its parallelism, no more than its completions; none while it is suspended), named NAME-0, NAME-1,
    ... and owned by it; a CronJob is the Pods of one run; a DaemonSet one Pod on each of `nodes` that it selects; a
    List is all of its items. Other kinds make no Pods: the empty list, as for an empty YAML document.
    """
    nodes = tuple(nodes)
    found: list[dict[str, Any]] = []
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
        pods = [obj] if kind == "Pod" else _pods_of(obj, kind, path, nodes) if kind in WORKLOADS else []
        if isinstance(pods, Invalid):
            return pods
        found += pods
        if len(found) > MOST_PODS:
            return Invalid(path.removesuffix(".") or "manifest", len(found), f"no more than {MOST_PODS:,} Pods in all")
    return found


def _items(whole: dict[str, Any], kind: str, path: str) -> list[tuple[str, object]] | Invalid:
    items = whole["items"] if whole["items"] is not None else []
    if not isinstance(items, list):
        return Invalid(f"{path}items", items, "a list")
    of = kind.removesuffix("List")
    return [(f"{path}items[{index}].", _with_kind(item, of)) for index, item in enumerate(items)]


def _with_kind(item: object, kind: str) -> object:
    """The items of a PodList do not repeat that they are Pods."""
    return {"kind": kind, **item} if kind and isinstance(item, dict) else item


def _pods_of(
    workload: dict[str, Any], kind: str, path: str, nodes: Sequence[NodeObject]
) -> list[dict[str, Any]] | Invalid:
    if kind == "CronJob":
        job = job_of(workload, path)
        if isinstance(job, Invalid):
            return job
        pods = _replicas(job, "Job", f"{path}spec.jobTemplate.")
        return [] if isinstance(pods, list) and workload["spec"].get("suspend") else pods
    made = _replicas(workload, kind, path)
    return _on_every_node(made[0], nodes) if kind == "DaemonSet" and isinstance(made, list) else made


def job_of(cron_job: Mapping[str, Any], path: str = "") -> dict[str, Any] | Invalid:
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


def _on_every_node(pod: dict[str, Any], nodes: Sequence[NodeObject]) -> list[dict[str, Any]]:
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


def _only(node: NodeObject) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node.metadata.name]}]}


def _replicas(workload: dict[str, Any], kind: str, path: str) -> list[dict[str, Any]] | Invalid:
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
