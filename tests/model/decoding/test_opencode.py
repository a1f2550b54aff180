"""Codes that a later release may add to."""

from __future__ import annotations

import copy
import pickle

import msgspec
import pytest

from aliquot.model.decoding.opencode import OpenCode


class Code(OpenCode):
    KNOWN = "known"


class Form(msgspec.Struct):
    code: Code | None = None


def test_unknown_code_is_kept_as_it_is() -> None:
    body = b'{"code":"new"}'
    read = msgspec.json.decode(body, type=Form)
    assert msgspec.json.encode(read) == body
    assert msgspec.convert({"code": "new"}, Form) == read
    assert read.code is not None
    assert (read.code.value, f"{read.code}", read.code.known) == ("new", "new", False)
    assert read.code == Code("new")
    assert copy.deepcopy(read.code) == pickle.loads(pickle.dumps(read.code)) == read.code
    assert [code.value for code in Code] == ["known"], "it is no member"


def test_known_code_is_the_member() -> None:
    code = msgspec.json.decode(b'{"code":"known"}', type=Form).code
    assert code is Code.KNOWN
    assert code.known
    assert copy.deepcopy(code) is pickle.loads(pickle.dumps(code)) is Code.KNOWN


def test_code_hashes_as_the_text_that_it_equals() -> None:
    for code, text in ((Code.KNOWN, "known"), (Code("new"), "new")):
        assert code == text
        assert hash(code) == hash(text)


def test_code_that_must_be_understood_is_one_of_this_release() -> None:
    assert Code.of_this_release("known") is Code.KNOWN
    for value in ("new", 3, None):
        with pytest.raises(ValueError, match=f"{value}"):
            Code.of_this_release(value)


def test_code_that_is_no_text_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"code":3}', type=Form)
    with pytest.raises(ValueError, match="3"):
        Code(3)  # type: ignore[arg-type]
