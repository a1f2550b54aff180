"""`aliquot simulated-cards`, as a container beside the agent runs it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from aliquot.adapters.gpu import player
from kit.machines.machine import ALIQUOT

pytestmark = pytest.mark.skipif(not os.path.exists(player.shim()), reason="the libraries are not built")


def test_simulated_cards_are_those_of_the_agent() -> None:
    """The agent's own player finds cards like its own, and stands by."""
    from aliquot.adapters.host.home import Home

    with tempfile.TemporaryDirectory(prefix="alq") as folder:
        command = [*ALIQUOT, "simulated-cards", "--nodename", "n1", "--run-dir", folder, "2x8GiB"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cards:
            assert cards.stdout is not None
            assert cards.stdout.readline() == "ready\n"
            assert Path(folder, "player", "sock").stat().st_mode & 0o777 == 0o666, "containers have any user"
            home = Home(folder, folder)
            standby = player.play(home, 2, 8192, node="n1")
            assert standby.pid != cards.pid
            cards.kill()
        player.end(home)


@pytest.mark.parametrize(("spec", "said"), [("four", "four is not allowed"), ("2x2x8GiB", "an agent has one node")])
def test_simulated_cards_refuse_a_bad_spec(spec: str, said: str) -> None:
    done = subprocess.run([*ALIQUOT, "simulated-cards", "--nodename", "n1", spec], capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr
