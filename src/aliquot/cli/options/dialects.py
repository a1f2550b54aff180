"""`--dialects` of the scheduler and the agent."""

from __future__ import annotations

from aliquot.cli.errors import InputError
from aliquot.model.refusal import Invalid

HELP = "Serve these dialects, e.g. qgpu,hami; ignore Pods and nodes of the others  [default: all but hami, kai]"


def parse_dialects(text: str | None) -> frozenset[str]:
    """The dialects in the option; without it all but those on request. Raises InputError."""
    from aliquot.dialects import rules

    served = rules.parse_dialects(text)
    if isinstance(served, Invalid):
        raise InputError(served.sentence())
    return served
