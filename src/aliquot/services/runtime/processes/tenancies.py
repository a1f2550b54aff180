"""What the arbiter keeps of a tenant, and of each process that has connected. The arbiter's lock guards it."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from aliquot.adapters.gpu.link import GroupSeen
from aliquot.adapters.gpu.page import Page
from aliquot.model.tenant import Tenant
from aliquot.services.runtime.processes.channelgroups import ChannelGroups


@dataclass(slots=True, eq=False)
class Process:
    """A connection, and the process behind it."""

    tenant: str
    pid: int
    connection: socket.socket
    pidfd: int
    groups: ChannelGroups
    slot: int | None = None
    pending: list[GroupSeen] = field(default_factory=list)  # since the hello or the last done
    cards: set[str] = field(default_factory=set)  # where it is held, by the driver or at the gate
    proven: set[str] = field(default_factory=set)  # where the driver lets us control a context of it
    refused: set[str] = field(default_factory=set)  # where the driver refused that: it has one there, or claims so
    seen: int = 0  # groups that it has registered so far, or begun to
    messages: int = 0
    counted: float = 0.0
    started: int | None = None  # when the kernel started it


@dataclass(slots=True, eq=False)
class Tenancy:
    """A tenant: its folder, page and listening socket."""

    tenant: Tenant
    directory: Path
    page: Page
    listener: socket.socket
    processes: set[Process] = field(default_factory=set)
    last_logged: float = float("-inf")  # when its faults were last logged
    second: int = -1  # the one that these count:
    accepted: int = 0  # connections
    received: int = 0  # messages
    pending: int = 0  # groups of all its processes
    reach: int = 0  # how many slots of the page its processes have used, up to the last one
    sweeps: int = 0  # of its page
