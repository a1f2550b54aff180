"""Groups of runs or Pods that share their cards in space, each by an MPS server of its own (docs/together.md).

A group is one owner's, and is on the cards of its members: to the arbiter it is one tenant, which has their time. Its
control starts before its first member may, is found again after a restart of the daemon, and ends with its last member.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from aliquot.adapters.gpu.mps import CONTROL, LOGS_VARIABLE, PIPES_VARIABLE, Mps, logs, pipes, shm, too_long
from aliquot.adapters.host import samemount
from aliquot.adapters.storage.folders import ASIDE, remove_folder
from aliquot.model.claim import AppClass
from aliquot.model.containers.edits import Mount
from aliquot.model.refusal import Invalid
from aliquot.model.tenancy import Tenancy, group_tenant
from aliquot.model.tenant import Tenant
from aliquot.services.runtime.together.workers import Workers

MISSING = (
    f"{CONTROL} is missing: it comes with NVIDIA's driver (Debian: nvidia-cuda-mps, Ubuntu: "
    "nvidia-compute-utils-580 or that of your driver); install it and start again, or leave --together (in a manifest "
    "aliquot.dev/together) out"
)
_LOG = logging.getLogger("aliquot.groups")


class Arbiter(Protocol):
    """The part of the arbiter that a group needs."""

    def add(self, tenant: Tenant, directory: Path) -> None: ...
    def change(self, tenant: Tenant) -> None: ...
    def remove(self, tenant_id: str) -> None: ...


class Groups:
    """See the head of the file. `workers` start and stop controls, those of one owner one after the other: that takes
    time, and its owner can make it take longer."""

    def __init__(self, folder: Path, mps: Mps, arbiter: Arbiter) -> None:
        self._folder, self._mps, self._arbiter = folder, mps, arbiter
        self.workers = Workers()
        self._owners: dict[str, Hashable] = {}  # by group, while it is there or something of it is to be done
        self._tasks: Counter[str] = Counter()  # so far, of those groups

    def refusal(self, name: str, app_class: AppClass, others: Iterable[AppClass]) -> Invalid | None:
        """Why no Pod can join the group of that name whose members have these classes."""
        if self._mps.program() is None:
            return Invalid("together", name, MISSING)
        long = too_long(self._folder / ("x" * 10))
        if long:
            why = f"{self._folder} is {long} bytes too long a path for sockets: set ALIQUOT_HOME"
            return Invalid("together", name, f"{why} to a shorter one, such as /tmp/aliquot")
        for other in others:
            if other is not app_class:
                why = f"its runs have --class {other.value}, this one has {app_class.value}"
                return Invalid("together", name, f"{why}: all members of a group have one class")
        return None

    def environment(self, tenancy: Tenancy) -> dict[str, str]:
        """What a member's processes get in addition."""
        if not tenancy.group:
            return {}
        folder = self._folder / tenancy.group_id
        return {PIPES_VARIABLE: str(pipes(folder)), LOGS_VARIABLE: str(logs(folder))}

    def mounts(self, tenancy: Tenancy) -> tuple[Mount, ...]:
        """What the containers of a member that is a Pod get in addition: the paths are the same as on the host."""
        if not tenancy.group:
            return ()
        folder = self._folder / tenancy.group_id
        return (
            Mount(str(pipes(folder)), str(pipes(folder)), writable=True),
            Mount(str(shm(folder)), "/dev/shm", writable=True),  # noqa: S108
        )

    @property
    def can_start(self) -> bool:
        """Whether the program is there."""
        return self._mps.program() is not None

    async def start(self, members: Sequence[Tenancy]) -> None:
        """The last of them is new; it may start when this returns. Raises MpsError, OSError and PageError."""
        await self.workers.run(self._owner(members[-1]), lambda: self._start(members))

    def join(self, members: Sequence[Tenancy], then: Callable[[Exception | None], None]) -> None:
        """The last of them is new. `then` is called when it may start, or with the reason why not."""
        self.workers.put(self._owner(members[-1]), lambda: self._start(members), then)

    def left(self, group: str, members: Sequence[Tenancy]) -> None:
        """A member ended; these are left."""
        if members:
            try:
                self._change(members)
            except OSError as error:  # no file is left: its shares are those of before until another comes or goes
                _log_error(group)(error)
        else:
            self._end(group)

    def restore(self, groups: Mapping[str, Sequence[Tenancy]], *, end_others: bool = True) -> None:
        """After a restart: go on with these, and end all others, unless members of them may yet be found."""
        for group, members in groups.items():
            self._owner(members[-1])
            try:
                self._make_folder(members[-1])
                self._arbiter.add(self._tenant(members), self._folder / group)
            except Exception as error:  # its owner may have broken the folder; others go on
                _log_error(group)(error)
        if end_others and self._folder.is_dir():
            for left in self._folder.glob(f"{ASIDE}*"):  # by a daemon that was killed
                remove_folder(left)
            for name in {entry.name.partition(".")[0] for entry in self._folder.iterdir()} - groups.keys() - {""}:
                self._end(name)

    def _owner(self, member: Tenancy) -> Hashable:
        """Who waits for no other's controls: a user, or on a node of a cluster a namespace. Remembers the group's: what
        starts and stops it is done in order, and a group has the same name when it comes again."""
        self._tasks[member.group_id] += 1
        owner = member.namespace if self._mps.of_pods else _user(member)
        return self._owners.setdefault(member.group_id, owner)

    def _end(self, group: str) -> None:
        self._tasks[group] += 1
        tasks = self._tasks[group]

        def ended(error: Exception | None) -> None:
            _log_error(group)(error)
            if self._tasks[group] == tasks:  # no task was added meanwhile
                del self._tasks[group], self._owners[group]

        self.workers.put(self._owners.setdefault(group, group), lambda: self._stop(group), ended)

    def _tenant(self, members: Sequence[Tenancy]) -> Tenant:
        tenant = group_tenant(members)
        running = self._mps.running(self._folder / tenant.id)
        root, started = running or (None, None)
        return replace(tenant, name=f"group {members[0].group}", root=root, started=started)

    def _start(self, members: Sequence[Tenancy]) -> None:
        folder, user = self._make_folder(members[-1]), _user(members[-1])
        self._arbiter.add(self._tenant(members), folder)  # first: the server's slices shall be right from its start
        pid, _ = self._mps.start(folder, user, [share.uuid for share in members[-1].shares])
        self._change(members)
        _LOG.info("group_ready", extra={"data": {"group": members[-1].group, "user": user, "pid": pid}})

    def _make_folder(self, member: Tenancy) -> Path:
        """The group's. That of Pods is root's, which mounts what is in it; of runs it is their user's."""
        folder = self._folder / member.group_id
        self._folder.mkdir(mode=0o711, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        opened = samemount.open_path(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if os.geteuid() == 0:
                os.fchown(opened, 0 if self._mps.of_pods else _user(member), -1)
                os.fchmod(opened, 0o711 if self._mps.of_pods else 0o700)
        finally:
            os.close(opened)
        return folder

    def _change(self, members: Sequence[Tenancy]) -> None:
        self._arbiter.change(self._tenant(members))

    def _stop(self, group: str) -> None:
        self._mps.stop(self._folder / group)
        self._arbiter.remove(group)
        _LOG.info("group_ended", extra={"data": {"group": group}})


def _user(member: Tenancy) -> int:
    return os.geteuid() if member.user is None else member.user


def _log_error(group: str) -> Callable[[Exception | None], None]:
    def log(error: Exception | None) -> None:
        if error is not None:
            _LOG.error("group_failed", exc_info=error, extra={"data": {"group": group}})

    return log
