"""Translates the containers of a Pod into local processes: commands with an environment.

plan_of       command, environment and restarts of every container; or the first field that is not supported
expand        command and environment of a container, once the Pod has a node
notes_of      sentences about the fields that are ignored here
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aliquot.dialects.kube.podfields import unknown_fields
from aliquot.dialects.local.claims import RESOURCES
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.refusal import Invalid

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
NAME_ALLOWED = "at most 63 lower-case letters, digits and -, for example web-1"
POLICIES = ("Always", "OnFailure", "Never")
SAMPLE = ("aliquot", "burn", "load", "--seconds", "3600")  # runs instead of the image's default command
_IDLE = ("sleep", "infinity")  # the same, for a container without a card
_SIDES = ("limits", "requests")
_GRACE = 30.0
LONGEST_GRACE = 86400.0  # seconds
_MOST_CONTAINERS = 32  # of one Pod
_MOST_EXPANDED = 1 << 18  # characters of all commands and variables of a Pod, once every $(VARIABLE) is expanded
_VARIABLE = re.compile(r"\$(\$|\(([-._A-Za-z0-9]+)\))")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_FIELDS = "metadata.name, metadata.namespace, metadata.uid, metadata.labels['KEY'], metadata.annotations['KEY'], "
_FIELDS += "spec.nodeName, spec.serviceAccountName, status.hostIP or status.podIP"

# Notes for fields that are ignored here.
_OF_PODS = {
    "volumes": "volumes is ignored: containers use the files of this machine",
    "nodeSelector": "nodeSelector is ignored: nodes have no labels here",
    "affinity": "affinity is ignored: nodes have no labels here",
    "topologySpreadConstraints": "topologySpreadConstraints is ignored: nodes have no labels here",
    "nodeName": "nodeName is ignored: the Pod goes where it fits",
    "securityContext": "securityContext is ignored: containers run as the user who applied them",
    "activeDeadlineSeconds": "activeDeadlineSeconds is ignored",
    "hostAliases": "hostAliases is ignored: containers use those of this machine",
    "dnsConfig": "dnsConfig is ignored: containers use that of this machine",
    "priorityClassName": "priorityClassName is ignored: first come, first served",
    "runtimeClassName": "runtimeClassName is ignored: containers are local processes",
    "resourceClaims": "resourceClaims is ignored: claims need a cluster; here a container's resources ask for cards",
}
_OF_CONTAINERS = {
    "volumeMounts": "volumeMounts is ignored: containers use the files of this machine",
    "ports": "ports are those of this machine: two containers cannot listen on the same port",
    "livenessProbe": "probes are ignored: a container is ready while it runs",
    "readinessProbe": "probes are ignored: a container is ready while it runs",
    "startupProbe": "probes are ignored: a container is ready while it runs",
    "lifecycle": "lifecycle hooks are ignored",
    "securityContext": "securityContext is ignored: containers run as the user who applied them",
    "workingDir": "workingDir is used if it is a folder of this machine",
}


@dataclass(frozen=True, slots=True)
class Variable:
    """One entry of env. `field`: the field of the Pod that has the value."""

    name: str
    value: str = ""
    field: str | None = None


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """One container. An init container with restartPolicy Always is a sidecar: it keeps running."""

    name: str
    image: str
    command: tuple[str, ...]  # empty: the default command of its image, which is unknown here
    variables: tuple[Variable, ...]
    folder: str | None
    init: bool = False
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class PodPlan:
    """`containers` in start order. `grace` in seconds."""

    containers: tuple[ContainerPlan, ...]
    restart_policy: str
    grace: float


class _BrokenError(Exception):
    """An invalid field; `plan_of` returns it."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field)
        self.invalid = Invalid(field, value, allowed)


def plan_of(pod: JsonView) -> PodPlan | Invalid:
    """The plan, or the first invalid field. Never raises on any JSON."""
    try:
        plan = _plan(_mapping(pod.get("spec"), "spec"))
        _check_expanded(plan, _mapping(pod.get("metadata"), "metadata"))
        return plan
    except _BrokenError as broken:
        return broken.invalid


def restart_policy_of(pod: JsonView) -> str:
    """The restart policy of a valid Pod, without parsing all of it."""
    return str(pod["spec"].get("restartPolicy") or POLICIES[0])


