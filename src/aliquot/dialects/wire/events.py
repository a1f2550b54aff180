"""Events in both of their APIs: events.k8s.io/v1, and core/v1 for roles without the former.

A repeated event is the same object with a higher count: `series` in the one, `count` in the other. Times are RFC 3339
with microseconds; core/v1 takes whole seconds only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.text import printable, without_cut_escape

LONGEST_NOTE = 1024  # bytes; the API server refuses more
_LONGEST_NAME = 253
_LONGEST_INSTANCE = 128


class Form(StrEnum):
    """The API of the event."""

    EVENTS = "events.k8s.io"
    CORE = "core"


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """The object that an event is about. `namespace` is empty for a Node."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"

    def render(self) -> dict[str, str]:
        """As JSON, without unknown fields."""
        fields = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        }
        return {key: value for key, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """What happened to an object; which component saw it first, and when."""

    about: ObjectRef
    reason: str
    note: str
    type: str  # Normal or Warning
    action: str
    component: str
    instance: str
    at: str

    @property
    def namespace(self) -> str:
        """The namespace of the event: that of its object, or `default` for an object without one."""
        return self.about.namespace or "default"

    @property
    def name(self) -> str:
        """The name of the event: the same if one occurrence is written twice, as after a lost answer."""
        text = "\0".join((self.about.uid, self.reason, self.note, self.component, self.instance, self.at))
        mark = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
        return f"{self.about.name[: _LONGEST_NAME - 1 - len(mark)]}.{mark}"


def events_path(form: Form, occurrence: Occurrence, *, one: bool = False) -> str:
    """The path of the collection, or of the event itself."""
    root = "/apis/events.k8s.io/v1" if form is Form.EVENTS else "/api/v1"
    path = f"{root}/namespaces/{occurrence.namespace}/events"
    return f"{path}/{occurrence.name}" if one else path


def render_event(form: Form, occurrence: Occurrence) -> JsonObject:
    """The event when it is first written."""
    metadata = {"name": occurrence.name, "namespace": occurrence.namespace}
    note, instance = shorten(occurrence.note), occurrence.instance[:_LONGEST_INSTANCE]
    if form is Form.EVENTS:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": metadata,
            "eventTime": occurrence.at,
            "reportingController": occurrence.component,
            "reportingInstance": instance,
            "action": occurrence.action,
            "reason": occurrence.reason,
            "regarding": occurrence.about.render(),
            "note": note,
            "type": occurrence.type,
        }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": occurrence.about.render(),
        "reason": occurrence.reason,
        "message": note,
        "type": occurrence.type,
        "source": {"component": occurrence.component, "host": instance},
        "firstTimestamp": _whole_second(occurrence.at),
        "lastTimestamp": _whole_second(occurrence.at),
        "count": 1,
    }


def render_repeat(form: Form, count: int, at: str) -> JsonObject:
    """The patch for a repeated event: its count and last time."""
    if form is Form.EVENTS:
        return {"series": {"count": count, "lastObservedTime": at}}
    return {"count": count, "lastTimestamp": _whole_second(at)}


def shorten(note: str) -> str:
    """Truncate to what an event takes, never within a character or an escape. kubectl prints it: nothing in it steers
    a terminal."""
    raw = printable(note).encode(errors="replace")
    if len(raw) <= LONGEST_NOTE:
        return raw.decode()
    return without_cut_escape(raw[: LONGEST_NOTE - 3].decode(errors="ignore")) + "..."


def _whole_second(at: str) -> str:
    return at.partition(".")[0].removesuffix("Z") + "Z"
