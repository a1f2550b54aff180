"""The Pods that other operators make of their own objects: training jobs, Ray clusters, workflows, services.

Only what decides where a Pod goes is read: its template and how many there are at the start. What an operator adds to
its Pods later is not known here; on a cluster the webhook and the scheduler see the real Pods.

    kubeflow.org               PyTorchJob, TFJob, MPIJob, XGBoostJob, PaddleJob, JAXJob; Notebook
    ray.io                     RayCluster, RayJob, RayService
    leaderworkerset.x-k8s.io   LeaderWorkerSet
    jobset.x-k8s.io            JobSet
    batch.volcano.sh           Job
    serving.knative.dev        Service, Configuration: as many as its least scale, at least one
    serving.kserve.io          InferenceService: its predictor
    argoproj.io                Workflow, CronWorkflow, WorkflowTemplate, ClusterWorkflowTemplate: each template with a
                               container once; Rollout
    apps.kruise.io             CloneSet
    trainer.kubeflow.org       TrainJob: as many as its nodes, with what it writes for each
    tensorstack.dev            T9k's own jobs and services (tensorstack.py)
"""

from __future__ import annotations

from collections.abc import Callable

from aliquot.dialects.kube import tensorstack
from aliquot.dialects.kube.shapes import mapping, sequence
from aliquot.dialects.kube.templates import MOST, Parts, WrongTemplate, lower, number_of, template_of
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.refusal import Invalid

_UNBOUNDED = 2**31 - 1  # KubeRay's maxReplicas where none is written
_MIN_SCALES = ("autoscaling.knative.dev/min-scale", "autoscaling.knative.dev/minScale")
_OF_WORKFLOW = ("nodeSelector", "tolerations", "affinity", "schedulerName", "priorityClassName", "volumes")
_COPIED = ("labels", "annotations")
_PREDICTORS = ("model", "pytorch", "tensorflow", "triton", "huggingface", "onnx", "sklearn", "xgboost", "custom")


def known(obj: JsonView) -> bool:
    """Whether the object is of one of these kinds."""
    return _key(obj) in _READERS


def copies_metadata(obj: JsonView) -> bool:
    """Whether its operator gives the object's own labels and annotations to the Pods too."""
    return _key(obj) in _COPYING


def elsewhere(obj: JsonView) -> str | None:
    """Where the template of an object is, if another object has it; None: it has its own."""
    (group, kind), spec = _key(obj), mapping(obj.get("spec"))
    if (group, kind) == ("trainer.kubeflow.org", "TrainJob"):
        ref = mapping(spec.get("runtimeRef"))
        runtime = f"{ref.get('kind') or 'ClusterTrainingRuntime'} {ref.get('name')}"
        if "resourcesPerNode" in mapping(spec.get("trainer")):
            return f"the rest of its template is in {runtime}: only spec.trainer.resourcesPerNode is counted"
        return f"its template is in {runtime}, and spec.trainer.resourcesPerNode is missing: its Pods are not counted"
    if (group, kind) == ("tensorstack.dev", "MLService"):
        return "the rest of its template is in its runtime: only the resources that it writes itself are counted"
    if group != "argoproj.io":
        return None
    if kind == "Rollout" and _by_reference(spec):
        ref = mapping(spec["workloadRef"])
        return f"its template is in {ref.get('kind')} {ref.get('name')}: its Pods are not counted"
    inner = mapping(spec.get("workflowSpec")) if kind == "CronWorkflow" else spec
    ref = mapping(inner.get("workflowTemplateRef"))
    if kind not in ("Workflow", "CronWorkflow") or not ref:
        return None
    where = "ClusterWorkflowTemplate" if ref.get("clusterScope") is True else "WorkflowTemplate"
    return f"its templates are in {where} {ref.get('name')}: explain that manifest too"


def operator_pods(obj: JsonView, path: str = "") -> list[JsonObject] | Invalid:
    """The Pods of an object of a known kind, in order. Never raises on any JSON."""
    metadata, spec = mapping(obj.get("metadata")), obj.get("spec")
    name = metadata.get("name") or metadata.get("generateName")
    if not isinstance(name, str) or not name:
        return Invalid(f"{path}metadata.name", metadata.get("name"), "a name")
    if not isinstance(spec, dict):
        return Invalid(f"{path}spec", spec, "a mapping")
    api, kind = str(obj.get("apiVersion")), str(obj.get("kind"))
    owner = {"apiVersion": api, "kind": kind, "name": name, "controller": True}
    shared = {"namespace": metadata.get("namespace") or "default", "ownerReferences": [owner]}
    given = metadata if copies_metadata(obj) else {}
    found: list[JsonObject] = []
    try:
        for part, number, template in _READERS[_key(obj)](spec, f"{path}spec"):
            for index in range(number):
                own = {**_copied(given, mapping(template.get("metadata"))), **shared}
                own["name"] = f"{name.rstrip('-')}-{part}-{index}"
                found.append({**template, "apiVersion": "v1", "kind": "Pod", "metadata": own})
                if len(found) > MOST:
                    return Invalid(f"{path}spec", len(found), f"no more than {MOST:,} Pods in all")
    except WrongTemplate as wrong:
        return wrong.invalid
    return found


