"""A hostile tenant beside a good one, which must keep what it has."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from hypothesis import HealthCheck, settings

from aliquot.model.tenant import Level
from kit.cards.arbiterd import FakeShim, Rig, open_files, until

quick = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


class HostileTenant:
    """A hostile tenant beside a good one that is registered; what the good one has must stay as it is."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.folder = rig.tenant("bad")
        self.good = rig.registered(rig.tenant("good"), 11)
        self.files = open_files()

    def attack(self) -> FakeShim:
        return FakeShim(self.folder, self.rig.pid("bad"))

    def is_in_order(self) -> None:
        """Every file that came is gone, and the good tenant is served."""
        until(lambda: open_files() == self.files, "the end of what was handed over")
        assert not self.good.ended()
        standing = self.rig.standing("good")
        assert standing.processes == (self.good.pid,)
        assert standing.level is Level.HARDWARE
        assert standing.memory_limit == 10 << 30
        assert all(thread.is_alive() for thread in self.rig.daemon._threads)
        assert all(loop._thread.is_alive() for loop in self.rig.daemon._loops.values())
        self.rig.driver.calls.clear()
        self.good.group(11, self.rig.rm_file).done(1)
        until(lambda: any(call[1] == 11 for call in self.rig.driver.calls), "an answer to the good one")
        touched = {client for _, client, _ in self.rig.driver.calls if client != 11}
        assert not touched


def send(shim: FakeShim, data: bytes, files: list[int]) -> None:
    """Send this, also if the daemon has closed the connection."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(shim.sock, [data], files)


def was_thrown_out(say: Callable[[], object], times: int) -> bool:
    try:
        for _ in range(times):
            say()
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False
