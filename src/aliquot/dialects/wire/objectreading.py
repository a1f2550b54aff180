"""Converts JSON objects (from kubectl, a file) to the structs of `objects`. A wrong field becomes an `Invalid`."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from aliquot.model.refusal import Invalid

_T = TypeVar("_T")


def read_object(value: object, kind: type[_T], name: str) -> _T | Invalid:
    """JSON as one of the structs in `objects`, or an Invalid that names the first field of a wrong type. Never raises.

    `name` is what to call the whole object. A field that is null counts as absent, as in Kubernetes.
    """
    if not isinstance(value, dict):
        return Invalid(name, value, f"a {name.capitalize()} object")
    try:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            there = _without_nulls(value)
            try:
                return msgspec.convert(there, kind)
            except msgspec.ValidationError as error:
                return _invalid(there, str(error), name)
    except RecursionError:
        return Invalid(name, value, "an object that is nested less deeply")
    except UnicodeError:  # half of a surrogate pair: JSON can spell it, UTF-8 cannot
        return Invalid(name, value, "an object with Unicode text only")


def _without_nulls(value: object) -> object:
    """Without the fields that are null; the places in lists stay."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_JSON_TYPES = {"object": dict, "array": list, "str": str, "int": int, "float": float, "bool": bool, "null": type(None)}
_EXPECTED = {"object": "a mapping", "array": "a list", "str": "text", "bool": "true or false"}


def _invalid(value: Any, message: str, name: str) -> Invalid:
    """msgspec's message ("Expected `str`, got `int` - at `$.metadata.name`") with the field and value in it."""
    reason, _, path = message.partition(" - at `$")
    expected, got = re.search(r"Expected `([^`|]+?) ?[`|]", reason), re.search(r"got `([^`]*)`", reason)
    json_type = _JSON_TYPES.get(got[1]) if got else None
    field = ""
    for step in _STEP.finditer(path.rstrip("`")):
        if step[1]:
            value, field = value[step[1]], f"{field}.{step[1]}"
        elif step[2] != "...":
            value, field = value[int(step[2])], f"{field}[{step[2]}]"
        else:  # the value of a mapping: msgspec does not say of which key
            key = next((key for key in value if type(value[key]) is json_type), None)
            value, field = value.get(key), f'{field}["{key}"]'
    field = field.removeprefix(".")
    missing = re.search(r"missing required field `([^`]*)`", reason)
    if missing:
        return Invalid(f"{field}.{missing[1]}".removeprefix("."), None, "every Kubernetes object has it")
    return Invalid(field or name, value, _EXPECTED.get(expected[1], reason) if expected else reason)
