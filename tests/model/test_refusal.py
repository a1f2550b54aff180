"""An Invalid is a sentence that names the field, what it was, and what is allowed."""

from __future__ import annotations

import pytest

from aliquot.model.refusal import Invalid, show
from aliquot.model.text import printable_json


def test_invalid_sentence_names_field_value_and_what_is_allowed() -> None:
    assert Invalid("spec.x", "5Gi", "whole GiB").sentence() == 'spec.x: "5Gi" is not allowed: whole GiB'


def test_invalid_sentence_says_that_the_field_is_missing() -> None:
    assert Invalid("spec.x", None, "required").sentence() == "spec.x is missing: required"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "nothing"),
        ("a", '"a"'),
        (3, "3"),
        (True, "True"),
        ({"a": 1}, "a mapping of 1"),
        ([1, 2], "a list of 2"),
    ],
)
def test_a_value_is_shown_as_people_write_it(value: object, shown: str) -> None:
    assert show(value) == shown


def test_a_long_value_is_cut() -> None:
    assert len(show("x" * 1000)) == 80


def test_show_handles_values_that_str_cannot() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert show(deep) == "a list of 1"
    assert show(10**5000) == "a number of enormous size"


@pytest.mark.parametrize("text", ["\x1b[2J", "\x1b]0;x\x07", "a\r\nb", "\u202e", "\x9b", "\ud800", "\0"])
def test_sentence_steers_no_terminal(text: str) -> None:
    """It is in events and in the answers to kube-scheduler and to the API server, which kubectl prints."""
    for broken in (Invalid("spec.x", text, "y"), Invalid(f'limits["{text}"]', None, "y"), Invalid("spec.x", 1, text)):
        assert broken.sentence().isprintable()
    assert show(text).isprintable()


@pytest.mark.parametrize("sign", ["\x1b", "\u202e", "\U000e0041", "\n", "a"])
@pytest.mark.parametrize("before", range(12))
def test_a_value_of_escapes_is_not_longer_than_others_and_ends_with_a_whole_one(sign: str, before: int) -> None:
    """Else it fills an event before the words that say what is allowed."""
    shown = show("b" * before + sign * 200)
    assert 60 <= len(shown) <= 80
    escape = ascii(sign)[1:-1]
    body = shown.removeprefix('"' + "b" * before).removesuffix("...")
    assert body == escape * (len(body) // len(escape))


def test_values_of_up_to_80_signs_are_shown_whole() -> None:
    assert show("x" * 78) == f'"{"x" * 78}"'
    assert show("x" * 79) == f'"{"x" * 76}...'


def test_wide_space_of_chinese_text_is_shown_as_it_is() -> None:
    assert show("显存\u3000大小\u202e") == '"显存\u3000大小\\u202e"'
    assert printable_json('"\u3000"') == '"\u3000"'