def _plan(spec: JsonView) -> PodPlan:
    containers = [*_containers(spec, "initContainers"), *_containers(spec, "containers")]
    if not any(not container.init for container in containers):
        raise _BrokenError("spec.containers", spec.get("containers"), "a list of at least one container")
    if len(containers) > _MOST_CONTAINERS:
        raise _BrokenError("spec.containers", len(containers), f"at most {_MOST_CONTAINERS} containers in a Pod")
    for name, count in Counter(container.name for container in containers).items():
        if count > 1:
            raise _BrokenError("spec.containers", name, "a unique name for each container")
    policy = spec.get("restartPolicy")
    policy = POLICIES[0] if policy is None else policy
    if policy not in POLICIES:
        raise _BrokenError("spec.restartPolicy", policy, ", ".join(POLICIES))
    grace = spec.get("terminationGracePeriodSeconds")
    grace = _GRACE if grace is None else grace
    if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace <= LONGEST_GRACE:
        raise _BrokenError("spec.terminationGracePeriodSeconds", grace, "0 to 86400 seconds")
    return PodPlan(tuple(containers), policy, float(grace))


def _containers(spec: JsonView, field: str) -> Iterator[ContainerPlan]:
    for at, value in enumerate(_list(spec.get(field), f"spec.{field}")):
        path = f"spec.{field}[{at}]"
        container, init = _mapping(value, path), field == "initContainers"
        name = container.get("name")
        if not isinstance(name, str) or not LABEL.fullmatch(name):
            raise _BrokenError(f"{path}.name", name, NAME_ALLOWED)
        folder = container.get("workingDir")
        if folder is not None and not isinstance(folder, str):
            raise _BrokenError(f"{path}.workingDir", folder, "a folder")
        if _list(container.get("envFrom"), f"{path}.envFrom"):
            _check_sources(container["envFrom"], f"{path}.envFrom")
        words = [*_words(container.get("command"), f"{path}.command"), *_words(container.get("args"), f"{path}.args")]
        sidecar = init and container.get("restartPolicy") == "Always"
        image = container.get("image")
        yield ContainerPlan(
            name, image if isinstance(image, str) else "", tuple(words),
            tuple(_variables(container.get("env"), f"{path}.env")), folder or None, init, sidecar,
        )  # fmt: skip


def _variables(value: object, path: str) -> Iterator[Variable]:
    for at, entry in enumerate(_list(value, path)):
        where = f"{path}[{at}]"
        variable = _mapping(entry, where)
        name = variable.get("name")
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise _BrokenError(f"{where}.name", name, "the name of an environment variable")
        source = variable.get("valueFrom")
        if source is not None:
            field = _field(_mapping(source, f"{where}.valueFrom"), f"{where}.valueFrom")
            if field is not None:
                yield Variable(name, field=field)
            continue
        text = variable.get("value")
        if text is not None and (not isinstance(text, str) or "\0" in text):
            raise _BrokenError(f"{where}.value", text, "a string: quote numbers")
        yield Variable(name, text or "")


def _field(source: JsonView, path: str) -> str | None:
    """The field of the Pod that it refers to; None: an optional source that does not exist here."""
    if "fieldRef" in source:
        field = _mapping(source["fieldRef"], f"{path}.fieldRef").get("fieldPath")
        if isinstance(field, str) and (field in _FIELD_VALUES or _KEYED.fullmatch(field)):
            return field
        raise _BrokenError(f"{path}.fieldRef.fieldPath", field, _FIELDS)
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if kind in source and _mapping(source[kind], f"{path}.{kind}").get("optional") is True:
            return None
    raise _BrokenError(
        path, next(iter(source), None), "fieldRef: ConfigMaps, Secrets and limits are not supported here"
    )


def _check_sources(sources: list[Any], path: str) -> None:
    for at, source in enumerate(sources):
        for kind, reference in _mapping(source, f"{path}[{at}]").items():
            if kind != "prefix" and not (isinstance(reference, dict) and reference.get("optional") is True):
                raise _BrokenError(
                    f"{path}[{at}].{kind}", reference, "optional: ConfigMaps and Secrets are not supported here"
                )


def _words(value: object, path: str) -> list[str]:
    words = _list(value, path)
    for at, word in enumerate(words):
        if not isinstance(word, str) or "\0" in word:
            raise _BrokenError(f"{path}[{at}]", word, "a string: quote numbers")
    return words


def _mapping(value: object, path: str) -> JsonView:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _BrokenError(path, value, "a mapping")
    return value


