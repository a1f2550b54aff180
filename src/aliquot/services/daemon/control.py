"""The server side of the control socket, for both daemons: a line of JSON is a request; the kernel says who sent it.

adapters/host/control.py is the client side. The operations are in services/machine/control.py and
services/agent/api/control.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from aliquot.adapters.host.control import LONGEST
from aliquot.adapters.host.handedfiles import Listener
from aliquot.adapters.host.peers import peer_of
from aliquot.model.refusal import Invalid
from aliquot.model.status.answers import Answer

REQUEST_TIMEOUT = 10.0  # seconds in which a connection must have sent its request


@dataclass(frozen=True, slots=True)
class Caller:
    """The process at the other end, as the kernel names it. `started` None: it has ended (adapters/host/peers.py)."""

    pid: int
    uid: int
    gid: int
    started: int | None = None


class RefusedError(Exception):
    """The request is refused; `details` go over the wire."""

    def __init__(self, kind: str, **more: Any) -> None:
        super().__init__(kind)
        self.details = {"kind": kind, **more}


def invalid(broken: Invalid) -> RefusedError:
    """A field has a value that is not allowed."""
    return RefusedError("invalid", field=broken.field, value=broken.value, allowed=broken.allowed)


def listen(path: str) -> Listener:
    """The socket at that path. Every user of the machine may connect; what is answered depends on the caller."""
    unlink(path)
    listener = Listener(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.refuse_files()
    listener.bind(path)
    os.chmod(path, 0o666)  # noqa: S103 - see above
    listener.listen(128)
    return listener


def unlink(path: str) -> None:
    """Remove the socket, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def caller_of(writer: asyncio.StreamWriter) -> Caller:
    """The process at the other end."""
    return Caller(*peer_of(writer.get_extra_info("socket")))


class Lines(Protocol):
    """asyncio.StreamReader, or connections.Client."""

    async def readline(self) -> bytes: ...


async def request_of(reader: Lines) -> Mapping[str, object]:
    """The request, as it came: requests.py makes a struct of it. Raises RefusedError."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):  # wait_for may swallow a cancellation that comes with the line
            line = await reader.readline()
        request = json.loads(line)
    except (ValueError, RecursionError):  # too long, not UTF-8, not JSON, nested too deep
        raise RefusedError("malformed", text=f"not a line of JSON of at most {LONGEST} bytes") from None
    except TimeoutError:
        raise RefusedError("malformed", text="nothing was asked") from None
    if not isinstance(request, dict):
        raise RefusedError("malformed", text="not a JSON object")
    return request


def send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    """Send one line, unless the connection is closed."""
    if not writer.is_closing():
        writer.write(encode_answer(answer) + b"\n")


def encode_answer(answer: Answer) -> bytes:
    """One line, without its end. By the json module: it reads back the paths that are no UTF-8."""
    return json.dumps(msgspec.to_builtins(answer)).encode()


async def close_connection(writer: asyncio.StreamWriter) -> None:
    """Close it when everything is sent, or the other end does not read."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    except (ConnectionError, TimeoutError, OSError):
        writer.transport.abort()
