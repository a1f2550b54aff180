"""Merges a supervisor's report into its Pod's state. The supervisor runs as the Pod's owner: trust nothing in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aliquot.model.containers.localpod import MOST_EVENTS, ContainerState, Phase, PodEvent, PodState
from aliquot.model.text import encodable

_STATES = ("waiting", "running", "ended")
_LONGEST = 1000  # characters of a text


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """The state of one container, as its supervisor sees it."""

    state: str
    exit_code: int | None
    restarts: int
    started: float | None
    ended: float | None
    pid: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class PodReport:
    """The valid parts of a report. `phase` None: it named none."""

    phase: Phase | None
    reason: str | None
    containers: Mapping[str, ContainerReport]
    events: Sequence[PodEvent]


def parse_report(message: Mapping[str, Any]) -> PodReport:
    """Read the report. Parts that are not valid are left out."""
    containers = {}
    for container in _list(message.get("containers")):
        if isinstance(container, dict) and isinstance(name := container.get("name"), str):
            containers[name] = _container(container)
    return PodReport(
        phase=next((phase for phase in Phase if phase.value == message.get("phase")), None),
        reason=_text(message.get("reason")),
        containers={name: report for name, report in containers.items() if report is not None},
        events=[event for event in map(_event, _list(message.get("events"))) if event is not None],
    )


def with_report(state: PodState, report: PodReport, now: float) -> PodState:
    """The new state. What the report does not have stays as it is."""
    phase = report.phase or state.phase
    containers = tuple(_updated(container, report.containers.get(container.name)) for container in state.containers)
    known = {(event.time, event.text) for event in state.events}
    fresh = [event for event in report.events if (event.time, event.text) not in known]
    begun = [container.started for container in containers if container.started is not None and not container.init]
    return replace(
        state,
        phase=phase,
        reason=report.reason,
        containers=containers,
        started=state.started if state.started is not None else min(begun, default=None),
        finished=(state.finished or now) if phase.over else None,
        events=tuple(sorted((*state.events, *fresh), key=lambda event: event.time)[-MOST_EVENTS:]),
    )


def _updated(container: ContainerState, report: ContainerReport | None) -> ContainerState:
    if report is None:
        return container
    return replace(
        container,
        state=report.state,
        exit_code=report.exit_code,
        restarts=report.restarts,
        started=report.started,
        ended=report.ended,
        pid=report.pid,
        reason=report.reason,
    )


def _container(report: Mapping[str, Any]) -> ContainerReport | None:
    state = report.get("state")
    if not isinstance(state, str) or state not in _STATES:
        return None
    return ContainerReport(
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
