"""`--dialects` of the scheduler and the agent."""

from __future__ import annotations

from aliquot.cli.errors import InputError
from aliquot.model.refusal import Invalid

HELP = "Dialects to serve, such as qgpu,gpushare; Pods and nodes of the others are left alone  [default: all]"


def parse_dialects(text: str | None) -> frozenset[str]:
    """The dialects that the option names, or all of them without it. Raises InputError."""
    from aliquot.dialects import rules

    served = rules.parse_dialects(text)
    if isinstance(served, Invalid):
        raise InputError(served.sentence())
    return served
