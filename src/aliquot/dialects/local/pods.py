"""What the containers of a Pod come down to on a machine without a container runtime: commands with an environment.

plan_of       every container's command, environment and restarts; or the first thing that cannot be done here
spelled       one container's command and environment, once it is known where the Pod is
notes_of      what of a Pod means nothing here, in sentences: it is said, and not silently dropped
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aliquot.dialects.podfields import unknown_fields
from aliquot.dialects.pods import Json
from aliquot.model.refusal import Invalid

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
NAME_ALLOWED = "small letters, digits and -, as in web-1; at most 63"
POLICIES = ("Always", "OnFailure", "Never")
SAMPLE = ("aliquot", "burn", "load", "--seconds", "3600")  # stands in for what an image would start: no short task
_IDLE = ("sleep", "infinity")  # the same, of one that has no card
_GRACE = 30.0
LONGEST_GRACE = 86400.0  # seconds
_MOST_CONTAINERS = 32  # of one Pod: each is given its environment
_MOST_EXPANDED = 1 << 18  # characters of all commands and variables of a Pod, once every $(VARIABLE) is expanded
_VARIABLE = re.compile(r"\$(\$|\(([-._A-Za-z0-9]+)\))")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_FIELDS = "metadata.name, metadata.namespace, metadata.uid, metadata.labels['KEY'], metadata.annotations['KEY'], "
_FIELDS += "spec.nodeName, spec.serviceAccountName, status.hostIP or status.podIP"

# What is not done here, by where it stands, in words.
_OF_PODS = {
    "volumes": "volumes are not mounted: containers see this machine's own files",
    "nodeSelector": "nodeSelector is not heeded: the nodes here have no labels",
    "affinity": "affinity is not heeded: the nodes here have no labels",
    "topologySpreadConstraints": "topologySpreadConstraints are not heeded: the nodes here have no labels",
    "nodeName": "nodeName is not heeded: the Pod goes where there is room",
    "securityContext": "securityContext is not applied: containers run as whoever applied them",
    "activeDeadlineSeconds": "activeDeadlineSeconds is not heeded",
    "hostAliases": "hostAliases are not written: containers see this machine's own",
    "dnsConfig": "dnsConfig is not applied: containers see this machine's own",
    "priorityClassName": "priorityClassName is not heeded: first come, first served",
}
_OF_CONTAINERS = {
    "volumeMounts": "volumeMounts are not mounted: containers see this machine's own files",
    "ports": "ports are this machine's own: two containers cannot listen on the same one",
    "livenessProbe": "probes are not run: a container counts as ready while it runs",
    "readinessProbe": "probes are not run: a container counts as ready while it runs",
    "startupProbe": "probes are not run: a container counts as ready while it runs",
    "lifecycle": "lifecycle hooks are not run",
    "securityContext": "securityContext is not applied: containers run as whoever applied them",
    "workingDir": "workingDir is used where it is a folder of this machine",
}


@dataclass(frozen=True, slots=True)
class Variable:
    """One entry of env. `field` where the value is told by the Pod itself."""

    name: str
    value: str = ""
    field: str | None = None


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """What one container is. An init container that is restarted always is a sidecar: it runs beside the others."""

    name: str
    image: str
    command: tuple[str, ...]  # empty: what its image would start, which is not known here
    variables: tuple[Variable, ...]
    folder: str | None
    init: bool = False
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class PodPlan:
    """`containers` in the order in which they are started. `grace` in seconds."""

    containers: tuple[ContainerPlan, ...]
    restart_policy: str
    grace: float


class _BrokenError(Exception):
    """Where reading stops; `plan_of` answers with it."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field)
        self.invalid = Invalid(field, value, allowed)


def plan_of(pod: Json) -> PodPlan | Invalid:
    """What there is to run, or the first thing that cannot be done here. Never raises on any JSON."""
    try:
        plan = _plan(_mapping(pod.get("spec"), "spec"))
        _check_expanded(plan, _mapping(pod.get("metadata"), "metadata"))
        return plan
    except _BrokenError as broken:
        return broken.invalid


def restart_policy_of(pod: Json) -> str:
    """Of a Pod that was found good: without reading all of it."""
    return str(pod["spec"].get("restartPolicy") or POLICIES[0])


