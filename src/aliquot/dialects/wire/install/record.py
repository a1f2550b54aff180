"""The record of an installation, ConfigMap `aliquot-installation`: what was installed, with which options, over what.

Written before the installation starts, so that a killed command can be resumed, rolled back or undone. Pure.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from aliquot.dialects.wire.install.deployment import (
    MANAGED_LABEL,
    MANAGER,
    NAME_LABEL,
    RECORD,
    VERSION_LABEL,
    Identity,
    Options,
    identity,
)
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.refusal import Invalid

_VERSION = 1
_REPLACED = "aliquot.dev/replaced-labels"  # annotation of a namespace that was there before us


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One installation."""

    v: int
    version: str
    options: Options
    objects: tuple[Identity, ...]
    packed: str  # the objects themselves
    settled: bool = False  # it became ready, and was verified
    applied: bool = False  # everything was applied with --no-wait
    labelled: dict[str, dict[str, str]] = {}  # labels that we set, by node
    before: str | None = None  # the record of the installation that this one replaces


def pack(objects: Sequence[JsonObject]) -> str:
    """Compressed, to fit into a ConfigMap; the same text for the same objects."""
    return base64.b64encode(gzip.compress(msgspec.json.encode(objects), mtime=0)).decode()


def unpack(text: str) -> list[JsonObject]:
    """The inverse of `pack`."""
    objects: list[JsonObject] = msgspec.json.decode(gzip.decompress(base64.b64decode(text)))
    return objects


def render_record(record: Record) -> JsonObject:
    """The ConfigMap."""
    data = {"record": msgspec.json.encode(record).decode()}
    labels = {NAME_LABEL: "aliquot", MANAGED_LABEL: MANAGER, VERSION_LABEL: record.version}
    metadata = {"name": RECORD, "namespace": record.options.namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def parse_record(obj: object) -> Record | Invalid:
    """Parse what `render_record` wrote, in this release or a later one with the same record version."""
    field = f'ConfigMap {RECORD}: data["record"]'
    data = obj.get("data") if isinstance(obj, dict) else None
    text = data.get("record") if isinstance(data, dict) else None
    if not isinstance(text, str):
        return Invalid(field, text, "what `aliquot install` writes there")
    try:
        record = msgspec.json.decode(text, type=Record)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Invalid(field, text, f"what `aliquot install` writes there ({error})")
    return record if record.v == _VERSION else Invalid(field, record.v, f"version {_VERSION}, or a newer `aliquot`")


def new_record(version: str, options: Options, objects: Sequence[JsonObject], **more: Any) -> Record:
    """The record of an installation that is about to start."""
    return Record(_VERSION, version, options, tuple(identity(obj) for obj in objects), pack(objects), **more)


def previous_record(record: Record) -> Record | None:
    """The installation to roll back to; None: there was none."""
    return None if record.before is None else msgspec.json.decode(record.before, type=Record)


def settled_record(record: Record) -> Record:
    """Settle a --no-wait installation that is ready now. Objects that only the one before had go with it later."""
    before = previous_record(record)
    whole = record if before is None else with_objects_of(record, before)
    return msgspec.structs.replace(whole, settled=True, before=None)


def with_objects_of(record: Record, other: Record) -> Record:
    """Take over the objects of another installation: they are deleted when the next one is ready."""
    return msgspec.structs.replace(record, objects=tuple(dict.fromkeys((*record.objects, *other.objects))))


def rollback_target(record: Record) -> str | None:
    """What a new installation stores as `before`: the last one that was ready."""
    return (
        msgspec.json.encode(msgspec.structs.replace(record, before=None)).decode() if record.settled else record.before
    )


def render_replaced(labels: Mapping[str, tuple[str, str | None]]) -> JsonObject:
    """The metadata that keeps the owner's labels of a namespace, beside ours that replace them; nothing if there are
    none."""
    return {"annotations": {_REPLACED: msgspec.json.encode(labels, order="sorted").decode()}} if labels else {}


def replaced_labels(namespace: JsonObject) -> dict[str, tuple[str, str | None]]:
    """What `render_replaced` kept: the owner's value and ours, None where an earlier version kept only the owner's;
    nothing where it cannot be read."""
    text = (namespace["metadata"].get("annotations") or {}).get(_REPLACED, "{}")
    try:
        kept = msgspec.json.decode(text, type=dict[str, str | tuple[str, str | None]])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return {key: (found, None) if isinstance(found, str) else found for key, found in kept.items()}


def labels_to_restore(namespace: JsonObject) -> dict[str, str]:
    """The owner's labels that ours still replace. A label that its owner has changed since stays."""
    present, kept = namespace["metadata"].get("labels") or {}, replaced_labels(namespace)
    return {key: theirs for key, (theirs, ours) in kept.items() if ours is None or present.get(key) == ours}
