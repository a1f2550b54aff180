"""What people write down, on its way to the daemon: the files, what of them runs here, and what the daemon answers."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.cli.errors import InputError
from aliquot.cli.manifests import Manifest, read_manifests
from aliquot.cli.pods.kinds import APPLIED, BY_NAME, DEFAULT_NAMESPACE, Kind

if TYPE_CHECKING:
    from aliquot.adapters.host.control import AnswerError, Connection
    from aliquot.model.refusal import Invalid

Json = dict[str, Any]

_ENDINGS = (".yaml", ".yml", ".json")
_RUN_HERE = f"{', '.join(kind.name for kind in APPLIED[:-1])} or {APPLIED[-1].name}"
_ANSWER = 600.0  # seconds; a Pod that is made anew ends first, which may take its grace

# What a local process cannot do without. The rest of the caller's environment stays the caller's: on Kubernetes none of
# it would be there, and what is stored with a Pod must hold no secrets that nobody wrote into it.
PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR",
    "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_HOME",
)  # fmt: skip


def read_files(paths: Sequence[Path]) -> list[Manifest]:
    """The objects of all files; of a folder, those of its .yaml, .yml and .json files, by name. Raises InputError."""
    if [str(path) for path in paths].count("-") > 1:
        raise InputError("-f -: stdin can be read only once")
    found = [manifest for path in paths for file in _files(path) for manifest in read_manifests(file)]
    if not found:
        raise InputError(f"{', '.join(map(str, paths))}: has no object in it: {_RUN_HERE} is wanted")
    return found


def _files(path: Path) -> list[Path]:
    if str(path) == "-" or not path.is_dir():
        return [path]
    try:
        found = sorted(path for path in path.iterdir() if path.suffix in _ENDINGS and not path.is_dir())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    if not found:
        raise InputError(f"{path}: has no {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]} file in it")
    return found


def runnable(manifests: Sequence[Manifest]) -> tuple[list[Manifest], dict[str, list[str]]]:
    """Those that run on one machine; and the names of the others, by kind. Raises InputError when none is left."""
    ours: list[Manifest] = []
    others: dict[str, list[str]] = {}
    for manifest in manifests:
        kind = manifest.value.get("kind")
        if not isinstance(kind, str) or not kind:
            raise manifest.error(f"kind is missing: {_RUN_HERE} is wanted")
        if BY_NAME.get(kind) in APPLIED:
            ours.append(manifest)
        else:
            metadata = manifest.value.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            others.setdefault(kind, []).append(str(name or "(no name)"))
    if not ours:
        only = f", only {', '.join(others)}" if others else ""
        raise InputError(
            f"{manifests[0].path}: has nothing in it that runs on one machine{only}: {_RUN_HERE} is wanted"
        )
    return ours, others


def named(manifest: Manifest, namespace: str | None) -> tuple[Kind, str, str]:
    """Kind, namespace and name. `namespace` is -n: for what has none of its own. Raises InputError."""
    kind, metadata = BY_NAME[manifest.value["kind"]], manifest.value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
        raise manifest.error(f"{kind.name}: metadata.name is missing: without it nobody can get or delete it")
    own = metadata.get("namespace")
    if own is not None and not isinstance(own, str):
        raise manifest.error(f"{kind.name} {name}: metadata.namespace: {own} is not allowed: text")
    if own and namespace and own != namespace:
        raise manifest.error(f"{kind.name} {name} is in namespace {own}: -n {namespace} does not go with that")
    return kind, own or namespace or DEFAULT_NAMESPACE, name


def check_alone(manifests: Sequence[Manifest], namespace: str | None) -> list[Json]:
    """As a daemon without any Pods would answer a dry run: what they say is checked, not whether it fits. Raises
    InputError, with file and line."""
    from aliquot.dialects.local.objects import read_objects
    from aliquot.model.refusal import Invalid

    keys, objects = _spelled_out(manifests, namespace)
    found = read_objects(objects)
    if isinstance(found, Invalid):
        raise _at_its_place(found, manifests, keys)
    return [
        {"kind": each.kind, "namespace": each.namespace, "name": each.name, "action": "created", "pods": [],
         "notes": list(each.notes)}
        for each in found
    ]  # fmt: skip


def _spelled_out(
    manifests: Sequence[Manifest], namespace: str | None
) -> tuple[list[tuple[Kind, str, str]], list[Json]]:
    """Who they are, and the objects with their namespaces in them."""
    keys = [named(manifest, namespace) for manifest in manifests]
    objects = [
        {**each.value, "metadata": {**each.value["metadata"], "namespace": where}}
        for each, (_, where, _) in zip(manifests, keys, strict=True)
    ]
    return keys, objects


def send(connection: Connection, manifests: Sequence[Manifest], namespace: str | None, *, dry_run: bool) -> list[Json]:
    """The daemon's word on each. Raises InputError, with file and line where one of them is not allowed."""
    from aliquot.adapters.host.control import LONGEST, AnswerError, ControlError

    keys, objects = _spelled_out(manifests, namespace)
    request = {"op": "apply", "objects": objects, "cwd": os.getcwd(), "env": _environment(), "dry_run": dry_run}
    size = len(json.dumps(request))
    try:
        if size > LONGEST:
            raise InputError(
                f"{len(objects)} objects are too much at once: {size >> 10} KiB of at most {LONGEST >> 10}"
            )
        connection.send(request)
        for said in connection.events(_ANSWER):
            if "ok" in said:
                results: list[Json] = said["ok"]["results"]
                return results
    except AnswerError as error:
        raise _refused(error, manifests, keys) from error
    except TimeoutError:
        raise InputError("the daemon does not answer: `aliquot get pods` may tell what became of it") from None
    except ControlError as error:
        raise InputError(str(error), code=1) from error
    finally:
        connection.close()
    raise InputError("the daemon said nothing", code=1)


