"""How an Event is spelled, in both of its APIs: events.k8s.io/v1, and core/v1 for roles that know no other.

The same thing happening again is the same object with a higher count: `series` in the one, `count` in the other. Times
come as RFC 3339 text with microseconds; a whole second is all that core/v1 takes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

LONGEST_NOTE = 1024  # bytes; the API server refuses more
_LONGEST_NAME = 253
_LONGEST_INSTANCE = 128


class Form(StrEnum):
    """The API that takes the event."""

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
        """As Kubernetes writes it; what is not known is left out."""
        told = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        }
        return {key: value for key, value in told.items() if value}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that happened to an object, and who saw it first when."""

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
        """Where the event is kept: by its object, or in `default` for an object that is in no namespace."""
        return self.about.namespace or "default"

    @property
    def name(self) -> str:
        """Its own name: the same when one occurrence is written twice, as after a lost answer, and else another."""
        told = "\0".join((self.about.uid, self.reason, self.note, self.component, self.instance, self.at))
        mark = hashlib.sha256(told.encode(errors="replace")).hexdigest()[:16]
        return f"{self.about.name[: _LONGEST_NAME - 1 - len(mark)]}.{mark}"


def events_path(form: Form, occurrence: Occurrence, *, one: bool = False) -> str:
    """The collection the event belongs in, or the event itself."""
    root = "/apis/events.k8s.io/v1" if form is Form.EVENTS else "/api/v1"
    path = f"{root}/namespaces/{occurrence.namespace}/events"
    return f"{path}/{occurrence.name}" if one else path


def render_event(form: Form, occurrence: Occurrence) -> dict[str, Any]:
    """The event as it is first written."""
    each = occurrence
    metadata = {"name": each.name, "namespace": each.namespace}
    note, instance = shorten(each.note), each.instance[:_LONGEST_INSTANCE]
    if form is Form.EVENTS:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": metadata,
            "eventTime": each.at,
            "reportingController": each.component,
            "reportingInstance": instance,
            "action": each.action,
            "reason": each.reason,
            "regarding": each.about.render(),
            "note": note,
            "type": each.type,
        }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": each.about.render(),
        "reason": each.reason,
        "message": note,
        "type": each.type,
        "source": {"component": each.component, "host": instance},
        "firstTimestamp": _whole_second(each.at),
        "lastTimestamp": _whole_second(each.at),
        "count": 1,
    }


def render_again(form: Form, count: int, at: str) -> dict[str, Any]:
    """The patch that says it has been seen so many times, last at that time."""
    if form is Form.EVENTS:
        return {"series": {"count": count, "lastObservedTime": at}}
    return {"count": count, "lastTimestamp": _whole_second(at)}


def shorten(note: str) -> str:
    """As much of it as an event takes, and never half a character."""
    raw = note.encode(errors="replace")
    if len(raw) <= LONGEST_NOTE:
        return raw.decode()
    return raw[: LONGEST_NOTE - 3].decode(errors="ignore") + "..."


def _whole_second(at: str) -> str:
    return at.partition(".")[0].removesuffix("Z") + "Z"
