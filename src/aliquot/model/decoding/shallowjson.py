"""JSON of others, nested deeper than a decoder can follow: its depths are cut off, and the rest is read.

Whoever may write one object of a cluster can nest a part of it 10,000 levels deep, and the API server keeps that: in
the `managedFields` of any object, in the parameters of a ResourceClaim. Decoders raise RecursionError there, also where
they only pass over it; one such object in a list would hide all the others. Nothing that we read is so deep.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import TypeVar

DEEPEST = 200  # levels that are kept

_T = TypeVar("_T")
_PART = 1 << 12  # bytes that are looked at in one go: other threads run in between, and most parts hold no depths
_BLANK = bytes(256)
_STEPS = bytes({91: 1, 123: 1, 93: 255, 125: 255}.get(sign, 0) for sign in range(256))  # [ and {: +1, ] and }: -1
_BACKSLASH = 92


def decoded(decode: Callable[[bytes], _T], raw: bytes) -> _T:
    """What `decode` makes of the JSON, without the parts that are nested too deep for it. Raises what it raises."""
    try:
        return decode(raw)
    except RecursionError:
        return decode(shallow(raw))


def shallow(raw: bytes) -> bytes:
    """The JSON with null for each list and mapping that is nested deeper than `DEEPEST` levels. What is never
    closed stays as it is. It takes no stack, however deep that is, 10 ms for a MB, and 50 ms where that is deep."""
    raw = bytes(raw)
    kept: list[bytes] = []
    since, cut = 0, False  # what stands from `since` on is kept, unless it is cut
    depth, start, in_text = 0, 0, False
    while start < len(raw):
        end = _end_of_part(raw, start)
        signs, in_text = _without_texts(raw[start:end], in_text)
        opened, closed = (sum(map(signs.count, brackets)) for brackets in (b"[{", b"]}"))
        if depth - closed > DEEPEST if cut else depth + opened <= DEEPEST:
            depth += opened - closed
        else:
            depths = list(accumulate(memoryview(signs.translate(_STEPS)).cast("b"), initial=depth))
            depth, deep, at = depths[-1], bytes(map(DEEPEST.__lt__, depths[1:])), 0
            while (at := deep.find(not cut, at)) >= 0:
                if cut:
                    since = start + at + 1  # after the bracket that closes it
                else:
                    kept += (raw[since : start + at], b"null")
                cut = not cut
        start = end
    return raw if cut else b"".join((*kept, raw[since:]))


def _end_of_part(raw: bytes, start: int) -> int:
    """Never between a backslash and what it escapes."""
    end = min(start + _PART, len(raw))
    if raw[end - 1] != _BACKSLASH:
        return end
    while end < len(raw) and raw[end] == _BACKSLASH:
        end += 1
    return min(end + 1, len(raw))


def _without_texts(part: bytes, in_text: bool) -> tuple[bytes, bool]:
    """As long as the part, with blanks in place of its texts: brackets in there count for nothing. And whether it ends
    in the middle of a text."""
    pieces = part.replace(b"\\\\", b"  ").replace(b'\\"', b"  ").split(b'"')
    for at in range(0 if in_text else 1, len(pieces), 2):
        pieces[at] = pieces[at].translate(_BLANK)
    return b'"'.join(pieces), in_text ^ (len(pieces) % 2 == 0)
