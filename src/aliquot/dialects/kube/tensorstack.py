"""The Pods of T9k's own jobs and services, as its user manual describes them.

    batch.tensorstack.dev   GenericJob, PyTorchTrainingJob, TensorFlowTrainingJob, XGBoostTrainingJob: a list of roles;
                            MPIJob, DeepSpeedJob, ColossalAIJob: workers, and the launcher of a ColossalAIJob
    tensorstack.dev         Notebook; SimpleMLService; MLService: the least replicas of each release, with the
                            resources that it writes itself. The rest of its template is in its runtime

`scheduler.t9kScheduler` in any of them is `schedulerName: t9k-scheduler` of its Pods.
"""

from __future__ import annotations

from collections.abc import Callable

from aliquot.dialects.kube.shapes import mapping, sequence
from aliquot.dialects.kube.templates import Parts, WrongTemplate, lower, number_of, template_of
from aliquot.model.decoding.openjson import JsonObject, JsonView

_SCHEDULER = "t9k-scheduler"
_SERVERS = ("tensorflow", "pytorch")  # of a SimpleMLService that brings no container of its own


def _by_scheduler(read: Callable[[JsonObject, str], Parts]) -> Callable[[JsonObject, str], Parts]:
    """The templates with the scheduler that the object names."""

    def scheduled(spec: JsonObject, path: str) -> Parts:
        named = isinstance(mapping(spec.get("scheduler")).get("t9kScheduler"), dict)
        for name, number, template in read(spec, path):
            inner = template["spec"]
            if named and inner.get("schedulerName") in (None, ""):  # a template that names one has it
                template = {**template, "spec": {**inner, "schedulerName": _SCHEDULER}}
            yield name, number, template

    return scheduled


@_by_scheduler
def _roles(spec: JsonObject, path: str) -> Parts:
    roles = spec.get("replicaSpecs")
    if not isinstance(roles, list) or not roles:
        raise WrongTemplate(f"{path}.replicaSpecs", roles, "a list of roles, each with a template")
    for index, role in enumerate(map(mapping, roles)):
        where = f"{path}.replicaSpecs[{index}]"
        number = number_of(role, "replicas", where)
        yield lower(role.get("type") or f"role{index}"), number, template_of(role, "template", where)


@_by_scheduler
def _workers(spec: JsonObject, path: str) -> Parts:
    launcher, worker, where = mapping(spec.get("launcher")), mapping(spec.get("worker")), f"{path}.worker"
    if launcher:
        yield "launcher", 1, {"spec": {"containers": [{**launcher, "name": "launcher"}]}}
    yield "worker", number_of(worker, "replicas", where), template_of(worker, "template", where)


@_by_scheduler
def _notebook(spec: JsonObject, path: str) -> Parts:
    if spec.get("suspend") is not True:
        yield "notebook", 1, template_of(spec, "template", path)


@_by_scheduler
def _simple_service(spec: JsonObject, path: str) -> Parts:
    number = number_of(spec, "replicas", path)
    server = next((key for key in _SERVERS if isinstance(spec.get(key), dict)), None)
    if server is None:
        yield "server", number, template_of(spec, "custom", path)
    else:
        yield "server", number, {"spec": {"containers": [{**spec[server], "name": "user-container"}]}}


@_by_scheduler
def _service(spec: JsonObject, path: str) -> Parts:
    for index, release in enumerate(map(mapping, sequence(spec.get("releases")))):
        where, predictor = f"{path}.releases[{index}].predictor", mapping(release.get("predictor"))
        number = max(number_of(predictor, "minReplicas", where), 1)  # of none, the first request brings one
        template = mapping(predictor.get("template"))
        containers = list(sequence(mapping(template.get("spec")).get("containers")))
        for entry in map(mapping, sequence(predictor.get("containersResources"))):
            _set_resources(containers, entry)
        if containers:
            inner = {**mapping(template.get("spec")), "containers": containers}
            yield lower(release.get("name") or f"release{index}"), number, {**template, "spec": inner}


def _set_resources(containers: list[object], entry: JsonView) -> None:
    """Of the container that the template has by that name; otherwise the runtime's template has it."""
    for index, container in enumerate(containers):
        if entry.get("name") and mapping(container).get("name") == entry["name"]:
            given = {key: value for key, value in entry.items() if value is not None}
            containers[index] = {**mapping(container), **given}
            return
    containers.append({"image": "of-the-runtime", **entry})


_OF_ROLES = ("GenericJob", "PyTorchTrainingJob", "TensorFlowTrainingJob", "XGBoostTrainingJob")
_OF_WORKERS = ("MPIJob", "DeepSpeedJob", "ColossalAIJob")
READERS: dict[tuple[str, str], Callable[[JsonObject, str], Parts]] = {
    **{("batch.tensorstack.dev", kind): _roles for kind in _OF_ROLES},
    **{("batch.tensorstack.dev", kind): _workers for kind in _OF_WORKERS},
    ("tensorstack.dev", "Notebook"): _notebook,
    ("tensorstack.dev", "SimpleMLService"): _simple_service,
    ("tensorstack.dev", "MLService"): _service,
}
