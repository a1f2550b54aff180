"""What the daemon sends a Pod's supervisor to start: commands, environments, folders and logs of its containers; and
what the supervisor reports.

Every Pod's supervisor imports this module: keep it light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict

from aliquot.model.decoding.openjson import JsonObject, JsonView


@dataclass(frozen=True, slots=True)
class ContainerLaunch:
    """One container."""

    name: str
    init: bool
    sidecar: bool
    command: Sequence[str]
    env: Mapping[str, str]
    folders: Sequence[str]  # the first that exists is its working directory
    log: str


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One Pod. `grace`: seconds from SIGTERM to SIGKILL."""

    restart_policy: str
    grace: float
    containers: Sequence[ContainerLaunch]
    most_restarts: int | None = None  # of a Job; None: without a limit
    log_limit: int | None = None  # bytes of a log; None: without a limit


class ReportedContainer(TypedDict):
    """How one container stands."""

    name: str
    state: str
    exit_code: int | None
    restarts: int
    started: float | None
    ended: float | None
    pid: int | None
    reason: str | None


class ReportedEvent(TypedDict):
    """Something that happened to the Pod."""

    time: float
    text: str
    type: str


class ReportedState(TypedDict):
    """What the supervisor reports: services/machine/pods/reports.py reads it."""

    phase: str
    reason: str | None
    containers: list[ReportedContainer]
    events: list[ReportedEvent]


def render_launch(spec: LaunchSpec) -> JsonObject:
    """Render the spec as it goes over the socket."""
    return asdict(spec)


def parse_launch(message: JsonView) -> LaunchSpec:
    """As it came over the socket. The daemon may be of another release: what is not known here is left out."""
    return LaunchSpec(
        message["restart_policy"],
        message["grace"],
        [
            ContainerLaunch(
                container["name"],
                container["init"],
                container["sidecar"],
                container["command"],
                container["env"],
                container["folders"],
                container["log"],
            )
            for container in message["containers"]
        ],
        message.get("most_restarts"),
        message.get("log_limit"),
    )
