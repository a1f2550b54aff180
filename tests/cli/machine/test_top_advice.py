"""Runs that take turns token by token are told what would give them more."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.cli.client import parse_status
from aliquot.cli.machine.top import view
from kit.machines.fakedaemon import a_share, a_status, a_tenant

TURNS = {"cards": [a_share(takes_turns=True)]}
SAID = "one and two take turns token by token: started with --together NAME each gets more of the card"


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (TURNS, TURNS, True),
        ({**TURNS, "uid": 1001}, {**TURNS, "uid": 1002}, False),  # a group is one owner's
        ({**TURNS, "together": "engines"}, TURNS, False),
        ({**TURNS, "cards": [a_share(1, takes_turns=True)]}, TURNS, False),
        ({}, TURNS, False),
    ],
)
def test_two_of_one_owner_are_told_of_groups(first: dict[str, Any], second: dict[str, Any], said: bool) -> None:
    status = a_status(tenants=[a_tenant("one", **first), a_tenant("two", **second)])
    assert (SAID in view(parse_status(status)).splitlines()) is said
