"""JSON of texts that others wrote, whatever is in them (model/text.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from aliquot.model.text import encodable


def encode_json(value: object, others: Callable[[Any], Any] | None = None) -> bytes:
    """As JSON, whatever texts are in it: one that cannot be encoded must not keep the others from being seen. `others`:
    what becomes of objects that JSON does not know."""
    try:
        return msgspec.json.encode(value, enc_hook=others)
    except UnicodeEncodeError:
        return msgspec.json.encode(_with_encodable(msgspec.to_builtins(value, enc_hook=others)))


def _with_encodable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {_with_encodable(key): _with_encodable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_encodable(inner) for inner in value]
    return value
