"""Why a run waits, in one line."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aliquot.model.reason import Reason
from aliquot.model.status.machine import QueuePosition, RefusalStatus
from aliquot.wording.shortage import nearest, parse_place, reason, waiting


def short(card: int, what: str, wanted: int, had: int) -> dict[str, Any]:
    return {"card": card, "reason": what, "wanted": wanted, "had": had}


@pytest.mark.parametrize(
    ("refusals", "sentence"),
    [
        ([short(0, "memory", 8192, 4096)], "card 0 has 4 GiB free, needs 8 GiB"),
        ([short(0, "core", 500, 205)], "card 0 has 20.5% of its compute free, needs 50%"),
        ([short(0, "core-greedy", 500, 0)], "card 0 has 0% of its offline compute free, needs 50%"),
        ([short(0, "exclusive", 0, 1)], "card 0 is in use"),
        ([short(0, "exclusive", 0, 3)], "card 0 is in use"),
        ([short(0, "slices", 1, 0)], "card 0 has reached its sharing limit"),
        ([short(0, "health", 1, 0)], "card 0 is unhealthy or gone"),
        (
            [short(0, "memory", 8192, 1024), short(1, "memory", 8192, 4096)],
            "card 1 has 4 GiB free, needs 8 GiB; 1 other card has no room either",
        ),
        (
            [
                short(0, "memory", 8, 1),
                short(1, "memory", 8, 1),
                short(2, "memory", 8, 7),
                {"card": None, "reason": "cards"},
            ],
            "card 2 has 7 MiB free, needs 8 MiB; 2 other cards have no room either",
        ),
        (
            [short(0, "memory", 8192, 4096), short(0, "core", 500, 400), short(1, "exclusive", 0, 1)],
            "card 1 is in use; 1 other card has no room either",
        ),
        ([short(0, "later", 1, 0)], "card 0 does not fit (later)"),
        ([], "no room"),
    ],
)
def test_reason_is_what_the_nearest_card_lacks(refusals: list[dict[str, Any]], sentence: str) -> None:
    assert reason(parse_place({"refusals": refusals})) == sentence


def test_reason_names_who_room_is_reserved_for() -> None:
    assert reason(parse_place({"refusals": [], "kept_for": "big"})) == "room is reserved for big, which is first"


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
def test_waiting_has_an_ordinal(position: int, ordinal: str) -> None:
    said = waiting(parse_place({"position": position, "of": 200, "refusals": [], "kept_for": None}))
    assert said == f"waiting: {ordinal} of 200; no room"


def test_nearest_card_is_found_where_the_shortage_is_no_amount() -> None:
    models = [RefusalStatus(0, Reason.MODE, "H200", "A30"), RefusalStatus(1, Reason.MEMORY, 8192, 4096)]
    assert nearest(models) == ([models[1]], 1)


def test_reason_of_a_status_is_that_of_its_json() -> None:
    refusals = [RefusalStatus(0, Reason.MEMORY, 8192, 4096, node="here"), RefusalStatus(None, Reason.CARDS, 2, 1)]
    position = QueuePosition("train", 2, 3, None, refusals)
    assert waiting(position) == waiting(parse_place(msgspec.to_builtins(position)))
    assert waiting(position) == "waiting: 2nd of 3; card 0 of here has 4 GiB free, needs 8 GiB"
