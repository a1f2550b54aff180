"""A daemon's side of the control socket, whichever daemon it is: one line of JSON asks, and who asks the kernel tells.

adapters/host/control.py has the other side. What is answered is the doors' (door.py, agentdoor.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any

import aliquot
from aliquot.adapters.host.control import LONGEST
from aliquot.model.refusal import Invalid

FIRST_WORDS = 10.0  # seconds in which a connection must have said what it wants


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as the kernel says."""

    pid: int
    uid: int
    gid: int


class RefusedError(Exception):
    """The answer is no, and this is why, as it goes over the wire."""

    def __init__(self, kind: str, **more: Any) -> None:
        super().__init__(kind)
        self.details = {"kind": kind, **more}


def invalid(broken: Invalid) -> RefusedError:
    """One field that is not allowed."""
    return RefusedError("invalid", field=broken.field, value=broken.value, allowed=broken.allowed)


def about(pid: int, since: float, **more: Any) -> dict[str, Any]:
    """What the daemon says of itself."""
    return {"pid": pid, "uid": os.geteuid(), "version": aliquot.__version__, "since": since, **more}


def listen(path: str) -> socket.socket:
    """The socket at that path. Anyone on the machine may ask; who asks decides what is answered."""
    unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(path)
    os.chmod(path, 0o666)  # noqa: S103 - see above
    listener.listen(128)
    return listener


def unlink(path: str) -> None:
    """Nobody finds it there any more."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def caller_of(writer: asyncio.StreamWriter) -> Caller:
    """Who is at the other end."""
    raw = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return Caller(*struct.unpack("3i", raw))


async def request_of(reader: asyncio.StreamReader) -> dict[str, Any]:
    """What it asks. Raises RefusedError."""
    try:
        async with asyncio.timeout(
            FIRST_WORDS
        ):  # not wait_for: that forgets being cancelled when the line comes with it
            line = await reader.readline()
        request = json.loads(line)
    except (ValueError, RecursionError):  # too long, not UTF-8, not JSON, nested too deep
        raise RefusedError("malformed", text=f"not a line of JSON of at most {LONGEST} bytes") from None
    except TimeoutError:
        raise RefusedError("malformed", text="nothing was asked") from None
    if not isinstance(request, dict):
        raise RefusedError("malformed", text="not a JSON object")
    return request


def send(writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
    """One line, unless nobody is there any more."""
    if not writer.is_closing():
        writer.write(json.dumps(answer).encode() + b"\n")


async def close_connection(writer: asyncio.StreamWriter) -> None:
    """When the last words have gone out, or nobody takes them."""
    try:
        async with asyncio.timeout(FIRST_WORDS):
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    except (ConnectionError, TimeoutError, OSError):
        writer.transport.abort()
