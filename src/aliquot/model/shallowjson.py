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
_PART = 1 << 14  # bytes that are looked at in one go: other threads may run in between
_BLANK = bytes(256)
_STEPS = bytes({91: 1, 123: 1, 93: 255, 125: 255}.get(sign, 0) for sign in range(256))  # [ and {: +1, ] and }: -1


def decoded(decode: Callable[[bytes], _T], raw: bytes) -> _T:
    """What `decode` makes of the JSON, without the parts that are nested too deep for it. Raises what it raises."""
    try:
        return decode(raw)
    except RecursionError:
        return decode(shallow(raw))


def shallow(raw: bytes) -> bytes:
    """The JSON with null for each list and mapping that is nested deeper than `DEEPEST` levels. What is never
    closed stays as it is. It takes no stack, however deep that is, and about 0.1 s for a MB."""
    raw = bytes(raw)
    steps = _without_strings(raw).translate(_STEPS)
    kept: list[bytes] = []
    depth, since, cut = 0, 0, False  # what stands from `since` on is kept, unless it is cut
    for start in range(0, len(raw), _PART):
        depths = list(accumulate(memoryview(steps)[start : start + _PART].cast("b"), initial=depth))
        depth = depths[-1]
        if max(depths) <= DEEPEST or (cut and min(depths) > DEEPEST):
            continue
        deep = bytes(map(DEEPEST.__lt__, depths[1:]))
        at = 0
        while (at := deep.find(not cut, at)) >= 0:
            if cut:
                since = start + at + 1  # after the bracket that closes it
            else:
                kept += (raw[since : start + at], b"null")
            cut = not cut
    return raw if cut else b"".join((*kept, raw[since:]))


def _without_strings(raw: bytes) -> bytes:
    """As long as the JSON, with blanks in place of its texts: brackets in there count for nothing."""
    parts = raw.replace(b"\\\\", b"  ").replace(b'\\"', b"  ").split(b'"')
    parts[1::2] = [part.translate(_BLANK) for part in parts[1::2]]
    return b'"'.join(parts)
