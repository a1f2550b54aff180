"""The edits that a container runtime applies when it creates a container, and their CDI name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OLDEST = "0.5.0"  # the CDI version that our own edits need: device names may begin with a digit


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host, mounted in the container."""

    host: str
    container: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Edits:
    """The edits of one container. `extra` is the driver's part, unchanged, and `version` the CDI version it needs."""

    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()  # device nodes, at the same path in the container
    extra: Mapping[str, Any] = field(default_factory=dict)
    version: str = OLDEST


@dataclass(frozen=True, slots=True)
class CdiName:
    """The name in the response to the kubelet, under which the runtime finds the spec."""

    kind: str
    device: str

    @property
    def qualified(self) -> str:
        """The form in a response to the kubelet."""
        return f"{self.kind}={self.device}"

    @property
    def file(self) -> str:
        """The file in the runtime's CDI folder."""
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
