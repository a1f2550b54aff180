"""The options that say what happens to tenants that use more memory than their limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from aliquot.cli.client import Delay
from aliquot.cli.errors import InputError

GRACE = 10.0  # seconds


def enforce_options(default: str) -> tuple[Callable[[Any], Any], ...]:
    """`--enforce` and `--enforce-grace`; the help names the default."""
    return (
        click.option(
            "--enforce",
            type=click.Choice(["report", "kill"]),
            help="A tenant that uses more memory than its limit by the driver's figure: report it, or also kill "
            f"processes of it  [default: {default}]",
        ),
        click.option(
            "--enforce-grace",
            type=Delay(),
            help="How long a tenant may be over its limit before --enforce kill ends a process  [default: 10s]",
        ),
    )


def check_enforcement(enforce: str | None, grace: float | None) -> None:
    """Raises InputError for a grace that nothing would use."""
    if grace is not None and enforce != "kill":
        raise InputError("--enforce-grace: allowed with --enforce kill only: add it, or leave --enforce-grace out")


def kill_after(enforce: str | None, grace: float | None) -> float | None:
    """Seconds over the limit; None: nothing is killed."""
    check_enforcement(enforce, grace)
    return (GRACE if grace is None else grace) if enforce == "kill" else None