def _plan(spec: Json) -> PodPlan:
    containers = [*_containers(spec, "initContainers"), *_containers(spec, "containers")]
    if not any(not container.init for container in containers):
        raise _BrokenError("spec.containers", spec.get("containers"), "a list of at least one container")
    if len(containers) > _MOST_CONTAINERS:
        raise _BrokenError("spec.containers", len(containers), f"at most {_MOST_CONTAINERS} containers in a Pod")
    for name, count in Counter(container.name for container in containers).items():
        if count > 1:
            raise _BrokenError("spec.containers", name, "a name of its own for each container")
    policy = spec.get("restartPolicy")
    policy = POLICIES[0] if policy is None else policy
    if policy not in POLICIES:
        raise _BrokenError("spec.restartPolicy", policy, ", ".join(POLICIES))
    grace = spec.get("terminationGracePeriodSeconds")
    grace = _GRACE if grace is None else grace
    if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace <= LONGEST_GRACE:
        raise _BrokenError("spec.terminationGracePeriodSeconds", grace, "seconds, 0 to 86400")
    return PodPlan(tuple(containers), policy, float(grace))


def _containers(spec: Json, field: str) -> Iterator[ContainerPlan]:
    for at, value in enumerate(_list(spec.get(field), f"spec.{field}")):
        path = f"spec.{field}[{at}]"
        each, init = _mapping(value, path), field == "initContainers"
        name = each.get("name")
        if not isinstance(name, str) or not LABEL.fullmatch(name):
            raise _BrokenError(f"{path}.name", name, NAME_ALLOWED)
        folder = each.get("workingDir")
        if folder is not None and not isinstance(folder, str):
            raise _BrokenError(f"{path}.workingDir", folder, "a folder")
        if _list(each.get("envFrom"), f"{path}.envFrom"):
            _check_sources(each["envFrom"], f"{path}.envFrom")
        words = [*_words(each.get("command"), f"{path}.command"), *_words(each.get("args"), f"{path}.args")]
        sidecar = init and each.get("restartPolicy") == "Always"
        image = each.get("image")
        yield ContainerPlan(
            name, image if isinstance(image, str) else "", tuple(words),
            tuple(_variables(each.get("env"), f"{path}.env")), folder or None, init, sidecar,
        )  # fmt: skip


def _variables(value: object, path: str) -> Iterator[Variable]:
    for at, entry in enumerate(_list(value, path)):
        where = f"{path}[{at}]"
        each = _mapping(entry, where)
        name = each.get("name")
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise _BrokenError(f"{where}.name", name, "the name of an environment variable")
        source = each.get("valueFrom")
        if source is not None:
            field = _field(_mapping(source, f"{where}.valueFrom"), f"{where}.valueFrom")
            if field is not None:
                yield Variable(name, field=field)
            continue
        text = each.get("value")
        if text is not None and (not isinstance(text, str) or "\0" in text):
            raise _BrokenError(f"{where}.value", text, "text: put numbers in quotes")
        yield Variable(name, text or "")


def _field(source: Json, path: str) -> str | None:
    """The field of the Pod that it refers to; None: something that is not here, and need not be."""
    if "fieldRef" in source:
        field = _mapping(source["fieldRef"], f"{path}.fieldRef").get("fieldPath")
        if isinstance(field, str) and (field in _TOLD or _KEYED.fullmatch(field)):
            return field
        raise _BrokenError(f"{path}.fieldRef.fieldPath", field, _FIELDS)
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if kind in source and _mapping(source[kind], f"{path}.{kind}").get("optional") is True:
            return None
    raise _BrokenError(path, next(iter(source), None), "fieldRef: there are no ConfigMaps, Secrets or limits here")


def _check_sources(sources: list[Any], path: str) -> None:
    for at, source in enumerate(sources):
        for kind, each in _mapping(source, f"{path}[{at}]").items():
            if kind != "prefix" and not (isinstance(each, dict) and each.get("optional") is True):
                raise _BrokenError(f"{path}[{at}].{kind}", each, "optional: there are no ConfigMaps or Secrets here")


def _words(value: object, path: str) -> list[str]:
    words = _list(value, path)
    for at, word in enumerate(words):
        if not isinstance(word, str) or "\0" in word:
            raise _BrokenError(f"{path}[{at}]", word, "text: put numbers in quotes")
    return words


def _mapping(value: object, path: str) -> Json:
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


# --- once it is known where the Pod is ---------------------------------------------------------------------------

