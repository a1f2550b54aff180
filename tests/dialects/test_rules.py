"""`--dialects` in words, and the dialects that count on a card."""

from __future__ import annotations

import pytest

from aliquot.dialects.rules import DEFAULT_RULES, DIALECTS, EVERY, Rules, parse_dialects
from aliquot.model.refusal import Invalid


@pytest.mark.parametrize(
    ("text", "served"),
    [
        (None, set(DIALECTS)),
        ("all", set(DIALECTS)),
        ("qgpu", {"qgpu"}),
        ("gpushare, t9k", {"gpushare", "t9k"}),
        ("hami", {"hami"}),
        ("all,hami", {*DIALECTS, "hami"}),
        (",".join(EVERY), set(EVERY)),
        (f"all,{','.join(EVERY)}", set(EVERY)),
    ],
)
def test_dialects_that_are_named_are_served(text: str | None, served: set[str]) -> None:
    assert parse_dialects(text) == frozenset(served)


@pytest.mark.parametrize("text", ["", "qgpu,", "other", "all,other", "QGPU"])
def test_other_names_are_refused(text: str) -> None:
    wrong = parse_dialects(text)
    assert isinstance(wrong, Invalid)
    assert (wrong.field, wrong.value) == ("--dialects", text)


@pytest.mark.parametrize(
    ("served", "whole"),
    [
        (set(), set(DIALECTS)),
        ({"qgpu"}, set(DIALECTS)),
        ({"hami"}, {*DIALECTS, "hami"}),
        (set(DIALECTS), set(DIALECTS)),
        (set(EVERY), set(EVERY)),
    ],
)
def test_cards_hold_pods_of_every_dialect_that_is_not_on_request(served: set[str], whole: set[str]) -> None:
    assert Rules(served=frozenset(served)).whole.served == whole


def test_rules_that_serve_all_are_whole_themselves() -> None:
    assert DEFAULT_RULES.whole is DEFAULT_RULES