def _list(value: object, path: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _BrokenError(path, value, "a list")
    return value


# --- expansion -------------------------------------------------------------------------------------------------

_FIELD_VALUES: Mapping[str, Callable[[JsonView, str], str]] = {
    "metadata.name": lambda metadata, node: str(metadata.get("name", "")),
    "metadata.namespace": lambda metadata, node: str(metadata.get("namespace", "default")),
    "metadata.uid": lambda metadata, node: str(metadata.get("uid", "")),
    "spec.nodeName": lambda metadata, node: node,
    "spec.serviceAccountName": lambda metadata, node: "default",
    "status.hostIP": lambda metadata, node: "127.0.0.1",
    "status.podIP": lambda metadata, node: "127.0.0.1",
}


def expand(
    container: ContainerPlan, metadata: JsonView, node: str, *, has_card: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Its command and its env, with every $(VARIABLE) expanded as in Kubernetes."""
    found: dict[str, str] = {}
    for variable in container.variables:
        found[variable.name] = (
            _expanded(variable.value, found) if variable.field is None else _field_value(variable.field, metadata, node)
        )
    command = tuple(_expanded(word, found) for word in container.command)
    return command or (SAMPLE if has_card else _IDLE), found


def _field_value(field: str, metadata: JsonView, node: str) -> str:
    keyed = _KEYED.fullmatch(field)
    if keyed is None:
        return _FIELD_VALUES[field](metadata, node)
    values = metadata.get(keyed[1])
    return str(values.get(keyed[2], "")) if isinstance(values, dict) else ""


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """Replaces $(NAME) if NAME is set; $$ is a literal $."""
    return _VARIABLE.sub(lambda match: "$" if match[1] == "$" else known.get(match[2], match[0]), text)


def _check_expanded(plan: PodPlan, metadata: JsonView) -> None:
    """Ten variables that refer to each other ten times need more than any memory: count before expanding."""
    total = 0
    for container in plan.containers:
        lengths: dict[str, int] = {}
        for variable in container.variables:
            value = "" if variable.field is None else _field_value(variable.field, metadata, "")
            lengths[variable.name] = _expanded_length(variable.value, lengths) + len(value)
            total += lengths[variable.name]
        total += sum(_expanded_length(word, lengths) for word in container.command)
        if total > _MOST_EXPANDED:
            allowed = f"at most {_MOST_EXPANDED} in a Pod, once every $(VARIABLE) is expanded"
            raise _BrokenError("spec.containers", f"{total} characters of commands and env", allowed)


def _expanded_length(text: str, lengths: Mapping[str, int]) -> int:
    """The length of the expanded text, at most."""
    found = _VARIABLE.finditer(text)
    return len(text) + sum(lengths.get(match[2], len(match[0])) - len(match[0]) for match in found)


# --- notes -------------------------------------------------------------------------------------------------------


def notes_of(pod: JsonView, plan: PodPlan, with_cards: frozenset[str], path: str = "spec") -> list[str]:
    """Sentences, each once. `with_cards`: the containers that request cards; `path`: of the spec."""
    spec = pod.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    found = unknown_fields(spec, path)
    found += [
        f"image {image} is not used: containers are local processes"
        for image in dict.fromkeys(container.image for container in plan.containers if container.image)
    ]
    for container in plan.containers:
        if not container.command:
            instead = SAMPLE if container.name in with_cards else _IDLE
            found.append(f"container {container.name} has no command: runs `{' '.join(instead)}` instead of its image")
    found += [text for field, text in _OF_PODS.items() if spec.get(field)]
    containers = [container for field in ("initContainers", "containers") for container in spec.get(field) or ()]
    found += [text for field, text in _OF_CONTAINERS.items() if any(container.get(field) for container in containers)]
    if any(not container.get("command") and container.get("args") for container in containers):
        found.append("args without a command are used as the command: images are not used")
    resources = _extended_resources(containers)
    if not with_cards:
        found.append(_no_card(resources))
    elif unknown := [name for name in resources if name not in RESOURCES]:
        found.append(f"{', '.join(unknown)}: not served on one machine, and ignored")
    return list(dict.fromkeys(found))


def _extended_resources(containers: list[JsonView]) -> list[str]:
    """The names of the resources that containers ask for, other than CPU, memory and the like."""
    resources = [container.get("resources") for container in containers]
    sides = [resource.get(side) for resource in resources if isinstance(resource, dict) for side in _SIDES]
    return sorted({str(name) for side in sides if isinstance(side, dict) for name in side if "/" in str(name)})


def _no_card(names: list[str]) -> str:
    """A note, because a misspelled resource looks like a Pod without cards."""
    unknown = [name for name in names if name not in RESOURCES]
    if unknown:
        are = "are no resources" if len(unknown) > 1 else "is not a resource"
        return f"no card requested: {', '.join(unknown)} {are} of qGPU, T9k, gpushare or HAMi"
    return f"no card requested: {', '.join(names)} of 0 asks for nothing" if names else "no card requested"
