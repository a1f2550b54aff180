"""The Kubernetes objects that one machine takes, checked before any of them is: what they are, and the Pods they want.

A Pod is itself; a Deployment, ReplicaSet, StatefulSet, ReplicationController or Job of any apiVersion makes Pods of its
template; a List is all of its items. What makes no Pods (a Service, a ConfigMap) is passed over, and that is said.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aliquot.dialects.kube import WORKLOADS, expand
from aliquot.dialects.local.pods import LABEL, NAME_ALLOWED, notes_of, plan_of
from aliquot.dialects.pods import Json
from aliquot.dialects.registry import parse_pod
from aliquot.model.claim import Claim
from aliquot.model.refusal import Invalid

POD = "Pod"
MOST_REPLICAS = 256  # of one workload: each Pod is at least two processes
_UNKNOWN = ("DaemonSet", "CronJob")  # they make Pods, but not in a way that is known here
_MOST_OBJECTS = 256
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_NAME_ALLOWED = "small letters, digits, - and ., as in web-1; at most 253"
_BACKOFF_LIMIT = 6
_MOST_ENDED = 1000  # Pods of a Job that have succeeded, or failed: they stay in the list

_NOTES = {
    "volumeClaimTemplates": "volumeClaimTemplates are not made: containers see this machine's own files",
    "strategy": "strategy is not heeded: Pods of an older template are ended at once",
    "updateStrategy": "updateStrategy is not heeded: Pods of an older template are ended at once",
    "activeDeadlineSeconds": "activeDeadlineSeconds is not heeded",
    "ttlSecondsAfterFinished": "ttlSecondsAfterFinished is not heeded: `aliquot delete` removes what is over",
    "completionMode": "completionMode is not heeded: Pods have no index",
}


@dataclass(frozen=True, slots=True)
class LocalObject:
    """One object that was found good. `kind` is Pod, a workload's, or another's that is passed over."""

    kind: str
    namespace: str
    name: str
    manifest: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def makes_pods(self) -> bool:
        """Whether there is anything to keep of it."""
        return self.kind == POD or self.kind in WORKLOADS


@dataclass(frozen=True, slots=True)
class Amounts:
    """How many Pods a workload wants. `completions` and `backoff_limit` are a Job's; None: it never ends by itself.

    `workers`: a Job that does not say how often it is to succeed. Its Pods share the work among themselves, and all is
    done once one of them says so and the others have ended too.
    """

    replicas: int
    completions: int | None = None
    backoff_limit: int = _BACKOFF_LIMIT
    workers: bool = False


def read_objects(objects: object) -> list[LocalObject] | Invalid:
    """Every object, or the first thing that is wrong with any of them. Never raises on any JSON."""
    if not isinstance(objects, list):
        return Invalid("objects", objects, "a list of Kubernetes objects")
    found: dict[tuple[str, str, str], LocalObject] = {}
    waiting = deque(enumerate(objects))
    while waiting:
        at, each = waiting.popleft()
        if not isinstance(each, dict) or not isinstance(each.get("kind"), str):
            return Invalid(f"objects[{at}]", each, "a Kubernetes object with a kind")
        kind = each["kind"]
        if kind.endswith("List") and "items" in each:
            items = each["items"] if isinstance(each["items"], list) else []
            of = kind.removesuffix("List")
            waiting.extendleft(
                (at, {"kind": of, **item} if of and isinstance(item, dict) else item) for item in reversed(items)
            )
            continue
        read = _read(each, kind)
        if isinstance(read, Invalid):
            return read
        key = (read.kind, read.namespace, read.name)
        if key in found:
            return Invalid(f"{kind} {read.namespace}/{read.name}: metadata.name", read.name, "a name of its own")
        found[key] = read
        if len(found) > _MOST_OBJECTS:
            return Invalid("objects", len(objects), f"at most {_MOST_OBJECTS} at once")
    return list(found.values())


def _read(manifest: dict[str, Any], kind: str) -> LocalObject | Invalid:
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict):
        return Invalid(f"{kind}: metadata", metadata, "a mapping with a name")
    name, namespace = metadata.get("name"), metadata.get("namespace") or "default"
    if kind != POD and kind not in WORKLOADS and kind not in _UNKNOWN and isinstance(name, str):
        return LocalObject(kind, str(namespace), name, manifest, (f"{kind} is passed over: it makes no Pods",))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return Invalid(f"{kind}: metadata.name", name, _NAME_ALLOWED)
    if not isinstance(namespace, str) or not LABEL.fullmatch(namespace):
        return Invalid(f"{kind} {name}: metadata.namespace", namespace, NAME_ALLOWED)
    label = f"{kind} {namespace}/{name}"
    if kind in _UNKNOWN:
        return Invalid(f"{label}: kind", kind, f"Pod, {', '.join(WORKLOADS)} or List")
    manifest = {**manifest, "metadata": {**metadata, "namespace": namespace}}
    notes = _checked(manifest, kind)
    if isinstance(notes, Invalid):
        return Invalid(f"{label}: {notes.field}", notes.value, notes.allowed)
    return LocalObject(kind, namespace, name, manifest, tuple(notes))


def _checked(manifest: dict[str, Any], kind: str) -> list[str] | Invalid:
    """The notes of a good one."""
    if kind == POD:
        return _pod_notes(manifest)
    broken = _checked_amounts(manifest, kind)
    if broken is not None:
        return broken
    notes = _pod_notes(pod_of(manifest, "x" * 63), "spec.template.spec")
    if isinstance(notes, Invalid):
        # Whatever is wrong in the Pod is wrong in the template that it would be made of.
        return Invalid(f"spec.template.{notes.field}", notes.value, notes.allowed)
    spec = manifest["spec"]
    policy = spec["template"]["spec"].get("restartPolicy")
    if kind == "Job" and policy not in ("Never", "OnFailure"):
        return Invalid("spec.template.spec.restartPolicy", policy, "Never or OnFailure, in a Job")
    if kind != "Job" and policy not in (None, "Always"):
        return Invalid("spec.template.spec.restartPolicy", policy, f"Always, in a {kind}")
    return notes + [text for field, text in _NOTES.items() if spec.get(field)]


def _checked_amounts(manifest: dict[str, Any], kind: str) -> Invalid | None:
    made = expand(manifest)
    if isinstance(made, Invalid):
        return made
    spec = manifest["spec"]
    if len(made) > MOST_REPLICAS:
        return Invalid(f"spec.{WORKLOADS[kind]}", spec[WORKLOADS[kind]], f"at most {MOST_REPLICAS} on one machine")
    for field in ("completions", "backoffLimit") if kind == "Job" else ():
        value = spec.get(field)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_ENDED
        ):
            return Invalid(f"spec.{field}", value, f"a whole number, 0 to {_MOST_ENDED}")
    return None


def _pod_notes(pod: dict[str, Any], path: str = "spec") -> list[str] | Invalid:
    plan = plan_of(pod)
    if isinstance(plan, Invalid):
        return plan
    claim = parse_pod(pod)
    if isinstance(claim, tuple):
        return claim[0]
    asking = (
        frozenset(container.name for container in claim.containers) if isinstance(claim, Claim) else frozenset[str]()
    )
    return notes_of(pod, plan, asking, path)


# --- from a workload to its Pods -----------------------------------------------------------------------------------


def pod_of(workload: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A Pod of that name, as the workload's template makes it. The workload was found good."""
    template, metadata = workload["spec"]["template"], workload["metadata"]
    owner = {
        "apiVersion": workload.get("apiVersion"), "kind": workload["kind"], "name": metadata["name"],
        "controller": True,
    }  # fmt: skip
    inner = {**(template.get("metadata") or {}), "name": name, "namespace": metadata["namespace"]}
    return {**template, "apiVersion": "v1", "kind": POD, "metadata": {**inner, "ownerReferences": [owner]}}


def template_of(manifest: Json) -> str:
    """The same for what makes the same Pods: a Pod's spec and annotations, or a workload's template."""
    of = manifest["spec"]["template"] if manifest["kind"] in WORKLOADS else _what_it_is(manifest)
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:10]


def _what_it_is(pod: Json) -> dict[str, Any]:
    """Without what we add ourselves when it is shown: one that is applied as it was shown is unchanged."""
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return {"spec": spec, **{key: pod["metadata"].get(key) for key in ("labels", "annotations")}}


def amounts_of(workload: Mapping[str, Any]) -> Amounts:
    """How many Pods it wants. The workload was found good."""
    spec, kind = workload["spec"], workload["kind"]
    number = spec.get(WORKLOADS[kind])
    number = 1 if number is None else number
    if kind != "Job":
        return Amounts(number)
    completions, limit = spec.get("completions"), spec.get("backoffLimit")
    limit = _BACKOFF_LIMIT if limit is None else limit
    workers = completions is None and spec.get(WORKLOADS[kind]) is not None
    return Amounts(number, 1 if completions is None else completions, limit, workers)
