"""One machine's tenants with an arbiter that only notes: a daemon that may be killed and built again."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aliquot.adapters.host.home import Home
from aliquot.adapters.host.process import processes
from aliquot.adapters.storage.store import Store
from aliquot.model.tenancy import Tenancy, TenantEnvironment
from aliquot.services.daemon.control import Caller
from aliquot.services.machine.requests import RunRequest
from aliquot.services.machine.tenants.machine import LocalMachine
from kit.machines.machine import PaperArbiter, cards


class Rig:
    """A home and its LocalMachine, which may be killed and built again."""

    def __init__(self, folder: str, gib: int = 24, count: int = 1) -> None:
        self.home = Home(folder, folder)
        for folder_of in (self.home.tenants, self.home.logs):
            os.makedirs(folder_of, exist_ok=True)
        self.cards = cards(count, gib)
        self.children: list[subprocess.Popen[bytes]] = []
        self.build()

    def build(self) -> None:
        self.arbiter = PaperArbiter()
        self.watched: list[Tenancy] = []
        self.machine = LocalMachine(
            self.cards,
            home=self.home,
            store=Store(self.home.database, self.home.tenants),
            arbiter=self.arbiter,
            watch=self.watched.append,
            environment=lambda tenancy, folder: TenantEnvironment({"ALIQUOT_TENANT": folder}),
        )

    def restart(self) -> None:
        self.machine.store.close()
        self.build()
        self.machine.restore()

    def process(self, **environment: str) -> Caller:
        child = subprocess.Popen(["sleep", "600"], env={**os.environ, **environment})
        self.children.append(child)
        return Caller(child.pid, os.geteuid(), os.getegid(), processes.start_time(child.pid))

    def end(self, caller: Caller) -> None:
        child = next(child for child in self.children if child.pid == caller.pid)
        child.kill()
        child.wait()

    def submit(self, caller: Caller | None = None, **more: Any) -> list[Any]:
        """The messages to the run."""
        messages: list[Any] = []
        self.machine.admission.submit(RunRequest(("x",), **more), caller or self.process(), 1.0, messages.append)
        return messages

    def booked(self) -> int:
        return int(self.machine.ledger.board.used_memory[0].sum())

    def folders(self) -> set[str]:
        return set(os.listdir(self.home.tenants))


@contextmanager
def tenant_rig() -> Iterator[Rig]:
    """One for a test; its processes end with it."""
    with tempfile.TemporaryDirectory(prefix="alq") as folder:
        found = Rig(folder)
        yield found
        for child in found.children:
            child.kill()
            child.wait()
        found.machine.store.close()