def _environment() -> dict[str, str]:
    found = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    # What we are ourselves is there, even if it was called as .venv/bin/aliquot.
    found["PATH"] = os.pathsep.join([*os.get_exec_path(), os.path.dirname(sys.executable)])
    return found


def _refused(error: AnswerError, manifests: Sequence[Manifest], keys: Sequence[tuple[Kind, str, str]]) -> InputError:
    from aliquot.cli.client import refused

    if error.kind == "invalid":
        from aliquot.model.refusal import Invalid

        said = error.details
        broken = Invalid(str(said.get("field")), said.get("value"), str(said.get("allowed")))
        return _at_its_place(broken, manifests, keys)
    return refused(error, "object")


def _at_its_place(broken: Invalid, manifests: Sequence[Manifest], keys: Sequence[tuple[Kind, str, str]]) -> InputError:
    """With file and line."""
    for manifest, (kind, namespace, name) in zip(manifests, keys, strict=True):
        unnamed = {f"{kind.name}: metadata.name": name, f"{kind.name} {name}: metadata.namespace": namespace}
        of_it = broken.field.startswith(f"{kind.name} {namespace}/{name}:")
        if of_it or (broken.field in unnamed and unnamed[broken.field] == broken.value):
            return manifest.error(broken.sentence())
    return InputError(broken.sentence())


# The notes that name a part of the object: alike but for that part, they are one.
_PART = re.compile(r"(image|container) \S+ (.*)", re.DOTALL)


def noted(results: Sequence[Json]) -> Iterator[str]:
    """Each kind of note once, with whom it is about; not again for what was there already."""
    from aliquot.cli.pods.rows import shortened

    about: dict[str, dict[str, None]] = {}
    texts: dict[str, set[str]] = {}
    for result in results:
        for note in result.get("notes", ()) if result["action"] != "unchanged" else ():
            part = _PART.fullmatch(note)
            kind = f"the {part[1]} {part[2]}" if part else note
            about.setdefault(kind, {})[result["name"]] = None
            texts.setdefault(kind, set()).add(note)
    for kind, names in about.items():
        (text, *others) = texts[kind]
        yield f"{shortened(list(names), 3)}: {kind if others else text}"


def skipped(others: Mapping[str, Sequence[str]]) -> str:
    """What is not run here, in one line."""
    from aliquot.cli.pods.rows import shortened

    listed = "; ".join(f"{kind} {shortened(names, 3)}" for kind, names in others.items())
    return f"skipped: {listed}: on one machine only Pods are run, and what makes them"
