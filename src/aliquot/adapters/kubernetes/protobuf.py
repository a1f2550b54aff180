"""Lists of Nodes and Pods in Kubernetes' protobuf form: the API server writes them with less CPU than as JSON. It
writes why it refuses in the same form.

`as_json` makes JSON of them again, with the fields of dialects/wire/objects.py and no others, so one decoder reads both
forms. It is written in C (shim/lists): Python would take longer over a list than the API server saves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import aliquot
from aliquot.adapters.kubernetes.privatememory import private_memory

ACCEPT = "application/vnd.kubernetes.protobuf, application/json"  # JSON from who does not know the other
_MAGIC = b"k8s\0"  # what comes first
_LIBRARY = Path(aliquot.__file__).parent / "lib" / "liblists.so"
_LONGEST = 200  # bytes of a reason
_LARGEST = 1 << 30  # bytes of the JSON
_MOST_FIELDS = 64  # of a Status, and of what is around it; a repeated one counts each time
_LONGEST_TEXT = 4096  # bytes of a message

_AsJson = Callable[[bytes, int, object, int, object, int], int]


class ProtobufError(Exception):
    """A list cannot be read; says what is wrong, and at which byte."""


def can_read() -> bool:
    """Whether the library was built."""
    return _LIBRARY.exists()


def is_protobuf(raw: bytes) -> bool:
    """Whether the bytes begin as protobuf does. JSON never does."""
    return raw.startswith(_MAGIC)


def as_json(raw: bytes) -> bytes:
    """The same list as JSON, with the fields that are read. Raises ProtobufError: nothing is guessed."""
    try:
        made = _converted(raw)
        return made if made.isascii() else _as_utf8(made)
    except (ImportError, OSError, MemoryError) as error:  # a Python without ctypes; a machine without memory
        raise ProtobufError(f"cannot convert it: {error}") from error


def status_of(raw: bytes) -> tuple[str, str]:
    """Reason and message of a metav1.Status; empty where it is none, or cannot be read."""
    try:
        envelope = texts_in(raw[len(_MAGIC) :])
        if texts_in(envelope[1])[2] != b"Status":
            return "", ""
        status = texts_in(envelope[2])
    except (IndexError, KeyError, ValueError):
        return "", ""
    reason, message = (status.get(number, b"")[:_LONGEST_TEXT].decode(errors="replace") for number in (4, 3))
    return reason, message


def texts_in(raw: bytes) -> dict[int, bytes]:
    """The fields that have bytes, by number. Raises IndexError or ValueError if they are not well-formed."""
    found: dict[int, bytes] = {}
    at = 0
    for _ in range(_MOST_FIELDS):
        if at == len(raw):
            return found
        tag, at = varint_at(raw, at)
        match tag & 7:
            case 0:
                _, at = varint_at(raw, at)
                continue
            case 1:
                size = 8
            case 5:
                size = 4
            case 2:
                size, at = varint_at(raw, at)
            case _:
                raise ValueError("a form that is not in use")
        if size > len(raw) - at:
            raise ValueError("a field that is cut short")
        if tag & 7 == 2:
            found[tag >> 3] = raw[at : at + size]
        at += size
    raise ValueError("too many fields")


def varint_at(raw: bytes | bytearray, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends. Raises IndexError if it goes on beyond `raw`, and ValueError."""
    value = 0
    for shift in range(0, 70, 7):
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number without an end")


def _as_utf8(made: bytes) -> bytes:
    """The API server stores any bytes as text if a client writes them as protobuf, and shows others U+FFFD in JSON."""
    try:
        made.decode()
    except UnicodeDecodeError:
        return made.decode(errors="replace").encode()
    return made


def _converted(raw: bytes) -> bytes:
    from ctypes import c_char, create_string_buffer

    convert, why = _load(), create_string_buffer(_LONGEST)
    room = 2 * len(raw) or 1  # nearly always enough
    for _ in range(2):  # the second time with as much room as it needs
        out = private_memory(room)  # not of the heap, which would keep it; pages that are not written take no memory
        size = convert(raw, len(raw), (c_char * room).from_buffer(out), room, why, _LONGEST)
        if not size:
            raise ProtobufError(why.value.decode(errors="replace"))
        if size <= room:
            break
        if size > _LARGEST:
            raise ProtobufError(f"as JSON it would have {size:,} bytes")
        room = size
    return out[:size]


@cache
def _load() -> _AsJson:
    from ctypes import CDLL, c_char_p, c_size_t, c_void_p

    try:
        convert = CDLL(str(_LIBRARY)).aliquot_list_as_json
    except (OSError, AttributeError) as error:
        raise ProtobufError(f"cannot load the library: {error}") from error
    convert.restype = c_size_t
    convert.argtypes = [c_char_p, c_size_t, c_void_p, c_size_t, c_char_p, c_size_t]
    function: _AsJson = convert
    return function
