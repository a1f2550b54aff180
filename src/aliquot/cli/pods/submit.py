"""Reads manifest files, selects the objects that run on one machine and submits them to the daemon."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.cli.errors import InputError
from aliquot.cli.manifests import Manifest, read_manifests
from aliquot.cli.pods.kinds import APPLIED, BY_NAME, DEFAULT_NAMESPACE, Kind
from aliquot.model.decoding.openjson import JsonObject

if TYPE_CHECKING:
    from aliquot.adapters.host.control import AnswerError, Connection
    from aliquot.model.refusal import Invalid
    from aliquot.model.status.answers import AppliedObject


_ENDINGS = (".yaml", ".yml", ".json")
_RUN_HERE = f"{', '.join(kind.name for kind in APPLIED[:-1])} or {APPLIED[-1].name}"
_ANSWER = 600.0  # seconds; a replaced Pod ends first, which may take its grace period

# Variables that a local process needs. The rest of the caller's environment is not passed on: Kubernetes would not
# either, and secrets that are not in the manifest must not be stored with a Pod.
PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR",
    "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_HOME",
)  # fmt: skip


def read_files(paths: Sequence[Path]) -> list[Manifest]:
    """The objects of all files and of the .yaml, .yml and .json files of folders. Raises InputError."""
    if [str(path) for path in paths].count("-") > 1:
        raise InputError("-f -: stdin can be read only once")
    found = [manifest for path in paths for file in _files(path) for manifest in read_manifests(file)]
    if not found:
        raise InputError(f"{', '.join(map(str, paths))}: no object found: expected {_RUN_HERE}")
    return found


def _files(path: Path) -> list[Path]:
    if str(path) == "-" or not path.is_dir():
        return [path]
    try:
        found = sorted(path for path in path.iterdir() if path.suffix in _ENDINGS and not path.is_dir())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    if not found:
        raise InputError(f"{path}: no {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]} file found")
    return found


def runnable(manifests: Sequence[Manifest]) -> tuple[list[Manifest], dict[str, list[str]]]:
    """The objects that run on one machine, and the names of the others by kind. Raises InputError if none is left."""
    selected: list[Manifest] = []
    others: dict[str, list[str]] = {}
    for manifest in manifests:
        kind = manifest.value.get("kind")
        if not isinstance(kind, str) or not kind:
            raise manifest.error(f"kind is missing: expected {_RUN_HERE}")
        if BY_NAME.get(kind) in APPLIED:
            selected.append(manifest)
        else:
            metadata = manifest.value.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            others.setdefault(kind, []).append(str(name or "(no name)"))
    if not selected:
        only = f", only {', '.join(others)}" if others else ""
        raise InputError(f"{manifests[0].path}: no object that runs on one machine{only}: expected {_RUN_HERE}")
    return selected, others


def named(manifest: Manifest, namespace: str | None) -> tuple[Kind, str, str]:
    """Kind, namespace and name. `namespace` (-n) is for objects that name none. Raises InputError."""
    kind, metadata = BY_NAME[manifest.value["kind"]], manifest.value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
        raise manifest.error(f"{kind.name}: metadata.name is missing")
    own = metadata.get("namespace")
    if own is not None and not isinstance(own, str):
        raise manifest.error(f"{kind.name} {name}: metadata.namespace: {own} is not allowed: a string")
    if own and namespace and own != namespace:
        raise manifest.error(f"{kind.name} {name} is in namespace {own}, which contradicts -n {namespace}")
    return kind, own or namespace or DEFAULT_NAMESPACE, name


def check_offline(manifests: Sequence[Manifest], namespace: str | None, rules: str | None) -> list[AppliedObject]:
    """The results of a dry run without a daemon. Does not check whether the Pods fit. Raises InputError with file and
    line."""
    from aliquot.dialects import QgpuRules, Rules
    from aliquot.dialects.local.objects import read_objects
    from aliquot.model.refusal import Invalid
    from aliquot.model.status.answers import AppliedObject

    keys, objects = _with_namespaces(manifests, namespace)
    found = read_objects(objects, Rules(QgpuRules(rules or "seed")))
    if isinstance(found, Invalid):
        raise _located(found, manifests, keys)
    return [AppliedObject(item.kind, item.namespace, item.name, "created", notes=list(item.notes)) for item in found]


def _with_namespaces(
    manifests: Sequence[Manifest], namespace: str | None
) -> tuple[list[tuple[Kind, str, str]], list[JsonObject]]:
    """The identities of the objects, and the objects with their namespaces."""
    keys = [named(manifest, namespace) for manifest in manifests]
    objects = [
        {**manifest.value, "metadata": {**manifest.value["metadata"], "namespace": where}}
        for manifest, (_, where, _) in zip(manifests, keys, strict=True)
    ]
    return keys, objects


def send(
    connection: Connection,
    manifests: Sequence[Manifest],
    namespace: str | None,
    *,
    rules: str | None = None,
    dry_run: bool,
) -> list[AppliedObject]:
    """The daemon's result per object. Raises InputError, with file and line for an invalid object."""
    from aliquot.adapters.host.control import LONGEST, AnswerError, ControlError
    from aliquot.cli.client import parse_answer
    from aliquot.model.status.answers import AppliedObject

    keys, objects = _with_namespaces(manifests, namespace)
    request = {"op": "apply", "objects": objects, "env": _environment(), "dry_run": dry_run}
    request |= {} if rules is None else {"rules": rules}
    try:
        request["cwd"] = _current_folder()
        size = len(json.dumps(request))
        if size > LONGEST:
            raise InputError(
                f"{len(objects)} objects: {size >> 10} KiB, at most {LONGEST >> 10} KiB: apply fewer at once"
            )
        connection.send(request)
        for message in connection.events(_ANSWER):
            if "ok" in message:
                return parse_answer(message["ok"]["results"], list[AppliedObject])
    except AnswerError as error:
        raise _refused(error, manifests, keys) from error
    except TimeoutError:
        raise InputError("the daemon does not answer: see `aliquot get pods` for the result") from None
    except ControlError as error:
        raise InputError(str(error), code=1) from error
    finally:
        connection.close()
    raise InputError("the daemon closed the connection without an answer", code=1)


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise InputError("the current folder, in which Pods run, was deleted: cd to another one") from None


