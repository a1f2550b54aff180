"""What the clients of a control socket can take of a daemon: connections, bytes of requests, bytes of unread answers.

Root has room of its own. Of the rest, a user may have as much as is still free, up to a limit: no user takes all,
several users together leave some for the next, and the limits of all users never add up to more than there is. A user
who comes under the numbers that /etc/subuid lends them is one user.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections import Counter

from aliquot.adapters.host.control import LONGEST
from aliquot.adapters.host.users import account_of
from aliquot.model.status.answers import Answer
from aliquot.services.daemon.control import Caller, RefusedError, encode_answer

CONNECTIONS = 1024  # of all users together; root and the daemon's owner have as many once more
CONNECTIONS_OF_ONE = 256
_FILES = 1 << 20
PIECE = 1 << 14  # bytes that are read at once
_UNFINISHED, _UNFINISHED_OF_ONE = 16 << 20, 4 << 20  # bytes of lines that have not arrived as a whole
_UNREAD, _UNREAD_OF_ONE = 64 << 20, 8 << 20  # bytes of answers that clients have not read
_UNREAD_OF_A_CLIENT = 1 << 20  # and of one client, before it gets another answer
_IGNORED = 1 << 16  # bytes that a client may send while it waits
_SILENT = 1.0  # seconds after which a connection without a request makes room for a new one of the same user
_BETWEEN_UPDATES, _LONGEST_BETWEEN = 0.25, 8.0  # seconds; the longest for a client that does not read
_KERNEL_BUFFER = 1 << 14  # bytes of updates that the kernel keeps for a client that waits


def most_files() -> int:
    """How many files this process may have open; daemons raise their limit to that when they start."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _FILES if most == resource.RLIM_INFINITY else min(most, _FILES)


class FairShare:
    """So much for all users: `of_one` at most for each, and never more than is free. Where there are no users, Pods
    stand for them, by name."""

    def __init__(self, total: int, of_one: int) -> None:
        self._total, self._of_one = total, of_one
        self._held: Counter[int | str] = Counter()
        self._used = 0  # by all but the privileged

    def take(self, uid: int | str, amount: int = 1) -> bool:
        """False: there is no room for this user."""
        if self._held[uid] + amount > self.limit(uid):
            return False
        self.hold(uid, amount)
        return True

    def hold(self, uid: int | str, amount: int = 1) -> None:
        """Count this amount as taken, whatever the limits are."""
        self._held[uid] += amount
        self._used += 0 if _is_privileged(uid) else amount

    def held(self, uid: int | str) -> int:
        """How much the user has."""
        return self._held[uid]

    def limit(self, uid: int | str) -> int:
        """How much the user may have in all now."""
        return self._total if _is_privileged(uid) else min(self._of_one, self._total - self._used)

    def give_back(self, uid: int | str, amount: int = 1) -> None:
        """Give back this amount of what was taken."""
        self._held[uid] -= amount
        self._used -= 0 if _is_privileged(uid) else amount
        if not self._held[uid]:
            del self._held[uid]


def _is_privileged(uid: int | str) -> bool:
    return uid in (0, os.geteuid())


