"""A Pod on one machine, where containers are local processes; and the workload that wants it there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MOST_EVENTS = 20  # of a Pod: the last ones are kept


class Phase(StrEnum):
    """As Kubernetes calls them."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def over(self) -> bool:
        """Whether nothing of it runs any more, nor will."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(frozen=True, slots=True)
class Applier:
    """Who applied it, and from where: its processes are theirs."""

    user: int
    group: int
    folder: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Workload:
    """What makes Pods, as it was applied. `template` changes with what its Pods are made from."""

    kind: str
    namespace: str
    name: str
    manifest: Mapping[str, Any]
    template: str
    applier: Applier
    created: float  # seconds since 1970


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One container: what it was told to run, and how that stands. Times in seconds since 1970."""

    name: str
    image: str
    command: tuple[str, ...]
    log: str
    init: bool = False
    state: str = "waiting"  # running, ended
    exit_code: int | None = None
    restarts: int = 0
    started: float | None = None
    ended: float | None = None
    pid: int | None = None
    reason: str | None = None  # why it could not be started, or waits to be started again


@dataclass(frozen=True, slots=True)
class PodEvent:
    """Something that happened to a Pod, in a sentence."""

    time: float
    text: str
    type: str = "Normal"


@dataclass(frozen=True, slots=True)
class PodState:
    """How it stands. `why` are the sentences that tell what it asked for, and why it is where it is."""

    phase: Phase = Phase.PENDING
    reason: str | None = None
    node: str | None = None
    started: float | None = None
    finished: float | None = None
    containers: tuple[ContainerState, ...] = ()
    why: tuple[str, ...] = ()
    events: tuple[PodEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalPod:
    """`supervisor`: pid and start time of the process that runs the containers. `ending`: once the Pod is deleted, the
    grace period of its containers in seconds."""

    uid: str
    namespace: str
    name: str
    owner: tuple[str, str] | None  # kind and name
    manifest: Mapping[str, Any]
    template: str
    applier: Applier
    created: float
    state: PodState = PodState()
    supervisor: tuple[int, int] | None = None
    ending: float | None = None

    @property
    def key(self) -> str:
        """As people call it."""
        return f"{self.namespace}/{self.name}"

    @property
    def tenant(self) -> str:
        """The id of the tenant that it is. The length is fixed: it is part of the path of a socket."""
        return self.uid.replace("-", "")[:10]
