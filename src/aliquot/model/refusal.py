"""Why not: a claim that does not go somewhere (Refusal), a manifest that is no claim (Invalid). Both are data."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.model.reason import Reason
from aliquot.model.text import printable, printable_start

__all__ = ["Invalid", "Reason", "Refusal", "show"]

_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Refusal:
    """One shortage at one place. `never`: even an empty card or node would not do; `had` is then what that has."""

    node: str
    card: int | None
    reason: Reason
    wanted: int | str | None
    had: int | str | None
    never: bool


@dataclass(frozen=True, slots=True)
class Invalid:
    """One field of a manifest that breaks a rule."""

    field: str
    value: object
    allowed: str

    def sentence(self) -> str:
        """Names the field, what it was, and what is allowed; on one line, without signs that steer terminals: it is in
        events, logs and the answers of others' programs."""
        if self.value is None:
            return printable(f"{self.field} is missing: {self.allowed}")
        return printable(f"{self.field}: {show(self.value)} is not allowed: {self.allowed}")


def show(value: object) -> str:
    """Any JSON value in a few words. Deep nesting and numbers of thousands of digits are more than str() can bear."""
    if value is None:
        return "nothing"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of enormous size"
    if isinstance(value, (dict, list)):
        text = f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    else:
        text = f'"{value}"' if isinstance(value, str) else str(value)
    return printable_start(text, _LONGEST_SHOWN)
