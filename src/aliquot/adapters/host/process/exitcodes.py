"""How a process ended that is not our child: only its parent may wait for it.

Until the parent has done so, /proc has the status; afterwards the pidfd has it (Linux 6.15 and later). On an older
kernel a parent may be faster than we are. So `aliquot run -d` leaves a process that waits (cli/run/keeper.py): it
writes the code to a file in the tenant's folder before the status goes from /proc.

A code is that of `exit`, or the number of the signal, negative.
"""

from __future__ import annotations

import fcntl
import os
import struct

from aliquot.adapters.host.process.processes import is_shortage

FILE = "exit"  # in the tenant's folder
_GET_INFO, _INFO_EXIT = 0xC040FF0B, 1 << 3  # PIDFD_GET_INFO with the first size of struct pidfd_info
_INFO_SIZE = 64
_LONGEST = 16  # bytes of the file


def exit_code(pid: int, started: int | None, pidfd: int | None = None) -> int | None:
    """The exit code; None: it is not known, or the process has not ended. Raises OSError where we lack files to read
    it."""
    status = None if pidfd is None else _of_pidfd(pidfd)
    if status is None:
        status = _of_zombie(pid, started)
    return None if status is None else os.waitstatus_to_exitcode(status)


def _of_zombie(pid: int, started: int | None) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError as error:
        if is_shortage(error):
            raise
        return None
    is_it = fields[0] == b"Z" and started in (None, int(fields[19]))
    return int(fields[49]) if is_it else None


def _of_pidfd(pidfd: int) -> int | None:
    info = bytearray(struct.pack("Q", _INFO_EXIT).ljust(_INFO_SIZE, b"\0"))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None  # an older kernel
    (mask,), (status,) = struct.unpack_from("Q", info), struct.unpack_from("i", info, _INFO_SIZE - 4)
    return status if mask & _INFO_EXIT else None


def read_file(folder: str) -> tuple[int, float] | None:
    """The code in the file, and when it was written. The folder is the tenant's: anything may be there."""
    from aliquot.adapters.host import samemount  # not on the way to the command of `aliquot run`: it loads ctypes

    try:
        place = samemount.open_path(folder, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        handle = samemount.open_in(place, FILE, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    finally:
        os.close(place)
    try:
        text, written = os.read(handle, _LONGEST).decode("ascii", "replace").strip(), os.fstat(handle).st_mtime
    except OSError:
        return None
    finally:
        os.close(handle)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and -64 <= int(text) <= 255):
        return None
    return int(text), written
