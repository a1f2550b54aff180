"""`--simulate`: cards that are not there, for the daemon of one machine and for the agent of a node."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from aliquot.adapters.home import Home
from aliquot.cli.amounts import SIMULATE_ALLOWED, AmountError, Cards, parse_cards
from aliquot.cli.errors import InputError

if TYPE_CHECKING:
    from aliquot.adapters.player import Playing


def parse_simulation(text: str | None) -> Cards | None:
    """The cards; None where none are asked for. Raises InputError."""
    if text is None:
        return None
    try:
        return parse_cards(text)
    except AmountError:
        raise InputError(f"--simulate: {text} is not allowed: {SIMULATE_ALLOWED}") from None


def with_stand_ins(home: Home, spec: Cards) -> Playing:
    """The player; before that, once, ourselves again with the stand-ins in front of the driver's libraries."""
    from aliquot.adapters import player

    playing = player.play(home, spec.cards, spec.memory_mib, nodes=spec.nodes)
    stand_ins = f"{player.preloadable(home)}/simgpu"
    preload = f"{stand_ins}/libsimrm.so"
    if os.environ.get(player.SIM_ENV) == playing.socket and os.environ.get("LD_PRELOAD") == preload:
        return playing
    path = os.environ.get("LD_LIBRARY_PATH")
    environment = {
        **os.environ,
        "LD_PRELOAD": preload,
        "LD_LIBRARY_PATH": stand_ins + (f":{path}" if path else ""),
        player.SIM_ENV: playing.socket,
    }
    return os.execve(sys.executable, [sys.executable, "-m", "aliquot", *sys.argv[1:]], environment)  # noqa: S606
