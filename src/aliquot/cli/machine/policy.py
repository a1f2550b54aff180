"""`aliquot policy`: shows and changes how tenants share the cards of this machine."""

from __future__ import annotations

import json

import click

from aliquot.cli.client import Delay, ask, parse_answer
from aliquot.cli.errors import SuggestingGroup
from aliquot.cli.machine.up import POLICY_CHOICES
from aliquot.cli.options.elastic import Factor
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.device import LEAST_FACTOR
from aliquot.model.status.answers import PolicyStatus
from aliquot.wording.amounts import release_delay as delay_text


class _Settings(SuggestingGroup):
    hints = {name: f"`aliquot policy set {name}` sets it" for name in POLICY_CHOICES}  # noqa: RUF012 - never changed


_output = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)


@click.group(cls=_Settings, invoke_without_command=True)
@_output
@click.pass_context
def policy(ctx: click.Context, output: str) -> None:
    """Show or change how tenants share the cards.

    \b
    best-effort   equal shares for all tenants that have work
    burst-share   in proportion to --core; idle time goes to tenants that have work
    fixed-share   never more than --core, even on an idle card

    \b
    aliquot policy
    aliquot policy set burst-share
    aliquot policy release-delay 100ms
    """
    if ctx.invoked_subcommand is None:
        _show(ask({"op": "policy"}), output)


@policy.command()
@_output
def get(output: str) -> None:
    """Show the policy."""
    _show(ask({"op": "policy"}), output)


@policy.command(name="set", short_help="Change the policy for running and future tenants.")
@click.argument("name", metavar="POLICY", type=click.Choice(POLICY_CHOICES))
def set_policy(name: str) -> None:
    """Change the policy for running and future tenants: best-effort, burst-share or fixed-share."""
    _show(ask({"op": "policy", "policy": name}))


@policy.command(name="release-delay", short_help="Set how long an idle card stays reserved for online work.")
@click.argument("delay", type=Delay())
def release_delay(delay: float | str) -> None:
    """Set how long an idle card stays reserved for online work: auto (learned from the gaps in its work), a time such
    as 100ms, or 0 to release it at once."""
    _show(ask({"op": "policy", "release_delay": delay}))


@policy.command(short_help="Set how much memory is booked on a card, in times of what it has.")
@click.argument("factor", type=Factor())
@click.option("--card", metavar="CARD", help="Number or UUID of one card  [default: all cards]")
def oversubscribe(factor: float, card: str | None) -> None:
    """Set how much memory is booked on a card: 2.0 for twice what it has, 1.0 for no more than it has.

    Only runs whose memory may be parked (offline runs, and those with --park) are booked beyond the card. Those that do
    not fit together take turns on it. A lower factor is for new runs; those that run stay.
    """
    _show(ask({"op": "policy", "oversubscribe": factor, "card": card}))


def _show(answer: JsonObject, output: str = "text") -> None:
    """`output`: of the command itself; that of the group counts too, as in `aliquot policy -o json set fixed-share`."""
    above = click.get_current_context().parent
    if "json" in (output, above.params.get("output") if above else None):
        click.echo(json.dumps(answer, indent=2))
        return
    found = parse_answer(answer, PolicyStatus)
    words = [f"policy {found.policy}, release delay {delay_text(found.release_delay_seconds)}"]
    factors = found.oversubscribe or []
    if any(factor != LEAST_FACTOR for factor in factors):
        alike = len(set(factors)) == 1
        words.append("oversubscribe " + (f"{factors[0]:g}" if alike else " ".join(f"{factor:g}" for factor in factors)))
    click.echo(", ".join(words))
    for note in found.notes or []:
        click.echo(note, err=True)
