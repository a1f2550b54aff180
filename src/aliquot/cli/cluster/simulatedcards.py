"""`aliquot simulated-cards`: the simulated cards of a node, in a container that outlives the agent's."""

from __future__ import annotations

import os
from pathlib import Path

import click

from aliquot.adapters.host.home import Home
from aliquot.cli.errors import InputError
from aliquot.cli.options.node import node_name, nodename_option, run_dir_option
from aliquot.cli.simulated import parse_simulation


@click.command("simulated-cards")
@click.argument("spec")
@nodename_option
@run_dir_option("As the agent's")
def simulated_cards(spec: str, nodename: str | None, run_dir: Path) -> None:
    """Run the simulated cards of a node, for an agent with the same --simulate.

    The agent runs them itself if nothing else does, but ends with its container: programs on the cards then wait until
    the next agent is there. With this command in another container they do not wait. The chart starts it with
    agent.simulate.

    \b
    aliquot simulated-cards --nodename gpu-7 4x16GiB
    """
    from aliquot.adapters.gpu import player

    cards = parse_simulation(spec)
    assert cards is not None
    if cards.nodes > 1:
        raise InputError(f"SPEC: {spec} is not allowed: an agent has one node, for example 4x16GiB")
    home = Home(str(run_dir.absolute()), "")
    try:
        command = player.command(home, cards.cards, cards.memory_mib, node_name(nodename))
    except player.PlayerError as error:
        raise InputError(str(error)) from error
    os.execv(command[0], command)  # noqa: S606 - our own program
