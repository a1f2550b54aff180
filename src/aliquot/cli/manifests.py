"""The files people hand us: YAML or JSON, several documents, with line and column in every error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml

from aliquot.cli.main import InputError


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C one where it is built in
    """YAML as Kubernetes reads it: a date is text."""


_Loader.yaml_implicit_resolvers = {
    sign: [(tag, form) for tag, form in known if tag != "tag:yaml.org,2002:timestamp"]
    for sign, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_documents(path: Path) -> list[tuple[int, Any]]:
    """(line, document) of each, empty ones left out. "-" is standard input. Raises InputError."""
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if raw.lstrip()[:1] == b"{":  # JSON is YAML too, but a hundred times faster read as JSON
        try:
            return [(1, msgspec.json.decode(raw))]
        except msgspec.DecodeError:
            pass  # several documents, or YAML in braces: YAML's reader tells better what is wrong
    return _read_yaml(path, raw)


def _read_yaml(path: Path, raw: bytes) -> list[tuple[int, Any]]:
    loader = None
    try:
        loader = _Loader(raw)
        documents = []
        while loader.check_node():
            node = loader.get_node()
            documents.append((node.start_mark.line + 1, loader.construct_document(node)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        raise InputError(f"{path}:{place}: is not YAML: {error.problem or error.context}") from error
    except yaml.reader.ReaderError as error:
        line = raw[: error.position].count(b"\n") + 1
        raise InputError(f"{path}:{line}:1: is not YAML: {error.reason}") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits; a thousand brackets
        raise InputError(f"{path}:1:1: cannot be read: {str(error).splitlines()[0]}") from error
    finally:
        if loader is not None:
            loader.dispose()
    return [(line, document) for line, document in documents if document is not None]


def flatten(documents: list[tuple[int, Any]], path: Path) -> list[Any]:
    """The objects of all documents, Lists opened. Raises InputError for what is no Kubernetes object."""
    found: list[Any] = []
    for line, document in documents:
        if not isinstance(document, dict):
            what = "a list" if isinstance(document, list) else "not a mapping"
            raise InputError(f"{path}:{line}:1: {what}: a Kubernetes object is wanted (kind, metadata, spec)")
        items = document.get("items")
        if str(document.get("kind", "")).endswith("List") and items is not None:
            if not isinstance(items, list):
                raise InputError(f"{path}:{line}:1: items: a list is wanted")
            kind = str(document["kind"]).removesuffix("List")
            found += [{"kind": kind, **item} if kind and isinstance(item, dict) else item for item in items]
        else:
            found.append(document)
    return found
