"""Receives a list in a process of its own, while the program that wants it is still being loaded.

Decrypting and converting them takes as long as half of what applies them, and Python's threads would take turns. So a
fork, made before much is loaded, requests the whole list (wholelists.py), or its pages where the API server is older,
and hands each page over as a file in memory. Whatever fails there ends that process: its list is then requested in the
ordinary way, from the page on that has not come, or anew if the API server knows no such page.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from urllib.parse import urlencode

from aliquot.adapters.host.process.children import end_with
from aliquot.adapters.kubernetes.connections import Address, AnswerError, address_of, can_connect, read_body, read_head
from aliquot.adapters.kubernetes.kubeconfig import KubeConfigError, Server, monotonic
from aliquot.adapters.kubernetes.paging import next_page
from aliquot.adapters.kubernetes.privatememory import private_memory
from aliquot.adapters.kubernetes.protobuf import ACCEPT, as_json, can_read, is_protobuf
from aliquot.adapters.kubernetes.wholelists import Body, ListCutter, writes_object_by_object

_PATIENCE, _CONNECT = 60.0, 10.0  # seconds: for a page, for a connection
_AHEAD, _CUT_AHEAD, _BYTES_AHEAD = 2, 64, 1 << 26  # pages that wait until they are taken, and bytes in them
_PIECE = 1 << 18  # bytes of a whole list that are received at once
_ROOM, _LARGEST = 1 << 25, 1 << 30  # bytes of an answer: that there is room for at first, and at most
_END = b"\r\n\r\n"


class Receiver:
    """The pages of one list that another process receives."""

    def __init__(self, process: int, channel: socket.socket) -> None:
        self._process = process
        self._channel: socket.socket | None = channel

    async def take(self) -> bytes | None:
        """The next page as JSON; None: that process has no more, or failed."""
        raw = None
        if self._channel is not None:
            with suppress(OSError):  # also a timeout
                async with asyncio.timeout(_PATIENCE):
                    raw = await self._page(self._channel)
            if raw is None:
                self.close()
        return raw

    async def _page(self, channel: socket.socket) -> bytes | None:
        while True:
            try:
                _, files, _, _ = socket.recv_fds(channel, 1, 1)
                break
            except BlockingIOError:
                await _readable(channel)
        if not files:
            return None
        try:
            size = os.fstat(files[0]).st_size
            raw = os.pread(files[0], size, 0)
        finally:
            os.close(files[0])
        with suppress(OSError):  # it has ended: this was its last page
            channel.send(b"\0")
        return raw if len(raw) == size else None

    def close(self) -> None:
        """The rest of the pages is not needed."""
        if self._channel is not None:
            with suppress(RuntimeError):  # a task that waits for it was cancelled, and is not over yet
                asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()
            self._channel = None
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._process, signal.SIGKILL)
                os.waitpid(self._process, 0)


async def _readable(channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(channel, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(channel)


def start_receiving(
    server: Server,
    headers: Iterable[tuple[str, str]],
    path: str,
    *,
    limit: int,
    beside: Receiver | None = None,
    yields: int = 0,
) -> Receiver | None:
    """Begin to receive the list of Nodes or of Pods; None where that needs more than a connection and a token.

    To be called before there are threads and an event loop: a fork has none of their locks' owners. `beside`: one that
    was started before, whose channel is not for this one. `yields`: its niceness; the program that wants the list has
    more to do than to wait for it.
    """
    login = server.credential
    if not (can_connect(server) and can_read()) or login.by_program or threading.active_count() > 1:
        return None
    try:
        token = login.token(monotonic())
        lines = [*headers, ("Accept", ACCEPT), *([("Authorization", f"Bearer {token}")] if token else [])]
        address = address_of(server, lines)
        os.close(os.memfd_create("page"))  # not allowed everywhere
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except (KubeConfigError, OSError):  # the ordinary request says what is wrong
        return None

    def request(after: str | None) -> bytes:
        asked = {} if after is None else {"limit": str(limit), **({"continue": after} if after else {})}
        return address.request("GET", f"{path}?{urlencode(asked)}", (), None)

    parent = os.getpid()
    try:
        process = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        return None
    if not process:
        with suppress(BaseException):  # it says nothing: the ordinary request does
            ours.close()
            if beside is not None and beside._channel is not None:
                beside._channel.close()
            os.nice(yields)
            if end_with(parent):
                _receive(server, address, request, theirs)
        os._exit(0)
    theirs.close()
    ours.setblocking(False)
    return Receiver(process, ours)


def _receive(server: Server, address: Address, request: Callable[[str | None], bytes], channel: socket.socket) -> None:
    """The work of that process: the whole list at once where the API server can write it so, else page by page."""
    connection = _connect(server, address)
    connection.sendall(address.request("GET", "/version", (), None))
    try:
        version, keep = _answer(connection)
    except AnswerError:  # refused
        version, keep = b"", False
    if not keep:
        connection.close()
        connection = _connect(server, address)
    if writes_object_by_object(version):
        _receive_whole(connection, request(None), _HandedOver(channel, pages=_CUT_AHEAD))
    else:
        _receive_pages(server, address, connection, request, _HandedOver(channel, pages=_AHEAD))


def _receive_whole(connection: socket.socket, request: bytes, handed_over: _HandedOver) -> None:
    connection.sendall(request)
    received, filled, head = bytearray(_PIECE), 0, None
    view = memoryview(received)
    while head is None:
        count = connection.recv_into(view[filled:])
        if not count:  # or there is no room left for more of a head
            raise AnswerError("the answer has no head")
        filled += count
        head = read_head(bytes(received[:filled]))
    if head.status != 200:
        raise AnswerError(f"status {head.status}")
    body, cutter = Body(head), ListCutter()
    at = body.start
    while True:
        at = body.move(received, at, filled, cutter.held)
        for page in cutter.pages():
            handed_over.add(as_json(page))
        if cutter.ended:
            break
        if body.ended:
            raise AnswerError("the answer ended before the list")
        received[: filled - at] = received[at:filled]
        at, filled = 0, filled - at
        while filled < _PIECE and not body.is_there(received, filled):  # 4 KB at a time
            count = connection.recv_into(view[filled:])
            if not count:
                raise AnswerError("the API server closed the connection")
            filled += count
    connection.close()
    handed_over.wait()


def _receive_pages(
    server: Server,
    address: Address,
    connection: socket.socket,
    request: Callable[[str | None], bytes],
    handed_over: _HandedOver,
) -> None:
    connection.sendall(request(""))
    while True:
        raw, keep = _answer(connection)
        raw = as_json(raw) if is_protobuf(raw) else raw
        more = next_page(raw)
        if not (more and keep):
            connection.close()
        if more:  # the API server works on it meanwhile
            connection = connection if keep else _connect(server, address)
            connection.sendall(request(more))
        handed_over.add(raw)
        del raw
        if not more:
            break
    handed_over.wait()


def _connect(server: Server, address: Address) -> socket.socket:
    connection = socket.create_connection((address.host, address.port), timeout=_CONNECT)
    if address.secure and server.tls is not None:
        connection = server.tls.wrap_socket(connection, server_hostname=address.name)
    connection.settimeout(_PATIENCE)
    return connection


def _answer(connection: socket.socket) -> tuple[bytes, bool]:
    """The body of the answer, and whether the connection may be used again. Raises AnswerError."""
    buffer, filled, head = private_memory(_ROOM), 0, None
    view = memoryview(buffer)
    while True:  # thousands of times for a page
        if filled == len(buffer):
            if filled >= _LARGEST:
                raise AnswerError("the answer has no end")
            larger = private_memory(4 * filled)
            larger[:filled] = buffer[:]
            buffer, view = larger, memoryview(larger)
        count = connection.recv_into(view[filled:])
        if not count:
            raise AnswerError("the API server closed the connection")
        filled += count
        if head is None:
            head = read_head(buffer[:filled])
            if head is None:
                continue
            if head.status != 200:
                raise AnswerError(f"status {head.status}")
        if buffer[filled - len(_END) : filled] == _END if head.length is None else filled >= head.start + head.length:
            found = read_body(head, buffer, filled)
            if found is not None:
                return found[0], head.keep and found[1] == filled


class _HandedOver:
    """Pages that were handed over; of those, at most so many wait until they are taken."""

    def __init__(self, channel: socket.socket, *, pages: int) -> None:
        self._channel, self._most = channel, pages
        self._waiting: deque[int] = deque()  # the bytes of each

    def add(self, raw: bytes) -> None:
        """Hand over one more as soon as there is room for it."""
        while self._waiting and (len(self._waiting) >= self._most or sum(self._waiting) + len(raw) > _BYTES_AHEAD):
            self._wait_for_one()
        file = os.memfd_create("page")
        try:
            left = memoryview(raw)
            while left:
                left = left[os.write(file, left) :]
            socket.send_fds(self._channel, [b"\0"], [file])
        finally:
            os.close(file)
        self._waiting.append(len(raw))

    def wait(self) -> None:
        """Until all are taken: what was not read when one side of a channel ends takes along what the other side has
        not read yet."""
        while self._waiting:
            self._wait_for_one()

    def _wait_for_one(self) -> None:
        if not self._channel.recv(1):
            raise AnswerError("the program that wanted the pages has closed the channel")
        self._waiting.popleft()
