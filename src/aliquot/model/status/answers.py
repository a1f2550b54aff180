"""What a daemon answers on its control socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypedDict, final

from msgspec import UNSET, Struct, UnsetType

from aliquot.model.node import Isolation
from aliquot.model.status.machine import EndedStatus

# --- the lines of a connection: see adapters/host/control.py ----------------------------------------------------------


@final
class Ok(TypedDict):
    """The last line: what was asked for."""

    ok: Struct | Mapping[str, object]


@final
class Event(TypedDict):
    """What happens meanwhile, under its name."""

    event: Mapping[str, object]


@final
class Failure(TypedDict):
    """The last line: a refusal, with its kind."""

    error: Mapping[str, object]


Answer = Ok | Event | Failure
Send = Callable[[Answer], None]


# --- what is asked for -----------------------------------------------------------------------------------------------


class PolicyStatus(Struct):
    """The answer to `policy`. A node's agent answers it too."""

    policy: Isolation
    release_delay_seconds: float | None  # null: auto
    oversubscribe: list[float] | UnsetType = UNSET  # of a machine: times its memory that may be booked, by card
    notes: list[str] | UnsetType = UNSET  # of a machine: what a lower factor does not undo


class RunLog(Struct):
    """The answer to `logs`: where the output of a run is."""

    name: str
    log: str | None  # null: it was not started with --detach
    running: bool
    id: str | UnsetType = UNSET  # while it waits or runs
    pid: int | UnsetType | None = UNSET  # while it runs
    output: str | UnsetType | None = UNSET  # where its output goes without a log
    ended: EndedStatus | UnsetType | None = UNSET  # afterwards; null: there is no record of it any more


class Done(Struct):
    """The answer of an operation that returns nothing."""


class StoppedRun(Struct):
    """The answer to `stop`."""

    name: str
    was: str  # waiting, running
    signal: str | UnsetType = UNSET  # that ended it


class EndedRuns(Struct):
    """The answer to `ended`: the last runs."""

    ended: list[EndedStatus]


class StoppingDaemon(Struct):
    """The answer to `down`: what goes on without the daemon."""

    pid: int
    tenants: list[str]  # names
    waiting: list[str]
    parked: list[str]


class MovedMemory(Struct):
    """The answer to `park` and `wake`: where a run's memory is now."""

    name: str
    resident_bytes: int
    parked_bytes: int
    returned: bool | UnsetType = UNSET  # it was parked, and the run has called it back since


class SeenProcesses(Struct):
    """Of `processes`, by an agent: the number of processes of each Pod, by UID."""

    pods: dict[str, int]