def _key(obj: JsonView) -> tuple[str, str]:
    api, kind = obj.get("apiVersion"), obj.get("kind")
    return (api.partition("/")[0], kind) if isinstance(api, str) and isinstance(kind, str) else ("", "")


def _copied(given: JsonView, own: JsonView) -> JsonObject:
    """A template's metadata with the object's labels and annotations; the template's own win."""
    return {
        **own,
        **{
            key: {**given[key], **(own.get(key) or {})}
            for key in _COPIED
            if isinstance(given.get(key), dict) and isinstance(own.get(key), dict | None)
        },
    }


def _training(spec: JsonObject, path: str) -> Parts:
    """The roles of a training job: mapping xReplicaSpecs."""
    if mapping(spec.get("runPolicy")).get("suspend") is True:
        return
    roles = next((key for key in spec if key.endswith("ReplicaSpecs")), None)
    if roles is None or not isinstance(spec[roles], dict):
        allowed = (
            "roles with replicas and a template: a PyTorchJob's; of other kinds tfReplicaSpecs, mpiReplicaSpecs ..."
        )
        raise WrongTemplate(f"{path}.pytorchReplicaSpecs", None, allowed)
    for role, part in spec[roles].items():
        where = f"{path}.{roles}.{role}"
        yield lower(role), number_of(mapping(part), "replicas", where), template_of(mapping(part), "template", where)


def _ray_cluster(spec: JsonObject, path: str) -> Parts:
    if spec.get("suspend") is True:
        return
    head = mapping(spec.get("headGroupSpec"))
    yield "head", 1, template_of(head, "template", f"{path}.headGroupSpec")
    for index, group in enumerate(map(mapping, sequence(spec.get("workerGroupSpecs")))):
        where = f"{path}.workerGroupSpecs[{index}]"
        least = number_of(group, "minReplicas", where, 0)
        most = number_of(group, "maxReplicas", where, _UNBOUNDED, _UNBOUNDED)
        replicas = number_of(group, "replicas", where, least)
        replicas = least if replicas < least else min(replicas, most)
        number = 0 if group.get("suspend") is True else replicas * number_of(group, "numOfHosts", where)
        yield lower(group.get("groupName") or f"group{index}"), number, template_of(group, "template", where)


def _ray_under(key: str) -> Callable[[JsonObject, str], Parts]:
    def read(spec: JsonObject, path: str) -> Parts:
        if spec.get("suspend") is not True and key in spec:
            yield from _ray_cluster(dict(mapping(spec[key])), f"{path}.{key}")

    return read


def _leader_workers(spec: JsonObject, path: str) -> Parts:
    groups, inner = number_of(spec, "replicas", path), mapping(spec.get("leaderWorkerTemplate"))
    where = f"{path}.leaderWorkerTemplate"
    size = number_of(inner, "size", where)
    workers = template_of(inner, "workerTemplate", where)
    leaders = template_of(inner, "leaderTemplate", where) if inner.get("leaderTemplate") else workers
    for group in range(groups):
        yield f"{group}-leader", min(size, 1), leaders
        yield f"{group}-worker", max(size - 1, 0), workers


def _job_set(spec: JsonObject, path: str) -> Parts:
    if spec.get("suspend") is True:
        return
    for index, jobs in enumerate(map(mapping, sequence(spec.get("replicatedJobs")))):
        where = f"{path}.replicatedJobs[{index}]"
        job = mapping(mapping(jobs.get("template")).get("spec"))
        inside = f"{where}.template.spec"
        at_once = number_of(job, "parallelism", inside)
        at_once = min(at_once, number_of(job, "completions", inside, at_once))
        number = number_of(jobs, "replicas", where) * at_once
        yield lower(jobs.get("name") or index), number, template_of(job, "template", inside)


def _volcano_job(spec: JsonObject, path: str) -> Parts:
    given = {"schedulerName": spec.get("schedulerName") or "volcano"}
    if spec.get("priorityClassName"):
        given["priorityClassName"] = spec["priorityClassName"]
    for index, task in enumerate(map(mapping, sequence(spec.get("tasks")))):
        where = f"{path}.tasks[{index}]"
        number, template = number_of(task, "replicas", where), template_of(task, "template", where)
        own = {key: value for key, value in template["spec"].items() if value or key not in given}
        yield lower(task.get("name") or f"task{index}"), number, {**template, "spec": {**given, **own}}


