"""`aliquot usage`: who used how much of this machine's cards."""

from __future__ import annotations

import time

import click
import msgspec

from aliquot.cli.client import ask
from aliquot.cli.errors import InputError
from aliquot.cli.tables import terminal_width
from aliquot.cli.usagerows import render, usage_options
from aliquot.model.status.usage import UsageReport

_PATIENCE = 120.0  # seconds: a month of very many runs takes a daemon some, and others may ask before


@click.command()
@usage_options
def usage(since: float, by: str | None, output: str) -> None:
    """Show who used how much of the cards: time and memory, by user or run.

    The rows add up to the time of all cards: tenants, idle, unknown (measured by a daemon that was killed before it
    wrote that down) and unmeasured (no daemon ran). Hours are kept for 30 days (`aliquot up --keep-usage`). On a node
    of Kubernetes it shows that node; `kubectl aliquot usage` adds up all nodes.

    \b
    aliquot usage --since 7d --by user
    aliquot usage --since 30d --by namespace -o csv
    """
    answer = ask({"op": "usage", "since": max(0.0, time.time() - since)}, timeout=_PATIENCE)
    try:
        report = msgspec.convert(answer, UsageReport)
    except msgspec.ValidationError as error:
        raise InputError(f"the daemon's usage cannot be read ({error}): is it of another version?") from None
    click.echo(render([report], by or "run", output, terminal_width()))
