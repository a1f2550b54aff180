"""Validates the Kubernetes objects that one machine runs, and creates Pods from workloads.

Accepts Pods, Deployments, ReplicaSets, StatefulSets, ReplicationControllers, DaemonSets, Jobs and CronJobs of any
version of their API groups, and Lists of them. Objects that create no Pods (a Service, a ConfigMap) are skipped with a
note.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from dataclasses import dataclass, replace

from aliquot.dialects.kube.manifests import WORKLOADS, expand, job_of
from aliquot.dialects.kube.podfields import OBJECT_NAME, OBJECT_NAME_ALLOWED, unquoted, with_slips
from aliquot.dialects.kube.templates import is_custom, templates_in
from aliquot.dialects.local.claims import local_remarks, parse_local_pod
from aliquot.dialects.local.cron import ALLOWED, parse_schedule
from aliquot.dialects.local.pods import LABEL, NAME_ALLOWED, notes_of, plan_of
from aliquot.dialects.local.selectors import selector_problem
from aliquot.dialects.pods import read_pod
from aliquot.dialects.registry import misplaced
from aliquot.dialects.rules import DEFAULT_RULES, Rules
from aliquot.model.claim import Claim
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.refusal import Invalid
from aliquot.model.text import not_encodable

POD = "Pod"
MOST_REPLICAS = 256  # of one workload: a Pod is at least two processes
CRON_JOB = "CronJob"
_MOST_OBJECTS = 256
_MOST_SAID = 5  # invalid fields of an object
_LONGEST_CRON_NAME = 52  # as in Kubernetes: the name of a Job has the time in it too
_BACKOFF_LIMIT = 6
_MOST_ENDED = 1000  # finished Pods of a Job: they stay in the list

_NOTES = {
    "volumeClaimTemplates": "volumeClaimTemplates is ignored: containers use the files of this machine",
    "strategy": "strategy is ignored: Pods of an older template end at once",
    "updateStrategy": "updateStrategy is ignored: Pods of an older template end at once",
    "activeDeadlineSeconds": "activeDeadlineSeconds is ignored",
    "ttlSecondsAfterFinished": "ttlSecondsAfterFinished is ignored: remove finished Jobs with `aliquot delete`",
    "completionMode": "completionMode is ignored: Pods have no index",
}
# The API groups of each kind, the present one first. Old manifests are read in any version of theirs.
_GROUPS = {
    **dict.fromkeys((POD, "ReplicationController"), ("",)),
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"), ("apps", "extensions")),
    **dict.fromkeys(("Job", CRON_JOB), ("batch", "extensions")),
}


@dataclass(frozen=True, slots=True)
class LocalObject:
    """A valid object. `kind` is Pod, a workload, or a kind that is skipped."""

    kind: str
    namespace: str
    name: str
    manifest: JsonObject
    notes: tuple[str, ...]

    @property
    def makes_pods(self) -> bool:
        """Whether it is a Pod or a workload."""
        return self.kind == POD or self.kind in WORKLOADS


@dataclass(frozen=True, slots=True)
class Amounts:
    """The number of Pods of a workload. `completions` (None: it never ends by itself) and `backoff_limit` are a Job's.

    `workers`: a Job without completions. Its Pods share the work; the Job is done once one Pod has succeeded and the
    others have ended.
    """

    replicas: int
    completions: int | None = None
    backoff_limit: int = _BACKOFF_LIMIT
    workers: bool = False
    suspended: bool = False


def read_objects(objects: object, rules: Rules = DEFAULT_RULES) -> list[LocalObject] | Invalid:
    """All objects, or the invalid fields of the first that is not valid, in one. Never raises on any JSON."""
    if not isinstance(objects, list):
        return Invalid("objects", objects, "a list of Kubernetes objects")
    half = not_encodable(objects)
    if half is not None:  # everybody gets it to see, in UTF-8
        return Invalid("objects", half, "text without half of a surrogate pair, which UTF-8 cannot spell")
    found: dict[tuple[str, str, str], LocalObject] = {}
    pending = deque(enumerate(objects))
    while pending:
        at, manifest = pending.popleft()
        if not isinstance(manifest, dict) or not isinstance(manifest.get("kind"), str):
            return Invalid(f"objects[{at}]", manifest, "a Kubernetes object with a kind")
        kind = manifest["kind"]
        if kind.endswith("List") and "items" in manifest:
            items = manifest["items"] if isinstance(manifest["items"], list) else []
            of = kind.removesuffix("List")
            pending.extendleft(
                (at, {"kind": of, **item} if of and isinstance(item, dict) else item) for item in reversed(items)
            )
            continue
        read = _read(manifest, kind, rules)
        if isinstance(read, Invalid):
            return read
        key = (read.kind, read.namespace, read.name)
        if key in found:
            return Invalid(f"{kind} {read.namespace}/{read.name}: metadata.name", read.name, "a unique name")
        found[key] = read
        if len(found) > _MOST_OBJECTS:
            return Invalid("objects", len(objects), f"at most {_MOST_OBJECTS} at once")
    return list(found.values())


def _read(manifest: JsonObject, kind: str, rules: Rules) -> LocalObject | Invalid:
    metadata = manifest.get("metadata")
    view = read_pod(manifest) if kind == POD else None
    for slip in misplaced(view) if view is not None and not view.name else ():  # the reason why there is no name
        return Invalid(f"{kind}: {slip.field}", slip.value, slip.allowed)
    if not isinstance(metadata, dict):
        return Invalid(f"{kind}: metadata", metadata, "a mapping with a name")
    name, namespace = metadata.get("name"), metadata.get("namespace") or "default"
    if is_custom(manifest) and (kind in WORKLOADS or templates_in(manifest)):
        allowed = "a Pod, Job, Deployment or the like: the operator that makes Pods of this runs on a cluster"
        return Invalid(f"{kind} {name}: apiVersion", manifest["apiVersion"], allowed)
    if kind != POD and kind not in WORKLOADS and isinstance(name, str):
        return LocalObject(kind, str(namespace), name, manifest, (f"{kind} is skipped: it creates no Pods",))
    if not isinstance(name, str) or not OBJECT_NAME.fullmatch(name):
        return Invalid(f"{kind}: metadata.name", name, OBJECT_NAME_ALLOWED)
    if not isinstance(namespace, str) or not LABEL.fullmatch(namespace):
        return Invalid(f"{kind} {name}: metadata.namespace", namespace, NAME_ALLOWED)
    label = f"{kind} {namespace}/{name}"
    version, groups = manifest.get("apiVersion"), _GROUPS[kind]
    if version is not None and (not isinstance(version, str) or version.rpartition("/")[0] not in groups):
        return Invalid(f"{label}: apiVersion", version, f"{_version(kind)} for a {kind}")
    manifest = {**manifest, "metadata": {**metadata, "namespace": namespace}}
    notes = _checked(manifest, kind, rules)
    if isinstance(notes, tuple):
        return _in_one(label, notes)
    if version is None:
        notes = [*notes, f"apiVersion is missing: a cluster refuses the object without {_version(kind)}"]
    return LocalObject(kind, namespace, name, manifest, tuple(notes))


def _version(kind: str) -> str:
    group = _GROUPS[kind][0]
    return f"{group}/v1" if group else "v1"


Broken = tuple[Invalid, ...]  # the invalid fields of an object, at least one


def _under(prefix: str, broken: Broken) -> Broken:
    """The broken rules, with the paths that their fields have in the object around it."""
    return tuple(replace(problem, field=prefix + problem.field) for problem in broken)


def _in_one(label: str, broken: Broken) -> Invalid:
    """The first, with the others in its sentence: the answer has one field, whose line is shown. `label`: whose."""
    first, *others = broken
    said = [problem.sentence() for problem in others[: _MOST_SAID - 1]]
    more = len(others) - len(said)
    allowed = "; ".join((first.allowed, *said, *([f"and {more} more"] if more else [])))
    return replace(first, field=f"{label}: {first.field}", allowed=allowed)


def _checked(manifest: JsonObject, kind: str, rules: Rules) -> list[str] | Broken:
    """The notes of a valid object."""
    if kind == POD:
        return _pod_notes(manifest, rules)
    if kind == CRON_JOB:
        return _checked_cron_job(manifest, rules)
    broken = _checked_amounts(manifest, kind)
    if broken is not None:
        return (broken,)
    notes = _pod_notes(pod_of(manifest, "x" * 63), rules, "spec.template.spec")
    if isinstance(notes, tuple):
        return _under("spec.template.", notes)  # an invalid field of the Pod is one of the template
    wrong = selector_problem(manifest, kind)
    if wrong is not None:
        return (wrong,)
    spec = manifest["spec"]
    policy = spec["template"]["spec"].get("restartPolicy")
    if kind == "Job" and policy not in ("Never", "OnFailure"):
        return (Invalid("spec.template.spec.restartPolicy", policy, "Never or OnFailure in a Job"),)
    if kind != "Job" and policy not in (None, "Always"):
        return (Invalid("spec.template.spec.restartPolicy", policy, f"Always in a {kind}"),)
    return notes + [text for field, text in _NOTES.items() if spec.get(field)]


_POLICIES = ("Allow", "Forbid", "Replace")
_WHOLE_NUMBERS = ("successfulJobsHistoryLimit", "failedJobsHistoryLimit", "startingDeadlineSeconds")


def _checked_cron_job(manifest: JsonObject, rules: Rules) -> list[str] | Broken:
    job = job_of(manifest)
    if isinstance(job, Invalid):
        return (job,)
    spec, name = manifest["spec"], manifest["metadata"]["name"]
    if len(name) > _LONGEST_CRON_NAME:
        return (Invalid("metadata.name", name, f"at most {_LONGEST_CRON_NAME} characters"),)
    if parse_schedule(spec.get("schedule")) is None:
        return (Invalid("spec.schedule", spec.get("schedule"), ALLOWED),)
    policy = spec.get("concurrencyPolicy")
    if policy is not None and policy not in _POLICIES:
        return (Invalid("spec.concurrencyPolicy", policy, ", ".join(_POLICIES)),)
    for field in _WHOLE_NUMBERS:
        value = spec.get(field)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31):
            return (Invalid(f"spec.{field}", value, "a whole number, at least 0"),)
    notes = _checked(job, "Job", rules)
    return _under("spec.jobTemplate.", notes) if isinstance(notes, tuple) else notes


def _checked_amounts(manifest: JsonObject, kind: str) -> Invalid | None:
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


def _pod_notes(pod: JsonObject, rules: Rules, path: str = "spec") -> list[str] | Broken:
    plan = plan_of(pod)
    if isinstance(plan, Invalid):
        return (plan,)
    claim = parse_local_pod(pod, rules)
    broken = with_slips(unquoted(pod), claim if isinstance(claim, tuple) else ())
    if broken:
        return broken
    with_cards = (
        frozenset(container.name for container in claim.containers) if isinstance(claim, Claim) else frozenset[str]()
    )
    notes = notes_of(pod, plan, with_cards, path)
    notes += [f"{path.removesuffix('spec')}{remark}" for remark in local_remarks(pod, rules)]
    if isinstance(claim, Claim) and claim.group:
        fails = f"if one of its Pods dies with work in flight, all of {claim.group} may fail; no other Pod is affected"
        notes.append(f"together with {claim.group}: {fails}")
    return notes


# --- from a workload to its Pods -----------------------------------------------------------------------------------


def pod_of(workload: JsonView, name: str) -> JsonObject:
    """A Pod of that name from the workload's template. The workload is valid."""
    template, metadata = workload["spec"]["template"], workload["metadata"]
    owner = {
        "apiVersion": workload.get("apiVersion"), "kind": workload["kind"], "name": metadata["name"],
        "controller": True,
    }  # fmt: skip
    inner = {**(template.get("metadata") or {}), "name": name, "namespace": metadata["namespace"]}
    return {**template, "apiVersion": "v1", "kind": POD, "metadata": {**inner, "ownerReferences": [owner]}}


