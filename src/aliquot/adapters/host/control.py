"""How a command talks to the daemon: JSON lines over a unix socket. Here the blocking side, used by the commands.

A connection carries one request and its answers:

    > {"op": "run", "command": ["python", "train.py"], "memory_mib": 10240, ...}
    < {"event": {"waiting": ...}}          none or more: what happens meanwhile
    < {"ok": {...}}                        or {"error": {"kind": ..., ...}}: the last line

Who asks is known from the socket (SO_PEERCRED), not from what it says. Imported by `aliquot run`: keep it light.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence

from aliquot.adapters.host.home import SYSTEM_RUN, Home
from aliquot.model.decoding.openjson import JsonObject, JsonView

LONGEST = 1 << 18  # bytes of a request; answers may be longer
_LONGEST_ANSWER = 1 << 24
_REST_OF_A_LINE = 10.0  # seconds
_OVERFLOW_UID = "/proc/sys/kernel/overflowuid"  # in a user namespace, whom it has no number for


class NoDaemonError(Exception):
    """No daemon listens."""


class ControlError(Exception):
    """The conversation broke off, or made no sense."""


class AnswerError(Exception):
    """The daemon refused. `kind` is for programs; the rest depends on it (see services/machine/control.py)."""

    def __init__(self, details: JsonObject) -> None:
        super().__init__(str(details.get("text", details.get("kind", "refused"))))
        self.kind = str(details.get("kind", ""))
        self.details = details


class Connection:
    """One request and its answers. `obeys`: the caller executes what the daemon answers (run, keep), so that even root
    believes no other user's."""

    def __init__(self, path: str, timeout: float | None = 10.0, *, obeys: bool = True) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        self._buffer = b""
        try:
            _connect(self._socket, path, timeout)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            self._socket.close()
            raise NoDaemonError(path) from error
        except OSError as error:
            self._socket.close()
            if isinstance(error, BlockingIOError):
                raise ControlError(f"{path}: too many others connect to the daemon now: try again later") from error
            if error.errno is None:  # the path is too long: no daemon can listen there
                raise NoDaemonError(path) from error
            raise ControlError(f"{path}: {error.strerror}") from error
        self._pid, self.user = _listener(self._socket)
        if not _may_trust(self.user, path, obeys=obeys):
            self._socket.close()
            raise ControlError(
                f"{path}: user {self.user} listens there, neither root nor you: what it answers would run as you. "
                "Set ALIQUOT_HOME to a folder of your own"
            )

    def unanswered(self) -> str:
        """The error line for a daemon that listens and does not answer in time: what to do."""
        who, number = (f" (pid {self._pid})", str(self._pid)) if self._pid > 0 else ("", "its pid")
        return (
            f"the daemon{who} does not answer: try again; if it hangs, `kill -9 {number}` ends it "
            "(tenants keep running) and `aliquot up -d` starts the next"
        )

    def send(self, request: Mapping[str, object]) -> None:
        """Say it."""
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return  # it may have said why: the next `receive` returns that, or raises ControlError
        except OSError as error:
            raise ControlError(f"cannot send to the daemon: {error}") from error

    def receive(self, timeout: float | None = None) -> JsonObject:
        """The next line. Raises TimeoutError when none comes in time (None: however long it takes), ControlError."""
        self._socket.settimeout(timeout)
        while b"\n" not in self._buffer:
            try:
                piece = self._socket.recv(1 << 16)
            except TimeoutError:
                raise
            except OSError as error:
                why = "" if isinstance(error, ConnectionError) else f": {error.strerror or error}"
                raise ControlError(f"the daemon closed the connection{why}") from error
            if not piece:
                raise ControlError("the daemon closed the connection")
            self._buffer += piece
            if len(self._buffer) > _LONGEST_ANSWER:
                raise ControlError("the daemon's answer is too long")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise ControlError("the program that answers here is not Aliquot's daemon") from error
        if not isinstance(answer, dict):
            raise ControlError("the program that answers here is not Aliquot's daemon")
        return answer

    def events(self, timeout: float | None = None) -> Iterator[JsonObject]:
        """What happens, up to and including the last answer; raises AnswerError when that is a no."""
        while True:
            answer = self.receive(timeout)
            if isinstance(answer.get("error"), dict):
                raise AnswerError(answer["error"])
            if "ok" in answer:
                yield {"ok": answer["ok"]}
                return
            if isinstance(answer.get("event"), dict):
                yield answer["event"]

    def fileno(self) -> int:
        """The file number, to wait for this connection among others."""
        return self._socket.fileno()

    def there(self) -> Iterator[JsonObject]:
        """What has arrived so far, without waiting for more than the rest of a line. Raises ControlError."""
        while True:
            try:
                yield self.receive(_REST_OF_A_LINE)
            except TimeoutError as error:
                raise ControlError("the daemon stopped in the middle of a line") from error
            if b"\n" not in self._buffer:
                return

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _listener(connected: socket.socket) -> tuple[int, int]:
    """Process and user who listen, as the kernel says: a daemon decides what a run has in its environment. The process
    is 0 where it has no number in our namespace."""
    pid, user, _ = struct.unpack("iII", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid), int(user)


def _may_trust(user: int, path: str, *, obeys: bool) -> bool:
    me = os.geteuid()
    return user in (0, me) or (me == 0 and not obeys) or _is_unmapped_root(user, path)


def _is_unmapped_root(user: int, path: str) -> bool:
    """Whether it is the system's daemon, seen from a user namespace: its user has no number there. Only root makes the
    folder; a process that can write to it could listen there."""
    folder = os.path.dirname(path)
    if folder != SYSTEM_RUN:
        return False
    try:
        with open(_OVERFLOW_UID) as file:
            unmapped = int(file.read())
        found = os.stat(folder)
    except (OSError, ValueError):
        return False
    return (
        user == unmapped
        and found.st_uid in (0, unmapped)
        and not found.st_mode & 0o022
        and not os.access(folder, os.W_OK, effective_ids=True)
    )


def _connect(client: socket.socket, path: str, timeout: float | None) -> None:
    """Raises BlockingIOError when the daemon accepts nothing in time: more than it has room for are waiting."""
    deadline = time.monotonic() + (timeout or 0.0)
    while True:
        try:
            client.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def connect(homes: Sequence[Home], *, obeys: bool = True) -> tuple[Connection, Home]:
    """The first daemon that listens. Raises NoDaemonError, ControlError."""
    for home in homes:
        try:
            return Connection(home.control, obeys=obeys), home
        except NoDaemonError:
            continue
    raise NoDaemonError(", ".join(home.control for home in homes))


def ask(homes: Sequence[Home], request: JsonView, timeout: float = 10.0) -> JsonObject:
    """One request that has one answer. Raises NoDaemonError, ControlError, AnswerError."""
    connection, _ = connect(homes, obeys=False)
    try:
        connection.send(request)
        for event in connection.events(timeout):
            if isinstance(event.get("ok"), dict):
                answer: JsonObject = event["ok"]
                return answer
    except TimeoutError as error:
        raise ControlError(f"the daemon did not answer within {timeout:.0f} s") from error
    finally:
        connection.close()
    raise ControlError("the daemon closed the connection without an answer")
