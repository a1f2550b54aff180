"""Levels of control in words."""

from __future__ import annotations

import pytest

from aliquot.model.cardstate.control import PROVEN, CardControl, ControlLevel, ControlReason
from aliquot.wording.control import control_words, why_gated


def test_proven_hardware_needs_no_reason() -> None:
    assert control_words(PROVEN) == "hardware (proven)"


def test_control_of_a_newer_release_is_shown_as_it_is() -> None:
    assert control_words(CardControl(ControlLevel("wish"), ControlReason("full_moon"))) == "wish: full_moon"
    assert control_words(CardControl(ControlLevel.GATE, ControlReason("full_moon"))) == "gate: full_moon"


@pytest.mark.parametrize("reason", ControlReason)
@pytest.mark.parametrize("level", ControlLevel)
def test_every_level_and_reason_has_words(level: ControlLevel, reason: ControlReason) -> None:
    assert ": " in control_words(CardControl(level, reason))
    assert why_gated(CardControl(level, reason)).endswith("held at the gate from now on")
