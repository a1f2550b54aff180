"""The daemon's side: starts the mover when it is needed, hands it connections of shims, and says who lives.

All methods are called from one thread and take milliseconds, except the first, which starts a process. Errors end in
`state` None: then nothing can be parked, and what is parked waits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from aliquot import __version__
from aliquot.adapters.gpu.mps import PIPES_VARIABLE
from aliquot.adapters.host.home import POOLS, pool_name
from aliquot.adapters.host.peers import credentials
from aliquot.adapters.host.process import ourselves
from aliquot.services.mover import control
from aliquot.services.mover.control import PoolState
from aliquot.services.mover.folder import is_private
from aliquot.services.mover.pool import UNIT

_ANSWER = 5.0  # seconds
_START = 20.0
_AGAIN = 5.0  # seconds until the next attempt to start it

log = logging.getLogger(__name__)


def pool_folder(state: Path) -> Path:
    """Where the pool of the daemon with this state is. The mover creates it with mode 0700, and checks that."""
    return Path(POOLS, pool_name(str(state.absolute()), os.geteuid()))


class MoverClient:
    """A connection to the mover of this folder."""

    def __init__(
        self,
        folder: Path,
        size: int,
        environment: Mapping[str, str],
        *,
        log_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.size = folder, size
        # Outside of every MPS server: there a fault of one client ends all of them.
        self.environment = {**environment, PIPES_VARIABLE: str(folder / "none")}
        self._log_file, self._clock = log_file, clock
        self._connection: socket.socket | None = None
        self._peer = 0  # the mover's process, as seen from here
        self._ending = 0  # the mover that was ordered to quit
        self._child: subprocess.Popen[bytes] | None = None
        self._tried = float("-inf")
        self._sent = False  # the last request has left
        self.state: PoolState | None = None

    def serve(self, shim: socket.socket, request: control.Serve) -> bool:
        """Hand over a connection. False: no mover has got it. One that answers late serves it all the same."""
        self._ask(request, shim.fileno())
        return self._sent

    def leave(self, message: control.Leave) -> bool:
        """Say whose memory may leave: before it is ordered to, and when that is over. False: there is no mover."""
        return self._ask(message)

    def living(self, message: control.Living) -> bool:
        """Say who lives, and ask for the pool's state. Starts the mover where there is none."""
        return all(self._ask(part) for part in message.parts())

    def keeps(self) -> bool:
        """Whether anything is written down as kept, also where no mover runs."""
        try:
            with os.scandir(self.folder / "parked") as logs:
                return is_private(self.folder) and any(logs)
        except OSError:
            return False

    def finish(self) -> None:
        """The daemon ends. A mover that keeps nothing goes too, with its pool and its context on each card."""
        if self._connection is not None and not self.keeps():
            self.quit()
        else:
            self.close()

    def close(self) -> None:
        """Leave the mover alone; it ends by itself when it keeps nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def quit(self) -> None:
        """End the mover. What it keeps stays in its folder."""
        if self._connection is None and not self._connect():
            return
        self._ask(control.Quit())
        self.close()
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=5)

    def _ask(self, request: control.Request, *files: int) -> bool:
        reached = self._connection is not None or self._begin()
        self._sent = False
        if not reached:
            self.state = None
            return False
        assert self._connection is not None
        try:
            socket.send_fds(self._connection, [control.encode(request)], files)
            self._sent = True
            answer = self._connection.recv(control.LONGEST)
            self.state = control.decode_state(answer)
        except (OSError, msgspec.MsgspecError) as error:
            if not isinstance(request, control.Quit):
                log.warning("mover_lost", extra={"data": {"why": str(error)}})
            self.close()
            self.state = None
            return False
        return True

    def _begin(self) -> bool:
        """Connect, and start it if there is none."""
        if self._connect():
            if self._ask(control.Look()) and self.state is not None and self._serves(self.state):
                return True
            if self._connection is not None:  # its successor finds all that it keeps
                self._ending = self._peer
                self._ask(control.Quit())
                self.close()
        if not self.size and not (is_private(self.folder) and (self.folder / "memory").exists()):
            return (
                False  # it could only say that it keeps nothing: that what left is lost, which another folder may have
            )
        if self._clock() - self._tried < _AGAIN:
            return False
        self._tried = self._clock()
        if self._child is not None:
            self._child.poll()
        command = ourselves.module("aliquot.services.mover.main", str(self.folder), str(self.size))
        out = (
            subprocess.DEVNULL
            if self._log_file is None
            else os.open(self._log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        )
        try:
            self._child = subprocess.Popen(  # noqa: S603
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        except OSError as error:
            log.warning("mover_not_started", extra={"data": {"why": str(error)}})
            return False
        finally:
            if out != subprocess.DEVNULL:
                os.close(out)
        deadline = self._clock() + _START
        while self._clock() < deadline and self._child.poll() is None:
            if self._connect():
                return True
            time.sleep(0.02)
        return self._connect()

    def _serves(self, state: PoolState) -> bool:
        """Not one of another release, nor one with a smaller pool. One that we start has at least the size we name."""
        return state.version == __version__ and state.size >= self.size // UNIT * UNIT

    def _connect(self) -> bool:
        """To a mover of this user: another's would get the tenants' memory. Not to one that was told to quit: while its
        process ends, connections to it are accepted and lost."""
        if not is_private(self.folder):
            return False
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(_ANSWER)
        try:
            connection.connect(str(self.folder / "sock"))
            pid, uid, _ = credentials(connection)
        except OSError:
            connection.close()
            return False
        if uid != os.geteuid() or (pid and pid == self._ending):
            connection.close()
            return False
        self._connection, self._peer, self._ending = connection, pid, 0
        return True