def template_of(manifest: JsonView) -> str:
    """A digest of a Pod's spec, labels and annotations, or of a workload's template."""
    part = "jobTemplate" if manifest["kind"] == CRON_JOB else "template"
    template = manifest["spec"][part] if manifest["kind"] in WORKLOADS else _own_fields(manifest)
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def _own_fields(pod: JsonView) -> JsonObject:
    """Without the fields that `aliquot get -o yaml` adds: applying its output again changes nothing."""
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return {"spec": spec, **{key: pod["metadata"].get(key) for key in ("labels", "annotations")}}


def amounts_of(workload: JsonView) -> Amounts:
    """The number of Pods. The workload is valid."""
    spec, kind = workload["spec"], workload["kind"]
    if kind == CRON_JOB:
        return Amounts(0, suspended=bool(spec.get("suspend")))
    number = spec.get(WORKLOADS[kind]) if WORKLOADS[kind] else 1
    number = 1 if number is None else number
    if kind != "Job":
        return Amounts(number)
    completions, limit = spec.get("completions"), spec.get("backoffLimit")
    limit = _BACKOFF_LIMIT if limit is None else limit
    workers = completions is None and spec.get(WORKLOADS[kind]) is not None
    suspended = bool(spec.get("suspend"))
    return Amounts(number, 1 if completions is None else completions, limit, workers, suspended)