def _knative(spec: JsonObject, path: str) -> Parts:
    template = template_of(spec, "template", path)
    annotations = mapping(mapping(template.get("metadata")).get("annotations"))
    scale = next((annotations[key] for key in _MIN_SCALES if key in annotations), "")
    least = int(scale) if isinstance(scale, str) and scale.isascii() and scale.isdigit() and len(scale) < 6 else 1
    inner = dict(template["spec"])
    containers = sequence(inner.get("containers"))
    inner["containers"] = [
        {"name": f"user-container-{index}" if index else "user-container", **container}
        if isinstance(container, dict)
        else container
        for index, container in enumerate(containers)
    ]
    yield "revision", max(least, 1), {**template, "spec": inner}


def _predictor(spec: JsonObject, path: str) -> Parts:
    predictor = dict(mapping(spec.get("predictor")))
    number = max(number_of(predictor, "minReplicas", f"{path}.predictor"), 1)
    metadata = {key: predictor[key] for key in ("labels", "annotations") if key in predictor}
    containers = list(sequence(predictor.get("containers")))
    models = [predictor[key] for key in _PREDICTORS if isinstance(predictor.get(key), dict)]
    containers += [{**model, "name": "kserve-container"} for model in models]
    yield "predictor", number, {"metadata": metadata, "spec": {**predictor, "containers": containers}}


def _workflow(spec: JsonObject, path: str) -> Parts:
    shared = {key: spec[key] for key in _OF_WORKFLOW if key in spec}
    for index, template in enumerate(map(mapping, sequence(spec.get("templates")))):
        main = template.get("container") or template.get("script")
        parts = list(sequence(mapping(template.get("containerSet")).get("containers")))
        if main is not None:
            parts = [{**main, "name": "main"} if isinstance(main, dict) else main]
        if not parts:
            continue  # steps, a DAG, a resource: others run it
        init = list(sequence(template.get("initContainers")))
        sidecars = list(sequence(template.get("sidecars")))
        own = {key: template[key] for key in _OF_WORKFLOW if key in template}
        inner = {**shared, **own, "containers": [*parts, *sidecars], **({"initContainers": init} if init else {})}
        about, every = mapping(template.get("metadata")), mapping(spec.get("podMetadata"))
        metadata = {key: {**mapping(every.get(key)), **mapping(about.get(key))} for key in ("labels", "annotations")}
        yield lower(template.get("name") or f"template{index}"), 1, {"metadata": metadata, "spec": inner}


def _cron_workflow(spec: JsonObject, path: str) -> Parts:
    if spec.get("suspend") is not True:
        yield from _workflow(dict(mapping(spec.get("workflowSpec"))), f"{path}.workflowSpec")


def _by_reference(spec: JsonView) -> bool:
    return isinstance(spec.get("workloadRef"), dict) and spec.get("template") is None


def _rollout(spec: JsonObject, path: str) -> Parts:
    if not _by_reference(spec):
        yield from _replicated(spec, path)


def _replicated(spec: JsonObject, path: str) -> Parts:
    yield "replica", number_of(spec, "replicas", path), template_of(spec, "template", path)


def _notebook(spec: JsonObject, path: str) -> Parts:
    yield "notebook", 1, template_of(spec, "template", path)


def _train_job(spec: JsonObject, path: str) -> Parts:
    """The template is in its runtime; what the job says of a node's resources goes before that."""
    trainer = mapping(spec.get("trainer"))
    if spec.get("suspend") is not True and isinstance(trainer.get("resourcesPerNode"), dict):
        node = {"name": "node", "image": trainer.get("image") or "of-the-runtime"}
        container = {**node, "resources": trainer["resourcesPerNode"]}
        yield "node", number_of(trainer, "numNodes", f"{path}.trainer"), {"spec": {"containers": [container]}}


_TRAINING = ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob")
_WORKFLOWS = ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate")
_READERS: dict[tuple[str, str], Callable[[JsonObject, str], Parts]] = {
    **{("kubeflow.org", kind): _training for kind in _TRAINING},
    ("kubeflow.org", "Notebook"): _notebook,
    ("ray.io", "RayCluster"): _ray_cluster,
    ("ray.io", "RayJob"): _ray_under("rayClusterSpec"),
    ("ray.io", "RayService"): _ray_under("rayClusterConfig"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_workers,
    ("jobset.x-k8s.io", "JobSet"): _job_set,
    ("batch.volcano.sh", "Job"): _volcano_job,
    ("serving.knative.dev", "Service"): _knative,
    ("serving.knative.dev", "Configuration"): _knative,
    ("serving.kserve.io", "InferenceService"): _predictor,
    **{("argoproj.io", kind): _workflow for kind in _WORKFLOWS},
    ("argoproj.io", "CronWorkflow"): _cron_workflow,
    ("argoproj.io", "Rollout"): _rollout,
    ("apps.kruise.io", "CloneSet"): _replicated,
    ("trainer.kubeflow.org", "TrainJob"): _train_job,
    **tensorstack.READERS,
}
_COPYING = (("kubeflow.org", "Notebook"), ("serving.kserve.io", "InferenceService"))
KINDS = tuple(sorted({kind for _, kind in _READERS}))
