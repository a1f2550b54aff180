"""JSON of any shape, read as what it should be."""

from __future__ import annotations

from typing import Any

from aliquot.model.decoding.openjson import JsonView
from aliquot.model.refusal import show


def mapping(value: object) -> JsonView:
    """The mapping that is there; anything else is an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> list[Any]:
    """The list that is there; anything else is an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """The text that is there, or any other JSON in a few words."""
    return value if isinstance(value, str) else show(value)
