"""What a Pod's keeper tells, into how the Pod stands. The keeper is its owner's: nothing is believed unchecked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aliquot.model.localpod import MOST_EVENTS, ContainerState, Phase, PodEvent, PodState

_STATES = ("waiting", "running", "ended")
_LONGEST = 1000  # characters of a sentence


def with_report(state: PodState, said: Mapping[str, Any], now: float) -> PodState:
    """The state with the report; what of it makes no sense changes nothing."""
    phase = next((each for each in Phase if each.value == said.get("phase")), state.phase)
    told = [each for each in _list(said.get("containers")) if isinstance(each, dict)]
    known = {each["name"]: each for each in told if isinstance(each.get("name"), str)}
    containers = tuple(_container(container, known.get(container.name, {})) for container in state.containers)
    events = [each for each in map(_event, _list(said.get("events"))) if each is not None]
    ours = {(event.time, event.text) for event in state.events}
    fresh = [event for event in events if (event.time, event.text) not in ours]
    begun = [container.started for container in containers if container.started is not None and not container.init]
    return replace(
        state,
        phase=phase,
        reason=_text(said.get("reason")),
        containers=containers,
        started=state.started if state.started is not None else min(begun, default=None),
        finished=(state.finished or now) if phase.over else None,
        events=tuple(sorted((*state.events, *fresh), key=lambda each: each.time)[-MOST_EVENTS:]),
    )


def _container(container: ContainerState, said: Mapping[str, Any]) -> ContainerState:
    state = said.get("state")
    if state not in _STATES:
        return container
    return replace(
        container,
        state=state,
        exit_code=_whole(said.get("exit_code")),
        restarts=_whole(said.get("restarts")) or 0,
        started=_time(said.get("started")),
        ended=_time(said.get("ended")),
        pid=_whole(said.get("pid")),
        reason=_text(said.get("reason")),
    )


def _event(said: object) -> PodEvent | None:
    if not isinstance(said, dict):
        return None
    when, text = _time(said.get("time")), _text(said.get("text"))
    kind = "Warning" if said.get("type") == "Warning" else "Normal"
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
    return value[:_LONGEST] if isinstance(value, str) and value else None
