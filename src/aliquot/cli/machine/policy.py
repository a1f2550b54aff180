"""`aliquot policy`: how tenants share the cards of this machine, seen and changed while they run."""

from __future__ import annotations

from typing import Any

import click

from aliquot.cli.client import Duration, ask, check_delay
from aliquot.cli.machine.up import POLICY_CHOICES
from aliquot.wording.amounts import duration


@click.group(invoke_without_command=True)
@click.pass_context
def policy(ctx: click.Context) -> None:
    """See or change how tenants share the cards.

    \b
    best-effort   equal parts for all who have work
    burst-share   in proportion to --core; idle time goes to whoever has work
    fixed-share   never more than --core, even on an idle card
    """
    if ctx.invoked_subcommand is None:
        _show(ask({"op": "policy"}))


@policy.command()
def get() -> None:
    """Show it."""
    _show(ask({"op": "policy"}))


@policy.command(name="set", short_help="Change it, for all who run and all who come.")
@click.argument("name", metavar="POLICY", type=click.Choice(POLICY_CHOICES))
def set_policy(name: str) -> None:
    """Change it, for all who run and all who come: best-effort, burst-share or fixed-share."""
    _show(ask({"op": "policy", "policy": name}))


@policy.command(name="release-delay", short_help="How long online work keeps a card that it left idle.")
@click.argument("delay", type=Duration())
def release_delay(delay: float) -> None:
    """How long online work keeps a card that it left idle: 100ms, or 0 to hand gaps back at once."""
    check_delay(delay)
    _show(ask({"op": "policy", "release_delay": delay}))


def _show(said: dict[str, Any]) -> None:
    click.echo(f"policy {said['policy']}, release delay {duration(said['release_delay_seconds'])}")