class Clients:
    """All clients of one socket."""

    def __init__(self, connections: int = CONNECTIONS) -> None:
        self.connections = FairShare(connections, min(CONNECTIONS_OF_ONE, connections // 4))
        self.unfinished = FairShare(_UNFINISHED, _UNFINISHED_OF_ONE)
        self._all: dict[Client, None] = {}  # the oldest first

    def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller) -> Client:
        """Raises RefusedError if the user has too many connections, or too many answers that it does not read."""
        account = account_of(caller.uid)
        if not self.connections.take(account) and not self._replace_silent(account):
            raise RefusedError(
                "failed",
                text="this user has too many queued runs, or too many connections at once: "
                f"{self.connections.limit(account)} are allowed now. Wait until some end, or stop some",
            )
        client = Client(self, reader, writer, caller)
        self._all[client] = None
        return client

    def check_unread(self, uid: int) -> None:
        """Raises RefusedError if connections of the user, or of all users, leave too much unread."""
        if _is_privileged(uid):
            return
        account = account_of(uid)
        unread = {client: client.unread() for client in self._all if not _is_privileged(client.account)}
        own = sum(size for client, size in unread.items() if client.account == account)
        if own > _UNREAD_OF_ONE or (own and sum(unread.values()) > _UNREAD):
            raise RefusedError("failed", text="other connections of this user do not read their answers: close them")

    def _replace_silent(self, account: int) -> bool:
        now = asyncio.get_running_loop().time()
        for client in self._all:
            if client.account == account and client.silent_since is not None and now - client.silent_since > _SILENT:
                client.drop()
                return self.connections.take(account)
        return False

    def forget(self, client: Client) -> None:
        """Its connection is closed."""
        self._all.pop(client, None)


class Client:
    """One connection: its lines, and the answers to it."""

    def __init__(
        self, clients: Clients, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller
    ) -> None:
        self._clients, self._reader, self._writer = clients, reader, writer
        self._loop = asyncio.get_running_loop()
        self.account = account_of(caller.uid)
        self.silent_since: float | None = self._loop.time()  # None: it has sent a request
        self._counted = True
        self._buffer = bytearray()
        self._update: Answer | None = None  # not sent yet
        self._timer: asyncio.TimerHandle | None = None
        self._pause = _BETWEEN_UPDATES
        writer.transport.max_size = PIECE  # type: ignore[attr-defined]  # else the transport reads 256 KiB at once

    # --- what it sends -----------------------------------------------------------------------------------------

    async def readline(self) -> bytes:
        """The next line; empty at the end. Raises ValueError if it is too long, RefusedError if there is no room."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            piece = await self._reader.read(PIECE)
            if not piece:
                end = len(self._buffer) - 1
                break
            if searched + len(piece) > LONGEST:
                raise ValueError("a line is too long")
            if not self._clients.unfinished.take(self.account, len(piece)):
                raise RefusedError("failed", text="too many unfinished requests of this user at once: retry later")
            self._buffer += piece
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        self._clients.unfinished.give_back(self.account, len(line))
        return line

    async def until_closed(self) -> None:
        """Ignores what the client sends while it waits, up to a limit."""
        left = _IGNORED
        try:
            while left > 0 and (piece := await self._reader.read(PIECE)):
                left -= len(piece)
        except ConnectionError:
            pass

    # --- what it gets ------------------------------------------------------------------------------------------

    def send(self, answer: Answer) -> None:
        """Send a line. Of updates of its place in the queue, the newest replaces those that were not sent yet."""
        if "event" in answer and "waiting" in answer["event"]:
            self._update = answer
            if self._timer is None:
                self._send_update()
            return
        self._update = None
        self.send_line(encode_answer(answer))

    def send_line(self, line: bytes) -> None:
        """A client that leaves too much unread is dropped."""
        if self.unread() > _UNREAD_OF_A_CLIENT:
            self.drop()
        elif not self._writer.is_closing():
            self._writer.write(line + b"\n")

    def unread(self) -> int:
        """Bytes that wait for the client; without those in the kernel."""
        return self._writer.transport.get_write_buffer_size()

    def _send_update(self) -> None:
        self._timer = None
        if self._update is None or self._writer.is_closing():
            return
        if self.unread():
            self._pause = min(self._pause * 2, _LONGEST_BETWEEN)
        else:
            update, self._update, self._pause = self._update, None, _BETWEEN_UPDATES
            self.send_line(encode_answer(update))
        self._timer = self._loop.call_later(self._pause, self._send_update)

    def expect_updates(self) -> None:
        """It will wait, perhaps for days and without reading: keep less for it in the kernel too."""
        peer = self._writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BUFFER)

    # --- the end -----------------------------------------------------------------------------------------------

    def drop(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()
        self.forget()

    def forget(self) -> None:
        """The connection is closed, or about to be: give back what it has."""
        if self._counted:
            self._counted = False
            self._clients.connections.give_back(self.account)
        if self._buffer:
            self._clients.unfinished.give_back(self.account, len(self._buffer))
            self._buffer.clear()
        self._update = None
        if self._timer is not None:
            self._timer.cancel()
        self._clients.forget(self)
