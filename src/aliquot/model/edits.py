"""What a container runtime does to a container when it makes it, and under which name it is told (CDI)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OLDEST = "0.5.0"  # the CDI that has all we say ourselves: names of devices may begin with a digit


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host, seen in the container."""

    host: str
    container: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Edits:
    """What is done to a container. `extra` is the driver's part, untouched, and `version` the CDI that it takes."""

    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()  # device nodes, at the same path in the container
    extra: Mapping[str, Any] = field(default_factory=dict)
    version: str = OLDEST


@dataclass(frozen=True, slots=True)
class CdiName:
    """What the kubelet is told, and under which the runtime looks."""

    kind: str
    device: str

    @property
    def qualified(self) -> str:
        """As it stands in an answer to the kubelet."""
        return f"{self.kind}={self.device}"

    @property
    def file(self) -> str:
        """Where it is told, in the runtime's folder."""
        return f"{self.kind.replace('/', '-')}-{self.device}.yaml"


@dataclass(frozen=True, slots=True)
class Spec:
    """The edits under one name, for one container of one Pod."""

    name: CdiName
    edits: Edits
    pod_uid: str
    namespace: str
    pod: str
    container: str
