"""`--control`: what holds tenants to their shares, for the daemon of one machine and for the agent of a node."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from aliquot.cli.errors import InputError

if TYPE_CHECKING:
    from aliquot.services.proof.startup import Mode

_CHOICES = ("auto", "trust", "gate")
_VARIABLE = "ALIQUOT_CONTROL"


def control_option(default: str) -> Callable[[Any], Any]:
    """`--control`; the help names the default."""
    return click.option(
        "--control",
        type=click.Choice(_CHOICES),
        help="What holds tenants to their shares. auto: the card's time slices and pauses, tried for half a second "
        "while the card is idle, and the gate (kernel launches wait) where they have no effect; trust: slices and "
        "pauses, never tried; gate: always the gate  "
        f"[default: ${_VARIABLE}, else {default}]",
    )


def control_mode(given: str | None, kept: str | None = None) -> Mode:
    """The mode that the option names, else the environment, else as set last. Raises InputError."""
    from aliquot.services.proof.startup import Mode

    found = given or os.environ.get(_VARIABLE) or kept or Mode.AUTO
    if found not in _CHOICES:
        raise InputError(f"{_VARIABLE}: {found} is not allowed: one of {', '.join(_CHOICES)}")
    return Mode(found)