def _environment() -> dict[str, str]:
    found = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    # `aliquot` itself is found even if it was called as .venv/bin/aliquot.
    found["PATH"] = os.pathsep.join([*os.get_exec_path(), os.path.dirname(sys.executable)])
    return found


def _refused(error: AnswerError, manifests: Sequence[Manifest], keys: Sequence[tuple[Kind, str, str]]) -> InputError:
    from aliquot.cli.client import refused

    if error.kind == "invalid":
        from aliquot.model.refusal import Invalid

        details = error.details
        broken = Invalid(str(details.get("field")), details.get("value"), str(details.get("allowed")))
        return _located(broken, manifests, keys)
    return refused(error, "object")


def _located(broken: Invalid, manifests: Sequence[Manifest], keys: Sequence[tuple[Kind, str, str]]) -> InputError:
    """The error with file and line of its object."""
    for manifest, (kind, namespace, name) in zip(manifests, keys, strict=True):
        unnamed = {f"{kind.name}: metadata.name": name, f"{kind.name} {name}: metadata.namespace": namespace}
        matches = broken.field.startswith((f"{kind.name} {namespace}/{name}:", f"{kind.name} {name}: apiVersion"))
        if matches or (broken.field in unnamed and unnamed[broken.field] == broken.value):
            return manifest.error(broken.sentence())
    return InputError(broken.sentence())


# Notes that differ only in the image or container are shown once.
_PART = re.compile(r"(image|container) \S+ (.*)", re.DOTALL)


def noted(results: Sequence[AppliedObject]) -> Iterator[str]:
    """Each note once, with the objects it is about. No notes for unchanged objects."""
    from aliquot.cli.pods.rows import shortened

    about: dict[str, dict[str, None]] = {}
    texts: dict[str, set[str]] = {}
    for result in results:
        for note in result.notes if result.action != "unchanged" else ():
            part = _PART.fullmatch(note)
            kind = f"the {part[1]} {part[2]}" if part else note
            about.setdefault(kind, {})[result.name] = None
            texts.setdefault(kind, set()).add(note)
    for kind, names in about.items():
        (text, *others) = texts[kind]
        yield f"{shortened(list(names), 3)}: {kind if others else text}"


def skipped(others: Mapping[str, Sequence[str]]) -> str:
    """The skipped objects in one line."""
    from aliquot.cli.pods.rows import shortened

    listed = "; ".join(f"{kind} {shortened(names, 3)}" for kind, names in others.items())
    return f"skipped: {listed}: one machine runs only Pods and workloads"
