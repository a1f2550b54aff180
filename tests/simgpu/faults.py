"""What happens to a simulated card: `python -m simgpu.faults SOCKET lose|restore CARD`, `... xid CARD NUMBER`, or
`... inert CARD slices|pause|both|nothing`."""

from __future__ import annotations

import socket
import struct
import sys
import time

_MAGIC, _SIM_FAULT = 0x4D495347, 12
_LOSE, _RESTORE, _XID, _MIG, _INERT = 1, 2, 3, 4, 5
INERT = {"nothing": 0, "slices": 1, "pause": 2, "both": 3}
_FELL_OFF = 79


def lose(player: str, card: int, *, xid: int | None = _FELL_OFF) -> None:
    """It falls off the bus, with the Xid that the driver tells then. `player` is its socket."""
    _happens(player, card, _LOSE)
    if xid is not None:
        raise_xid(player, card, xid)


def restore(player: str, card: int) -> None:
    """It is back, as after a reset: for new contexts."""
    _happens(player, card, _RESTORE)


def raise_xid(player: str, card: int, xid: int) -> None:
    """NVML tells of it; nothing else happens."""
    _happens(player, card, _XID, xid)


def set_mig(player: str, card: int, *, on: bool) -> None:
    """NVML says that its MIG mode is on, or that it has none."""
    _happens(player, card, _MIG, int(on))


def make_inert(player: str, card: int, what: str) -> None:
    """Its slices, pauses or both answer OK from now on and change nothing; "nothing": all have effect again."""
    _happens(player, card, _INERT, INERT[what])


def _happens(player: str, card: int, what: int, xid: int = 0) -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, mine:
        connection.connect(player)
        with theirs:
            request = struct.pack("=IIQIIQ", _MAGIC, _SIM_FAULT, time.monotonic_ns(), card, what, xid)
            socket.send_fds(connection, [request], [theirs.fileno()])
        mine.settimeout(10)
        _, error, _, _ = struct.unpack_from("=IiII", mine.recv(64))
    if error:
        raise OSError(error, f"the player refuses: card {card}, {what}, {xid}")


if __name__ == "__main__":
    path, verb, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if verb == "xid":
        raise_xid(path, number, int(sys.argv[4]))
    elif verb == "inert":
        make_inert(path, number, sys.argv[4])
    else:
        {"lose": lose, "restore": restore}[verb](path, number)
