"""What the machine's daemon answers to single operations of its control socket."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from aliquot.model.node import Isolation
from aliquot.model.status.machine import EndedStatus


class PolicyStatus(Struct):
    """Of `policy`: also a node's agent answers it."""

    policy: Isolation
    release_delay_seconds: float | None  # null: auto
    oversubscribe: list[float] | UnsetType = UNSET  # of a machine: times its memory that may be booked, by card
    notes: list[str] | UnsetType = UNSET  # of a machine: what a lower factor does not undo


class AppliedObject(Struct):
    """Of `apply`: what became of one object of a manifest."""

    kind: str
    namespace: str
    name: str
    action: str  # created, configured, unchanged, skipped
    pods: list[str] = []  # names; none in a dry run
    notes: list[str] = []


class RunLog(Struct):
    """Of `logs`: where the output of a run is."""

    name: str
    log: str | None  # null: it was not started with --detach
    running: bool
    pid: int | UnsetType | None = UNSET  # while it runs
    output: str | UnsetType | None = UNSET  # where its output goes without a log
    ended: EndedStatus | UnsetType | None = UNSET  # afterwards; null: there is no record of it any more
