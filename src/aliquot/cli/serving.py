"""`--dialects`: which of them a scheduler or an agent serves."""

from __future__ import annotations

from aliquot.cli.errors import InputError

HELP = "The dialects that are served, as qgpu,gpushare; Pods and nodes of others are left alone  [default: all]"


def parse_dialects(text: str | None) -> frozenset[str]:
    """Those that are named; all where none is. Raises InputError."""
    from aliquot.dialects import DIALECTS

    if text is None:
        return frozenset(DIALECTS)
    named = {word.strip() for word in text.split(",")}
    if not named <= set(DIALECTS):
        raise InputError(f'--dialects: "{text}" is not allowed: {", ".join(DIALECTS)}, with commas between')
    return frozenset(named)