# --- the Jobs of a CronJob -------------------------------------------------------------------------------------------


def run_of(cron_job: JsonView, scheduled: int) -> JsonObject:
    """The Job of the run at `scheduled`, in minutes since 1970. The CronJob is valid."""
    job = job_of(cron_job)
    assert not isinstance(job, Invalid)
    name = cron_job["metadata"]["name"]
    owner = {"apiVersion": cron_job.get("apiVersion"), "kind": CRON_JOB, "name": name, "controller": True}
    return {**job, "metadata": {**job["metadata"], "name": f"{name}-{scheduled}", "ownerReferences": [owner]}}


def scheduled_of(job: JsonView, cron_job: str) -> int | None:
    """When the Job was to run, in minutes since 1970; None: it is not a Job of that CronJob."""
    metadata = job["metadata"]
    owners = metadata.get("ownerReferences")
    owned = isinstance(owners, list) and any(
        isinstance(owner, dict) and (owner.get("kind"), owner.get("name")) == (CRON_JOB, cron_job) for owner in owners
    )
    minutes = metadata["name"].removeprefix(f"{cron_job}-")
    return int(minutes) if owned and minutes.isdecimal() and len(minutes) < 12 else None


def template_pod_of(manifest: JsonView) -> JsonObject:
    """A Pod as the valid object would make it; a Pod is itself."""
    if manifest["kind"] == POD:
        return dict(manifest)
    return pod_of(run_of(manifest, 0) if manifest["kind"] == CRON_JOB else manifest, manifest["metadata"]["name"])
