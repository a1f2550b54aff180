"""JSON without its depths: what is not deep stays, and no text in it misleads."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.decoding import shallowjson
from aliquot.model.decoding.shallowjson import DEEPEST, decoded, shallow
from kit.values.anyjson import any_json
from kit.values.deepjson import with_deep_fields


def cut(value: Any, left: int = DEEPEST) -> Any:
    if not isinstance(value, dict | list):
        return value
    if not left:
        return None
    if isinstance(value, dict):
        return {key: cut(inner, left - 1) for key, inner in value.items()}
    return [cut(inner, left - 1) for inner in value]


def nested(value: Any, shape: str) -> Any:
    for sign in shape:
        value = [value, 1] if sign == "[" else {"a": value, "b": "]}"}
    return value


texts = st.text(st.sampled_from('[]{}"\\u, a'))


@given(any_json() | texts | st.lists(texts) | st.dictionaries(texts, texts), st.text("[{", min_size=190, max_size=215))
def test_lists_and_mappings_below_the_deepest_level_become_null(value: Any, shape: str) -> None:
    whole = nested({"x": value, "y": [value]}, shape)
    raw = json.dumps(whole).encode()
    assert json.loads(shallow(raw)) == json.loads(json.dumps(cut(whole)))


@pytest.mark.parametrize("part", [1, 2, 7, 64])
def test_shallow_json_is_the_same_for_any_size_of_parts(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = with_deep_fields([1, "DEEP", {"a": "DEEP", "b": '\\"[[[\\'}, [["DEEP"]], 2], levels=400)
    whole = shallow(raw)
    monkeypatch.setattr(shallowjson, "_PART", part)
    assert shallow(raw) == whole
    assert json.loads(whole)[-1] == 2


def test_json_that_a_decoder_cannot_follow_is_read_without_its_depths() -> None:
    found = decoded(msgspec.json.decode, with_deep_fields({"a": "DEEP", "b": 1}))
    assert found["b"] == 1
    assert decoded(msgspec.json.decode, b"[1]") == [1]


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 300 + b']}"' * 300])
def test_what_is_no_json_stays_none(raw: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, RecursionError)):
        decoded(msgspec.json.decode, raw)
