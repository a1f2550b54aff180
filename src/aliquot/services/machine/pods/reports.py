"""Merges a supervisor's report into its Pod's state. The supervisor runs as the Pod's owner: trust nothing in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aliquot.model.containers.localpod import MOST_EVENTS, ContainerState, Phase, PodEvent, PodState
from aliquot.model.text import encodable

_STATES = ("waiting", "running", "ended")
_LONGEST = 1000  # characters of a text


def with_report(state: PodState, report: Mapping[str, Any], now: float) -> PodState:
    """The new state. Invalid parts of the report change nothing."""
    phase = next((phase for phase in Phase if phase.value == report.get("phase")), state.phase)
    reported = {
        container["name"]: container
        for container in _list(report.get("containers"))
        if isinstance(container, dict) and isinstance(container.get("name"), str)
    }
    containers = tuple(_container(container, reported.get(container.name, {})) for container in state.containers)
    events = [event for event in map(_event, _list(report.get("events"))) if event is not None]
    known = {(event.time, event.text) for event in state.events}
    fresh = [event for event in events if (event.time, event.text) not in known]
    begun = [container.started for container in containers if container.started is not None and not container.init]
    return replace(
        state,
        phase=phase,
        reason=_text(report.get("reason")),
        containers=containers,
        started=state.started if state.started is not None else min(begun, default=None),
        finished=(state.finished or now) if phase.over else None,
        events=tuple(sorted((*state.events, *fresh), key=lambda event: event.time)[-MOST_EVENTS:]),
    )


def _container(container: ContainerState, report: Mapping[str, Any]) -> ContainerState:
    state = report.get("state")
    if state not in _STATES:
        return container
    return replace(
        container,
        state=state,
        exit_code=_whole(report.get("exit_code")),
        restarts=_whole(report.get("restarts")) or 0,
        started=_time(report.get("started")),
        ended=_time(report.get("ended")),
        pid=_whole(report.get("pid")),
        reason=_text(report.get("reason")),
    )


def _event(value: object) -> PodEvent | None:
    if not isinstance(value, dict):
        return None
    when, text = _time(value.get("time")), _text(value.get("text"))
    kind = "Warning" if value.get("type") == "Warning" else "Normal"
    return None if when is None or text is None else PodEvent(when, text, kind)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 31 else None


def _time(value: object) -> float | None:
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12 else None
    )


def _text(value: object) -> str | None:
    return encodable(value[:_LONGEST]) if isinstance(value, str) and value else None
