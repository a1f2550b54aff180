"""How the daemon's options and what was stored become its rules."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.adapters.host.home import Home
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules
from aliquot.services.machine.service import Setup, _rules

STORED = SharingRules(Isolation.BURST_SHARE, 0.5, 7.0)


def with_options(**options: Any) -> SharingRules:
    made: Any = None
    home = Home("/nowhere", "/nowhere")
    return _rules(STORED, Setup(home, made, made, on_ready=made, environment={}, front={}, **options))


def test_rules_stay_as_stored_without_options() -> None:
    assert with_options() == STORED


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({"policy": Isolation.FIXED_SHARE}, SharingRules(Isolation.FIXED_SHARE, 0.5, 7.0)),
        ({"release_delay": 0.0}, SharingRules(Isolation.BURST_SHARE, 0.0, 7.0)),
        ({"enforce": "report"}, SharingRules(Isolation.BURST_SHARE, 0.5, None)),
        ({"enforce": "kill", "kill_after": 0.0}, SharingRules(Isolation.BURST_SHARE, 0.5, 0.0)),
    ],
)
def test_options_replace_what_was_stored(options: dict[str, Any], rules: SharingRules) -> None:
    assert with_options(**options) == rules
