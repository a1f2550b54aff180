"""Reads manifest files: YAML or JSON, several documents, Lists. Every error has line and column."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from aliquot.cli.errors import InputError
from aliquot.cli.yamlvalues import Document, Position, ValuesError, parse_yaml
from aliquot.model.decoding.openjson import JsonObject
from aliquot.wording.amounts import memory

_LARGEST = 512 << 20  # bytes
_LARGEST_CLUSTER = 4 << 30  # bytes; 28 kB for each of 150,000 Pods
_PIECE = 1 << 20  # bytes; a single read of the most that is allowed would allocate all of it at once


@dataclass(frozen=True, slots=True)
class Manifest:
    """One Kubernetes object and its position."""

    value: JsonObject
    path: Path
    position: Position
    raw: bytes = field(default=b"", repr=False)  # the whole file

    def error(self, message: str) -> InputError:
        """An error at the field that the message names, or at the object."""
        from aliquot.cli.fieldpositions import position_in

        return _error(self.path, position_in(self.raw, self.position, message), message)


def read_manifests(path: Path, *, of_cluster: bool = False) -> list[Manifest]:
    """The objects of all documents and Lists; "-" is standard input. A cluster may be larger. Raises InputError."""
    most = _LARGEST_CLUSTER if of_cluster else _LARGEST
    try:
        if str(path) == "-":
            raw = _read_at_most(most, sys.stdin.buffer)
        else:
            with path.open("rb") as file:
                raw = _read_at_most(most, file)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if raw is None:
        raise InputError(f"{path}: larger than {memory(most >> 20)}")
    return [manifest for document in _read(path, raw) for manifest in _objects(path, raw, document)]


def _read_at_most(most: int, file: BinaryIO) -> bytes | None:
    """All of it. None: it is larger; a link to a device may have no end."""
    content = io.BytesIO()
    while piece := file.read(_PIECE):
        content.write(piece)
        if content.tell() > most:
            return None
    return content.getvalue()


def _read(path: Path, raw: bytes) -> list[Document]:
    if raw.lstrip()[:1] == b"{":  # the JSON reader is twenty times faster than YAML's
        try:
            return [Document(msgspec.json.decode(raw))]
        except (msgspec.DecodeError, ValueError, RecursionError):
            pass  # several documents or YAML in braces; for anything else, the YAML reader reports the line
    try:
        return list(parse_yaml(raw))
    except ValuesError as error:
        raise _error(path, error.position, str(error)) from error


def _objects(path: Path, raw: bytes, document: Document) -> Iterator[Manifest]:
    pending: list[tuple[str, Position, Any]] = [("", document.position, document.value)]
    while pending:
        where, position, value = pending.pop()
        if not isinstance(value, dict):
            what = "a list" if isinstance(value, list) else "empty" if value is None else "not a mapping"
            raise _error(path, position, f"{where or 'the document'} is {what}: expected a Kubernetes object")
        kind, items = value.get("kind"), value.get("items")
        if not isinstance(kind, str) or not kind.endswith("List") or "items" not in value:
            yield Manifest(value, path, position, raw)
        elif not isinstance(items, list | None):
            raise _error(path, position, f"{where}{'.' if where else ''}items is not a list")
        else:
            item_kind = kind.removesuffix("List")
            for index, item in reversed(list(enumerate(items or []))):
                # The items of a PodList have no kind.
                named = {"kind": item_kind, **item} if item_kind and isinstance(item, dict) else item
                pending.append((f"{where}{'.' if where else ''}items[{index}]", document.position_of(item), named))


def _error(path: Path, position: Position, message: str) -> InputError:
    return InputError(f"{path}:{position[0]}:{position[1]}: {message}")
