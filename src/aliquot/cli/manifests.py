"""The files people hand us: YAML or JSON, several documents, Lists; with line and column in every error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from aliquot.cli.errors import InputError
from aliquot.cli.yamlvalues import Document, Place, ValuesError, parse_yaml


@dataclass(frozen=True, slots=True)
class Manifest:
    """One Kubernetes object, and where it stands."""

    value: dict[str, Any]
    path: Path
    place: Place

    def error(self, message: str) -> InputError:
        """An error about it."""
        return _error(self.path, self.place, message)


def read_manifests(path: Path) -> list[Manifest]:
    """The objects of all documents, Lists opened. "-" is standard input. Raises InputError."""
    return [each for document in _read(path) for each in _opened(path, document)]


def _read(path: Path) -> list[Document]:
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if raw.lstrip()[:1] == b"{":  # JSON is YAML too, but twenty times faster read as JSON
        try:
            return [Document(msgspec.json.decode(raw))]
        except (msgspec.DecodeError, ValueError, RecursionError):
            pass  # several documents, or YAML in braces; where it is neither, YAML's reader tells the line
    try:
        return list(parse_yaml(raw))
    except ValuesError as error:
        raise _error(path, error.place, str(error)) from error


def _opened(path: Path, document: Document) -> Iterator[Manifest]:
    waiting: list[tuple[str, Place, Any]] = [("", document.place, document.value)]
    while waiting:
        where, place, value = waiting.pop()
        if not isinstance(value, dict):
            what = "a list" if isinstance(value, list) else "nothing" if value is None else "not a mapping"
            raise _error(path, place, f"{where or 'the document'} is {what}: a Kubernetes object is wanted")
        kind, items = value.get("kind"), value.get("items")
        if not isinstance(kind, str) or not kind.endswith("List") or "items" not in value:
            yield Manifest(value, path, place)
        elif not isinstance(items, list | None):
            raise _error(path, place, f"{where}{'.' if where else ''}items is not a list")
        else:
            of = kind.removesuffix("List")
            for index, item in reversed(list(enumerate(items or []))):
                # The items of a PodList do not repeat that they are Pods.
                named = {"kind": of, **item} if of and isinstance(item, dict) else item
                waiting.append((f"{where}{'.' if where else ''}items[{index}]", document.place_of(item), named))


def _error(path: Path, place: Place, message: str) -> InputError:
    return InputError(f"{path}:{place[0]}:{place[1]}: {message}")
