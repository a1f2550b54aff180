"""A whole list of Nodes or Pods in one answer of the API server, cut into pages as it comes.

An API server since 1.33 writes such an answer object by object, from its memory. In pages the same list costs it three
times as much CPU, because it reads all pages but the first from etcd where nothing was written for some minutes.
Older ones would put together the whole answer before they send any of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from json import loads

from aliquot.adapters.kubernetes.connections import BETWEEN_CHUNKS, AnswerError, Head
from aliquot.adapters.kubernetes.protobuf import is_protobuf, texts_in, varint_at

_SINCE = (1, 33)  # the first release that writes lists object by object, if it is not configured otherwise
_PAGE = 1 << 21  # bytes from which on a page ends
_TOKEN = "received"  # noqa: S105  # how a page made here names the next one: no secret
_LAST = b"0\r\n\r\n"  # of an answer in chunks
_LONGEST_LINE = 1 << 12  # bytes
_TYPE, _LIST = 0x0A, 0x12  # of the envelope: fields 1 and 2
_META, _ITEM = 0x0A, 0x12  # of the list: fields 1 and 2
_VERSION, _CONTINUE = 0x12, 0x1A  # of its metadata: fields 2 and 3


def writes_object_by_object(version: bytes) -> bool:
    """Whether that answer to /version is of an API server that writes lists so."""
    try:
        said = loads(version)
        release = int(said["major"]), int("".join(filter(str.isdigit, said["minor"])))  # "33+" of some distributions
    except (ValueError, KeyError, TypeError):
        return False
    return release >= _SINCE


def is_made_here(token: str) -> bool:
    """Whether a page goes on with one made here, which no API server knows."""
    return token.startswith(_TOKEN)


class Body:
    """The body of an answer as it comes: `head` is what came before."""

    def __init__(self, head: Head) -> None:
        self.start = head.start if head.length is not None else head.start - len(b"\r\n")
        self._chunked = head.length is None
        self._left = head.length or 0  # bytes of this chunk, or of a body with a length, that are still to come
        self.ended = not self._chunked and not self._left

    def is_there(self, received: bytearray, end: int) -> bool:
        """Whether what was received since the last move goes to the end of the body, as far as can be told so soon."""
        return received.endswith(_LAST, 0, end) if self._chunked else end >= self._left

    def move(self, received: bytearray, at: int, end: int, to: bytearray) -> int:
        """Append what is there of the body; returns where the bytes begin of which more must come. Raises AnswerError.

        Thousands of chunks in a second: a pattern finds the next one faster than anything else here.
        """
        view, between = memoryview(received), BETWEEN_CHUNKS.match
        while at < end and not self.ended:
            if self._left:
                size = min(self._left, end - at)
                to += view[at : at + size]
                at, self._left = at + size, self._left - size
                self.ended = not self._chunked and not self._left
                continue
            line = between(received, at, end)
            if line is None:
                if end - at > _LONGEST_LINE or received.find(b"\n", at + len(b"\r\n"), end) >= 0:
                    raise AnswerError("a chunk has no size, or is longer than it says")
                break
            at, self._left = line.end(), int(line[1], 16)
            self.ended = not self._left
        return at


class ListCutter:
    """Cuts a list in protobuf form into pages of it in that form, each of which names the next one, as it comes."""

    def __init__(self, size: int = _PAGE) -> None:
        self.held = bytearray()  # what has come of the list and is in no page yet
        self.ended = False
        self._size = size
        self._at = 0  # where the next object begins there
        self._left: int | None = None  # bytes of the list that no page has; None: its beginning has not come
        self._type = self._meta = self._version = b""
        self._pages = 0

    def pages(self) -> Iterator[bytes]:
        """Those that can be cut from what is held. Raises AnswerError."""
        if self._left is None:
            self._begin()
        while self._left is not None and not self.ended:
            held, there, enough = self.held, len(self.held), min(self._size, self._left)
            while self._at < enough:
                value = _value_of(held, self._at, _ITEM)
                if value is None or value[1] > there:
                    return
                self._at = value[1]
            if self._at > self._left:
                raise AnswerError("the list ends in the middle of an object")
            yield self._cut(self._left)

    def _begin(self) -> None:
        """Read what comes before the first object, if it is there."""
        held = self.held
        if len(held) >= len(b"k8s\0") and not is_protobuf(bytes(held[:4])):
            raise AnswerError("the list is not in protobuf form")
        kind = _value_of(held, len(b"k8s\0"), _TYPE)
        whole = kind and _value_of(held, kind[1], _LIST)
        meta = whole and _value_of(held, whole[0], _META)
        if kind and whole and meta and meta[1] <= len(held):
            self._type, self._meta = bytes(held[: kind[1]]), bytes(held[meta[0] : meta[1]])
            try:
                self._version = texts_in(self._meta).get(_VERSION >> 3, b"")
            except (IndexError, ValueError) as error:
                raise AnswerError(f"the metadata of the list cannot be read: {error}") from error
            self._left = whole[1] - meta[1]
            del held[: meta[1]]

    def _cut(self, left: int) -> bytes:
        meta = self._meta
        if left > self._at:
            self._pages += 1
            meta = _field(_VERSION, self._version) + _field(_CONTINUE, f"{_TOKEN}-{self._pages}".encode())
        meta = _field(_META, meta)
        with memoryview(self.held) as held:
            page = b"".join((self._type, _begin_field(_LIST, len(meta) + self._at), meta, held[: self._at]))
        del self.held[: self._at]
        self._left, self._at = left - self._at, 0
        self.ended = not self._left
        return page


def _field(tag: int, value: bytes) -> bytes:
    return _begin_field(tag, len(value)) + value


def _begin_field(tag: int, length: int) -> bytes:
    size = bytearray()
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes((tag, *size, length))


def _value_of(held: bytearray, at: int, tag: int) -> tuple[int, int] | None:
    """Where the value of the field at that place begins and ends; None: that is still to come. Raises AnswerError."""
    try:
        if held[at] != tag:
            raise AnswerError(f"the list has another form than is known here: field {held[at]} in place of {tag}")
        size, start = varint_at(held, at + 1)
    except IndexError:
        return None
    except ValueError as error:
        raise AnswerError(f"a field of the list has no size: {error}") from error
    return start, start + size
