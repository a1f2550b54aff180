"""Reads the commands of a Pod's containers: command and arguments, environment and working directory.

plan_of   the containers in start order; or the first field that this machine cannot serve
expand    command and environment of a container, with every $(VARIABLE) replaced
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aliquot.dialects.kube.shapes import mapping
from aliquot.model.claim import Role
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.refusal import Invalid
from aliquot.model.text import encodable

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME_ALLOWED = "at most 63 lower-case letters, digits and -, for example web-1"
_STRING = "a string: quote numbers"
_COMMAND_ALLOWED = "the image is not used here, and so its own command is not known: add the command"
_MOST_CONTAINERS = 32  # of one Pod
_MOST_EXPANDED = 1 << 18  # characters of all commands and variables of a Pod, once every $(VARIABLE) is expanded
_VARIABLE = re.compile(r"\$(\$|\(([-._A-Za-z0-9]+)\))")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_FIELDS = "metadata.name, metadata.namespace, metadata.labels['KEY'], metadata.annotations['KEY'], "
_FIELDS += "spec.nodeName, spec.serviceAccountName, status.hostIP or status.podIP"


@dataclass(frozen=True, slots=True)
class Variable:
    """One entry of env. `field`: the field of the Pod that has the value."""

    name: str
    value: str = ""
    field: str | None = None


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """One container."""

    name: str
    path: str  # of the container in the Pod
    command: tuple[str, ...]
    variables: tuple[Variable, ...]
    folder: str | None
    role: Role


class _BrokenError(Exception):
    """An invalid field; `plan_of` returns it."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field)
        self.invalid = Invalid(field, value, allowed)


def plan_of(pod: JsonView) -> tuple[ContainerPlan, ...] | Invalid:
    """The containers, or the first invalid field. Never raises on any JSON."""
    try:
        plan = _plan(_mapping(pod.get("spec"), "spec"))
        _check_expanded(plan, _mapping(pod.get("metadata"), "metadata"))
        return plan
    except _BrokenError as broken:
        return broken.invalid


def _plan(spec: JsonView) -> tuple[ContainerPlan, ...]:
    containers = (*_containers(spec, "initContainers"), *_containers(spec, "containers"))
    if not any(container.role is Role.MAIN for container in containers):
        raise _BrokenError("spec.containers", spec.get("containers"), "a list of at least one container")
    if len(containers) > _MOST_CONTAINERS:
        raise _BrokenError("spec.containers", len(containers), f"at most {_MOST_CONTAINERS} containers in a Pod")
    for name, count in Counter(container.name for container in containers).items():
        if count > 1:
            raise _BrokenError("spec.containers", name, "a unique name for each container")
    return containers


def _containers(spec: JsonView, field: str) -> Iterator[ContainerPlan]:
    for at, value in enumerate(_list(spec.get(field), f"spec.{field}")):
        path = f"spec.{field}[{at}]"
        container, init = _mapping(value, path), field == "initContainers"
        name = container.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _BrokenError(f"{path}.name", name, _NAME_ALLOWED)
        folder = container.get("workingDir")
        if folder is not None and not _is_text(folder):
            raise _BrokenError(f"{path}.workingDir", folder, "a folder")
        if _list(container.get("envFrom"), f"{path}.envFrom"):
            _check_sources(container["envFrom"], f"{path}.envFrom")
        command = _words(container.get("command"), f"{path}.command")
        if not command:
            raise _BrokenError(f"{path}.command", None, _COMMAND_ALLOWED)
        words = (*command, *_words(container.get("args"), f"{path}.args"))
        variables = tuple(_variables(container.get("env"), f"{path}.env"))
        yield ContainerPlan(name, path, words, variables, folder or None, _role(container, init=init))


def _role(container: JsonView, *, init: bool) -> Role:
    if not init:
        return Role.MAIN
    return Role.SIDECAR if container.get("restartPolicy") == "Always" else Role.INIT


def _variables(value: object, path: str) -> Iterator[Variable]:
    for at, entry in enumerate(_list(value, path)):
        where = f"{path}[{at}]"
        variable = _mapping(entry, where)
        name = variable.get("name")
        if not _is_text(name) or not name or "=" in name:
            raise _BrokenError(f"{where}.name", name, "the name of an environment variable")
        source = variable.get("valueFrom")
        if source is not None:
            field = _field(_mapping(source, f"{where}.valueFrom"), f"{where}.valueFrom")
            if field is not None:
                yield Variable(name, field=field)
            continue
        text = variable.get("value")
        if text is not None and not _is_text(text):
            raise _BrokenError(f"{where}.value", text, _STRING)
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
        if not _is_text(word):
            raise _BrokenError(f"{path}[{at}]", word, _STRING)
    return words


def _is_text(value: object) -> bool:
    """Whether a process can have it as a word or in its environment."""
    return isinstance(value, str) and "\0" not in value and encodable(value) == value


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
    "spec.nodeName": lambda metadata, node: node,
    "spec.serviceAccountName": lambda metadata, node: "default",
    "status.hostIP": lambda metadata, node: "127.0.0.1",
    "status.podIP": lambda metadata, node: "127.0.0.1",
}


def expand(container: ContainerPlan, metadata: JsonView, node: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Its command and its env, with every $(VARIABLE) expanded as in Kubernetes."""
    found: dict[str, str] = {}
    for variable in container.variables:
        found[variable.name] = (
            _expanded(variable.value, found) if variable.field is None else _field_value(variable.field, metadata, node)
        )
    return tuple(_expanded(word, found) for word in container.command), found


def _field_value(field: str, metadata: JsonView, node: str) -> str:
    keyed = _KEYED.fullmatch(field)
    values = metadata.get(keyed[1]) if keyed is not None else None
    found = _FIELD_VALUES[field](metadata, node) if keyed is None else str(mapping(values).get(keyed[2], ""))
    return encodable(found).replace("\0", "")


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """Replaces $(NAME) if NAME is set; $$ is a literal $."""
    return _VARIABLE.sub(lambda match: "$" if match[1] == "$" else known.get(match[2], match[0]), text)


def _check_expanded(containers: tuple[ContainerPlan, ...], metadata: JsonView) -> None:
    """Ten variables that refer to each other ten times need more than any memory: count before expanding."""
    total = 0
    for container in containers:
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
