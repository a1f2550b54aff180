"""`--simulate`: simulated cards, for the daemon of one machine and for the agent of a node."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from aliquot.adapters.host.home import SIM_VARIABLE, Home
from aliquot.adapters.host.process import ourselves
from aliquot.cli.amounts import SIMULATE_ALLOWED, AmountError, Cards, parse_cards
from aliquot.cli.errors import InputError

if TYPE_CHECKING:
    from aliquot.adapters.gpu.player import Playing

_OURS = "ALIQUOT_OWN_PLAYER"  # pid and start time of the player that this program started before it re-executed itself


def parse_simulation(text: str | None) -> Cards | None:
    """The cards; None without --simulate. Raises InputError."""
    if text is None:
        return None
    try:
        return parse_cards(text)
    except AmountError:
        raise InputError(f"--simulate: {text} is not allowed: {SIMULATE_ALLOWED}") from None


@contextlib.contextmanager
def or_no_player(home: Home) -> Iterator[Callable[[], None]]:
    """End the player of this daemon if the daemon fails to start. The caller calls the yielded function once it is up.

    A player left behind would refuse other cards to the next daemon. A player that ran before stays.
    """
    from aliquot.adapters.gpu import player

    ours, up = os.environ.pop(_OURS, None), []
    try:
        yield lambda: up.append(True)
    except BaseException:
        playing = player.playing(home)
        if not up and playing is not None and _identity(playing) == ours:
            player.end(home)
        raise


def with_stand_ins(
    home: Home, spec: Cards, node: str | None = None, *, before_again: Callable[[], None] = lambda: None
) -> Playing:
    """Start the player, then re-execute this program once with the stand-ins before the driver's libraries.

    When it returns, this process starts the next player whenever one dies. `node` is the name of an agent's node;
    `before_again` is called last before this program is re-executed."""
    from aliquot.adapters.gpu import player

    stand_ins = f"{player.preloadable(home)}/simgpu"
    preload = f"{stand_ins}/libsimrm.so"
    running = player.playing(home)
    playing = player.play(home, spec.cards, spec.memory_mib, nodes=spec.nodes, node=node)
    if os.environ.get(SIM_VARIABLE) == playing.socket and os.environ.get("LD_PRELOAD") == preload:
        player.keep(home, playing)
        return playing
    path = os.environ.get("LD_LIBRARY_PATH")
    environment = {
        **os.environ,
        "LD_PRELOAD": preload,
        "LD_LIBRARY_PATH": stand_ins + (f":{path}" if path else ""),
        SIM_VARIABLE: playing.socket,
        **({} if running is not None else {_OURS: _identity(playing)}),
    }
    before_again()
    return os.execve(sys.executable, ourselves.aliquot(*sys.argv[1:]), environment)  # noqa: S606


def _identity(playing: Playing) -> str:
    return f"{playing.pid}/{playing.started}"
