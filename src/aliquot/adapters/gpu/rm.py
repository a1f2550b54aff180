"""NVIDIA's resource manager (RM), through a file that a tenant passed to us: the structures of shim/rm.h in Python.

The open file is the permission: a process with a dup of a tenant's file may do what the tenant may. Every call takes a
lock of the whole card for a third of a millisecond, sometimes for ten: never on a request's path.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass

CONTROL_IOC = 0xC020462A
SET_TIMESLICE = 0xA06C0103
GET_TIMESLICE = 0xA06C0104
DISABLE_CHANNELS = 0x2080110B
GET_GID_INFO = 0x2080014A
DISABLE_MAX = 64

_CONTROL = struct.Struct("<4IQ2I")
_STATUS_AT = 28
NO_STATUS = 0xFFFF  # of an error: the call did not reach the driver
_NVIDIACTL = (195, 255)  # the device number of /dev/nvidiactl
_STATX, _MODE_AT, _RDEV_AT = 256, 28, 128  # struct statx: its size, stx_mode, stx_rdev_major
_EMPTY_PATH, _DONT_SYNC, _TYPE = 0x1000, 0x4000, 1  # AT_EMPTY_PATH, AT_STATX_DONT_SYNC, STATX_TYPE

_libc = ctypes.CDLL(None, use_errno=True)

# The objects no longer exist (or not yet): the tenant will register again, or is gone.
GONE = frozenset({0x23, 0x33, 0x34, 0x36, 0x57})  # INVALID_CLIENT, OBJECT, OBJECT_HANDLE, OBJECT_PARENT, NOT_FOUND


class RmError(Exception):
    """The driver refused."""

    def __init__(self, what: str, status: int) -> None:
        super().__init__(f"{what}: status 0x{status:x}")
        self.status = status

    @property
    def gone(self) -> bool:
        """Whether the object does not exist, rather than the control being refused."""
        return self.status in GONE


@dataclass(frozen=True, slots=True)
class Group:
    """A channel group and the file through which it may be controlled."""

    fd: int
    client: int
    group: int
    subdevice: int
    channels: tuple[int, ...]


def is_rm_file(fd: int, *, simulated: bool) -> bool:
    """Whether controls may be sent to this file: a tenant can pass any file, also one of a file system that does not
    answer. So its file system is not asked: the kernel says what it knows. Raises OSError."""
    if simulated:
        with contextlib.suppress(OSError):
            return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) > 0
        return False
    return _device(fd) == _NVIDIACTL


def _device(fd: int) -> tuple[int, int] | None:
    """The number of a character device; None: it is none."""
    found = ctypes.create_string_buffer(_STATX)
    if hasattr(_libc, "statx"):
        if _libc.statx(fd, b"", _EMPTY_PATH | _DONT_SYNC, _TYPE, found):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        (mode,), device = struct.unpack_from("<H", found, _MODE_AT), struct.unpack_from("<2I", found, _RDEV_AT)
        return (device[0], device[1]) if stat.S_ISCHR(mode) else None
    status = os.fstat(fd)  # glibc before 2.28
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None


def get_slice(group: Group) -> int:
    """The group's time slice in microseconds."""
    raw = _control(group, group.group, GET_TIMESLICE, bytes(8), "get time slice")
    return int(struct.unpack_from("<Q", raw)[0])


def set_slice(group: Group, microseconds: int) -> None:
    """How long it may run while others have work."""
    _control(group, group.group, SET_TIMESLICE, struct.pack("<Q", microseconds), "set time slice")


def set_paused(group: Group, paused: bool) -> None:
    """Stop the group's channels in mid-kernel, or let them continue."""
    for at in range(0, len(group.channels), DISABLE_MAX):
        part = group.channels[at : at + DISABLE_MAX]
        _control(group, group.subdevice, DISABLE_CHANNELS, disable_params(paused, group.client, part), "pause")


def disable_params(paused: bool, client: int, channels: Sequence[int]) -> bytes:
    """struct rm_disable."""
    rest = [0] * (DISABLE_MAX - len(channels))
    clients = [client] * len(channels)
    return struct.pack("<B3xI2B6xQ64I64I", paused, len(channels), 0, 0, 0, *clients, *rest, *channels, *rest)


def uuid_of(group: Group) -> str:
    """The UUID of the card that the group is on."""
    raw = _control(group, group.subdevice, GET_GID_INFO, bytes(268), "card of the group")
    length = min(int(struct.unpack_from("<I", raw, 8)[0]), 256)
    return raw[12 : 12 + length].rstrip(b"\0").decode("ascii", "replace")


def _control(group: Group, target: int, command: int, params: bytes, what: str) -> bytes:
    buffer = ctypes.create_string_buffer(params, len(params))
    request = bytearray(
        _CONTROL.pack(group.client, target, command, 0, ctypes.addressof(buffer), len(params), NO_STATUS)
    )
    try:
        fcntl.ioctl(group.fd, CONTROL_IOC, request)
    except OSError as error:
        raise RmError(f"{what}: {error.strerror}", NO_STATUS) from error
    status = int(struct.unpack_from("<I", request, _STATUS_AT)[0])
    if status:
        raise RmError(what, status)
    return buffer.raw
