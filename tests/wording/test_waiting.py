"""Why a run waits, in one line."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.wording.shortage import reason
from aliquot.wording.waiting import waiting


def short(card: int, what: str, wanted: int, had: int) -> dict[str, Any]:
    return {"card": card, "reason": what, "wanted": wanted, "had": had}


@pytest.mark.parametrize(
    ("refusals", "sentence"),
    [
        ([short(0, "memory", 8192, 4096)], "card 0 has 4.0 GiB free (8.0 GiB wanted)"),
        ([short(0, "core", 500, 205)], "card 0 has 20.5% of compute free (50% wanted)"),
        ([short(0, "core-greedy", 500, 0)], "card 0 has 0% of offline compute free (50% wanted)"),
        ([short(0, "exclusive", 0, 1)], "card 0 is in use"),
        ([short(0, "exclusive", 0, 3)], "card 0 is in use by 3"),
        ([short(0, "slices", 1, 0)], "card 0 is shared by as many as may"),
        ([short(0, "health", 1, 0)], "card 0 is not fit (health)"),
        (
            [short(0, "memory", 8192, 1024), short(1, "memory", 8192, 4096)],
            "card 1 has 4.0 GiB free (8.0 GiB wanted); 1 other card has no room either",
        ),
        (
            [
                short(0, "memory", 8, 1),
                short(1, "memory", 8, 1),
                short(2, "memory", 8, 7),
                {"card": None, "reason": "cards"},
            ],
            "card 2 has 7 MiB free (8 MiB wanted); 2 other cards have no room either",
        ),
        (
            [short(0, "memory", 8192, 4096), short(0, "core", 500, 400), short(1, "exclusive", 0, 1)],
            "card 1 is in use; 1 other card has no room either",
        ),
        ([], "no room"),
    ],
)
def test_what_is_short_on_the_card_that_is_nearest(refusals: list[dict[str, Any]], sentence: str) -> None:
    assert reason({"refusals": refusals}) == sentence


def test_room_may_be_kept_for_the_first() -> None:
    assert reason({"refusals": [], "kept_for": "big"}) == "room is kept for big, which is first"


@pytest.mark.parametrize(
    ("position", "ordinal"),
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (11, "11th"),
        (12, "12th"),
        (21, "21st"),
        (112, "112th"),
        (122, "122nd"),
    ],
)
def test_places_are_counted_as_people_count(position: int, ordinal: str) -> None:
    said = waiting({"position": position, "of": 200, "refusals": [], "kept_for": None})
    assert said == f"waiting: {ordinal} of 200; no room"
