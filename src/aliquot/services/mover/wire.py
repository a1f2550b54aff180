"""The messages between a shim and the mover: shim/abi.h, `alq_mover_*`."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from aliquot.adapters.gpu.page import MAGIC, VERSION, Why
from aliquot.services.mover.pool import UNIT

_HEAD = struct.Struct("<I2H")
_COUNTS = struct.Struct("<2I")
_PIECE = struct.Struct("<2IQ")
_ANSWER = struct.Struct("<I2H2I")
AT_A_TIME = 64
LONGEST = _HEAD.size + _COUNTS.size + AT_A_TIME * _PIECE.size

OUT, IN, MOVED = 17, 18, 19


class WireError(Exception):
    """Not a message of the shim's."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces that leave (`out`) or return; their files come with the packet, in the same order."""

    out: bool
    pieces: tuple[tuple[int, int], ...]  # id, bytes


def read_pieces(packet: bytes) -> Pieces:
    """Every other message."""
    if len(packet) < _HEAD.size + _COUNTS.size:
        raise WireError("a message shorter than its head")
    magic, version, kind = _HEAD.unpack_from(packet)
    count, _ = _COUNTS.unpack_from(packet, _HEAD.size)
    rest = packet[_HEAD.size + _COUNTS.size :]
    if (magic, version) != (MAGIC, VERSION) or kind not in (OUT, IN):
        raise WireError(f"message {kind} of version {version}")
    if count > AT_A_TIME or len(rest) != count * _PIECE.size:
        raise WireError(f"{count} pieces in {len(rest)} bytes")
    pieces = tuple((piece, size) for piece, _, size in _PIECE.iter_unpack(rest))
    if not pieces or any(not size or size % UNIT for _, size in pieces):
        raise WireError("a piece that is not of whole units")
    if len({piece for piece, _ in pieces}) < len(pieces):
        raise WireError("a message that names one piece twice")
    return Pieces(kind == OUT, pieces)


def answer(why: Why) -> bytes:
    """The answer to the shim: all done (NOTHING), or why not."""
    return _ANSWER.pack(MAGIC, VERSION, MOVED, why, 0)
