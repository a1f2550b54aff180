"""A Pod on one machine, whose containers are local processes, and the workload that owns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from aliquot.model.decoding.openjson import JsonView

MOST_EVENTS = 20  # of a Pod: only the last ones are kept


class Phase(StrEnum):
    """The Pod phases of Kubernetes."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def over(self) -> bool:
        """Whether the Pod has ended for good."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(frozen=True, slots=True)
class Applier:
    """The user who applied an object, with folder and environment. Its processes run as that user."""

    user: int
    group: int
    folder: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Workload:
    """An applied workload. `template` is a digest of its Pod template."""

    kind: str
    namespace: str
    name: str
    manifest: JsonView
    template: str
    applier: Applier
    created: float  # seconds since 1970


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One container: its command and its state. Times in seconds since 1970."""

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
    reason: str | None = None  # why it cannot start or waits for a restart


@dataclass(frozen=True, slots=True)
class PodEvent:
    """An event of a Pod, in one sentence."""

    time: float
    text: str
    type: str = "Normal"


@dataclass(frozen=True, slots=True)
class PodState:
    """The state of a Pod. `why`: sentences about its request and its placement."""

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
    manifest: JsonView
    template: str
    applier: Applier
    created: float
    state: PodState = PodState()
    supervisor: tuple[int, int] | None = None
    ending: float | None = None

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def tenant(self) -> str:
        """The id of its tenant. Of fixed length: it is part of a socket path."""
        return self.uid.replace("-", "")[:10]