_TOLD: Mapping[str, Callable[[Json, str], str]] = {
    "metadata.name": lambda metadata, node: str(metadata.get("name", "")),
    "metadata.namespace": lambda metadata, node: str(metadata.get("namespace", "default")),
    "metadata.uid": lambda metadata, node: str(metadata.get("uid", "")),
    "spec.nodeName": lambda metadata, node: node,
    "spec.serviceAccountName": lambda metadata, node: "default",
    "status.hostIP": lambda metadata, node: "127.0.0.1",
    "status.podIP": lambda metadata, node: "127.0.0.1",
}


def spelled(
    container: ContainerPlan, metadata: Json, node: str, *, has_card: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Its command and what its env sets, with every $(VARIABLE) expanded as Kubernetes does."""
    found: dict[str, str] = {}
    for variable in container.variables:
        found[variable.name] = (
            _expanded(variable.value, found) if variable.field is None else _told(variable.field, metadata, node)
        )
    command = tuple(_expanded(word, found) for word in container.command)
    return command or (SAMPLE if has_card else _IDLE), found


def _told(field: str, metadata: Json, node: str) -> str:
    keyed = _KEYED.fullmatch(field)
    if keyed is None:
        return _TOLD[field](metadata, node)
    there = metadata.get(keyed[1])
    return str(there.get(keyed[2], "")) if isinstance(there, dict) else ""


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """$(NAME) is what NAME is, or stays as it is where nothing was set so far; $$ is a $ that begins nothing."""
    return _VARIABLE.sub(lambda match: "$" if match[1] == "$" else known.get(match[2], match[0]), text)


def _check_expanded(plan: PodPlan, metadata: Json) -> None:
    """Ten variables that name each other ten times over are more than any memory: counted before they are written."""
    total = 0
    for container in plan.containers:
        lengths: dict[str, int] = {}
        for variable in container.variables:
            told = "" if variable.field is None else _told(variable.field, metadata, "")
            lengths[variable.name] = _expanded_length(variable.value, lengths) + len(told)
            total += lengths[variable.name]
        total += sum(_expanded_length(word, lengths) for word in container.command)
        if total > _MOST_EXPANDED:
            allowed = f"at most {_MOST_EXPANDED} in a Pod, once every $(VARIABLE) is expanded"
            raise _BrokenError("spec.containers", f"{total} characters of commands and env", allowed)


def _expanded_length(text: str, lengths: Mapping[str, int]) -> int:
    """Of what _expanded answers, at most."""
    found = _VARIABLE.finditer(text)
    return len(text) + sum(lengths.get(match[2], len(match[0])) - len(match[0]) for match in found)


# --- what means nothing here -------------------------------------------------------------------------------------


def notes_of(pod: Json, plan: PodPlan, asking: frozenset[str], path: str = "spec") -> list[str]:
    """In sentences, each once. `asking` are the containers that ask for cards; `path` is where the spec stands."""
    spec = pod.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    found = unknown_fields(spec, path)
    found += [
        f"image {image} is not used: containers are local processes"
        for image in dict.fromkeys(container.image for container in plan.containers if container.image)
    ]
    for container in plan.containers:
        if not container.command:
            instead = SAMPLE if container.name in asking else _IDLE
            found.append(
                f"container {container.name} has no command, and what its image would start is not known here: "
                f"`{' '.join(instead)}` runs in its place"
            )
    found += [text for field, text in _OF_PODS.items() if spec.get(field)]
    written = [each for field in ("initContainers", "containers") for each in spec.get(field) or ()]
    found += [text for field, text in _OF_CONTAINERS.items() if any(each.get(field) for each in written)]
    if any(not each.get("command") and each.get("args") for each in written):
        found.append("args without a command are taken for the command: what the image would start is not known here")
    if not asking:
        found.append(_no_card(written))
    return list(dict.fromkeys(found))


def _no_card(written: list[Json]) -> str:
    """Said, for a slip in a resource's name reads like a Pod that wants none."""
    limits = [each["resources"].get("limits") for each in written if isinstance(each.get("resources"), dict)]
    names = sorted({str(name) for limit in limits if isinstance(limit, dict) for name in limit if "/" in str(name)})
    unknown = f": {', '.join(names)} is no resource of qGPU, T9k or gpushare" if names else ""
    return f"no card is asked for, and none is given{unknown}"
