"""What a tenant does on a card, in words."""

from __future__ import annotations

from aliquot.model.tenant import State


def state_words(state: State, paused_by: str | None) -> str:
    """With the name of the tenant that has the card instead: "paused: serve has the card"."""
    return state.value if paused_by is None else f"{state.value}: {paused_by} has the card"
