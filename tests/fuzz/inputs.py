"""Hostile inputs: any JSON, and recorded good inputs with some values or bytes changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from kit.values import anyjson

ODD_TEXTS = (
    "",
    " ",
    "..",
    "../../../etc/shadow",
    "/",
    "a/b",
    "\0",
    "a\nb",
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m",
    "\u202egnp.exe",
    "\u00b2",
    "\u0663",
    "é" * 300,
    "x" * 5000,
    "-1",
    "-0",
    "1e400",
    "1e-400",
    "9" * 5000,
    "0x10",
    "NaN",
    "Infinity",
    "1Ki",
    "1.5",
    "true",
    "null",
    "{}",
    "[",
    '{"v":1}',
    "%2e%2e%2f",
    "${HOME}",
    "$(X)",
    "<script>alert(1)</script>",
)
HALVES = ("\ud800", "a\udc00b", "\udfff/..")  # halves of a surrogate pair: JSON can spell them, UTF-8 cannot
ODD_NUMBERS = (0, -1, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), 1e308, -0.0, 0.1)

texts = st.sampled_from(ODD_TEXTS) | st.text(max_size=20)
atoms: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.sampled_from(ODD_NUMBERS)
    | st.integers()
    | texts
    | st.floats(allow_nan=False, allow_infinity=False)
)
loose_atoms: st.SearchStrategy[Any] = atoms | st.sampled_from(HALVES) | st.floats()  # as Python's json reads them


def any_json(of: st.SearchStrategy[Any] = atoms, keys: st.SearchStrategy[str] = texts) -> st.SearchStrategy[Any]:
    """Any value, of any shape."""
    return anyjson.any_json(of, keys, most=4, leaves=12)


@st.composite
def changed(draw: st.DrawFn, recorded: Sequence[Any], of: st.SearchStrategy[Any] = atoms) -> Any:
    """One of the recorded values with some places of it changed: replaced, left out, doubled, taken from elsewhere."""
    whole = [copy.deepcopy(draw(st.sampled_from(recorded)))]
    keys = sorted({key for document in recorded for key in _keys(document)}) or ["key"]
    fresh = any_json(of, st.sampled_from(keys) | texts)
    for _ in range(draw(st.integers(0, 4))):
        parent, at = _somewhere(draw, whole)
        match draw(st.integers(0, 5)):
            case 0 | 1:
                parent[at] = draw(fresh)
            case 2:
                parent[at] = draw(of)
            case 3 if parent is not whole:
                del parent[at]
            case 4:
                other, there = _somewhere(draw, whole)
                parent[at] = copy.deepcopy(other[there])
            case _:
                value = parent[at]
                if isinstance(value, dict):
                    value[draw(st.sampled_from(keys) | texts)] = draw(fresh)
                elif isinstance(value, list):
                    value.extend(copy.deepcopy(value[:1]) or [draw(fresh)])
                else:
                    parent[at] = [value]
    return whole[0]


def _keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in _keys(inner)}
    return {key for inner in value for key in _keys(inner)} if isinstance(value, list) else set()


def _somewhere(draw: st.DrawFn, whole: list[Any]) -> tuple[Any, Any]:
    """A place in it: what it is in, and under which key or index."""
    parent: Any = whole
    at: Any = 0
    while True:
        value = parent[at]
        places = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
        if not places or draw(st.integers(0, 3)) == 0:
            return parent, at
        parent, at = value, draw(st.sampled_from(places))


class _Recorded(tuple[bytes, ...]):
    """Texts whose repr is short: hypothesis puts it into messages at any time, and warns where it is long."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} texts>"


def damaged(recorded: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of the recorded texts with bytes of it changed, cut out, doubled, or cut off."""
    return _damaged(_Recorded(recorded))


@st.composite
def _damaged(draw: st.DrawFn, recorded: _Recorded) -> bytes:
    data = bytearray(recorded[draw(st.integers(0, len(recorded) - 1))])
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(0, len(data))))
        length = draw(st.integers(0, 16))
        match draw(st.integers(0, 4)):
            case 0:
                data[at : at + length] = draw(st.binary(max_size=16))
            case 1:
                del data[at : at + length]
            case 2:
                data[at:at] = data[at : at + length] * draw(st.integers(1, 40))
            case 3:
                del data[at:]
            case _:
                data[at:at] = draw(st.sampled_from(_PIECES))
    return bytes(data)


_PIECES = (
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\n",
    b"\r\n\r\n",
    b"- " * 60,
    b"[" * 3000,
    b"{" * 3000,
    b'{"a":' * 3000,
    b"9" * 5000,
    b"&a [*a, *a]",
    b"!!python/object/apply:os.system [id]",
    b"<<: *x",
    b"2001-99-99",
    b"NaN",
    b'"\\ud800"',
    b"\x1b[31m",
    b": ? ",
)


def as_bytes(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """As they come over a wire."""
    return values.map(lambda value: json.dumps(value).encode())
