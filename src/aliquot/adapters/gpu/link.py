"""Messages from a tenant's shim, as shim/abi.h defines them (tests/shim/test_abi.py compares).

The sender may be hostile: a packet is one of the five messages, well-formed, or an error that ends the connection.
Files that come with a packet are closed unless its message is accepted.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import dataclass

from aliquot.adapters.gpu.page import CARDS, MAGIC, SLOTS, VERSION
from aliquot.adapters.host import handedfiles, peers
from aliquot.adapters.host.process.processes import number_of

HELLO, GROUP, DONE, WAKE, MOVER = 1, 2, 3, 4, 16
CHANNELS = 128

_HEAD = struct.Struct("<I2H")
_HELLO = struct.Struct("<2I")
_MOVER = struct.Struct("<4I")
_GROUP = struct.Struct("<8I")
_WORD = struct.Struct("<I")
_LONGEST = _HEAD.size + _GROUP.size + 4 * CHANNELS


class LinkError(Exception):
    """Not a valid message."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First on every connection. `pid` is the process's own claim; the kernel says who it is."""

    pid: int
    slot: int


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A channel group; `fd` is ours to close."""

    fd: int
    client: int
    group: int
    device: int
    subdevice: int
    engine: int
    compute: bool
    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The groups since the hello or the last done are complete."""

    groups: int


@dataclass(frozen=True, slots=True)
class Wake:
    """The process launched work on a card that was armed."""

    card: int


@dataclass(frozen=True, slots=True)
class MoverHello:
    """First on a second connection of a process: for the mover."""

    pid: int
    slot: int
    serial: int
    card: int


@dataclass(frozen=True, slots=True)
class Later:
    """A kind that a newer shim of this version sends: ignored. The agent may be older than a container's shim."""

    kind: int


Message = Hello | GroupSeen | Done | Wake | MoverHello | Later


def receive(connection: socket.socket) -> Message | None:
    """The next message; None when the other side is gone. Raises BlockingIOError when there is none yet."""
    data, files, flags = handedfiles.receive(connection, _LONGEST + 1)
    taken = False
    try:
        if not data:
            return None
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise LinkError("a message longer than any of the shim's")
        message = parse(data, files)
        taken = isinstance(message, GroupSeen)
        return message
    finally:
        if not taken:
            for fd in files:
                handedfiles.discard(fd, handedfiles.owner_of(connection))


def parse(data: bytes, files: list[int]) -> Message:
    """One packet as a message. Raises LinkError."""
    if len(data) < _HEAD.size:
        raise LinkError(f"{len(data)} bytes are no message")
    magic, version, kind = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise LinkError(
            f"version {version} of the shim, this daemon speaks {VERSION}: restart the process with the new shim"
        )
    if kind > WAKE and kind != MOVER:
        return Later(kind)
    body = data[_HEAD.size :]  # a newer shim of this version may append fields
    if kind == GROUP:
        return _group(body, files)
    if files:
        raise LinkError("a file where none belongs")
    if kind == HELLO and len(body) >= _HELLO.size:
        pid, slot = _HELLO.unpack_from(body)
        if slot >= SLOTS:
            raise LinkError(f"slot {slot}, but a page has only {SLOTS}")
        return Hello(pid, slot)
    if kind == DONE and len(body) >= _WORD.size:
        return Done(_WORD.unpack_from(body)[0])
    if kind == WAKE and len(body) >= _WORD.size:
        card = _WORD.unpack_from(body)[0]
        if card >= CARDS:
            raise LinkError(f"card {card}, but a page has only {CARDS}")
        return Wake(card)
    if kind == MOVER and len(body) >= _MOVER.size:
        hello = MoverHello(*_MOVER.unpack_from(body))
        if hello.slot >= SLOTS or hello.card >= CARDS:
            raise LinkError(f"slot {hello.slot} and card {hello.card}, but a page has only {SLOTS} and {CARDS}")
        return hello
    raise LinkError(f"a message of kind {kind} with {len(body)} bytes")


def _group(body: bytes, files: list[int]) -> GroupSeen:
    if len(files) != 1:
        raise LinkError(f"a channel group with {len(files)} files")
    if len(body) < _GROUP.size:
        raise LinkError("the message about a channel group is cut short")
    client, group, device, subdevice, engine, compute, count, _ = _GROUP.unpack_from(body)
    if not 0 < count <= CHANNELS or len(body) < _GROUP.size + 4 * count:
        raise LinkError(f"a group of {count} channels in {len(body)} bytes")
    channels = struct.unpack_from(f"<{count}I", body, _GROUP.size)
    return GroupSeen(files[0], client, group, device, subdevice, engine, bool(compute), channels)


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other side, as the kernel knows it. The pid is the one in our /proc; 0: not visible there."""
    pid, uid, _ = peers.credentials(connection)
    if pid == 0:  # not of our PID namespace, but /proc may be the host's
        with contextlib.suppress(OSError):
            handle = watch(connection)
            try:
                pid = max(0, number_of(handle))
            finally:
                os.close(handle)
    return pid, uid


def watch(connection: socket.socket) -> int:
    """A pidfd of the other side: until it has ended, the pid is its own. Raises OSError if it is gone."""
    return peers.pidfd_of(connection)
