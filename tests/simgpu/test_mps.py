"""Simulated MPS: clients of one server run side by side in the server's time; a client that dies takes only them along.
Every share is read from the card's own accounts, so that a busy machine changes nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from simgpu.rig import PATIENCE, Player, Tenant, library_folder, wait_until


class Mps:
    """A control, and programs that are its clients."""

    def __init__(self, player: Player, name: str) -> None:
        self.player = player
        self.pipes = Path(player.folder, name)
        self.pipes.mkdir()
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipes)}
        self._program = str(library_folder() / "nvidia-cuda-mps-control")
        self._env = player.environment() | self.environment
        self.control = subprocess.Popen([self._program, "-f"], env=self._env)
        wait_until((self.pipes / "control").exists, "the control listens")

    def tell(self, words: str) -> str:
        done = subprocess.run(
            [self._program],
            input=words + "\n",
            env=self._env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return done.stdout

    def server(self) -> int:
        return int(self.tell("get_server_list"))

    def busy(self, count: int = 500) -> Tenant:
        client = self.player.start("serve", **self.environment)
        assert client.hear() == "ready"
        assert client.ask({"do": "launch", "us": 20_000, "count": count})
        return client

    def close(self) -> None:
        self.control.kill()
        self.control.wait(PATIENCE)


@contextlib.contextmanager
def controls(count: int) -> Iterator[tuple[Player, list[Mps]]]:
    with Player("--memory", "8192") as player:
        made = [Mps(player, f"m{at}") for at in range(count)]
        try:
            yield player, made
        finally:
            for tenant in player.tenants:
                tenant.kill()
            for mps in made:
                mps.close()


def test_clients_of_a_server_run_side_by_side_in_the_time_of_one() -> None:
    with controls(1) as (player, (mps,)):
        clients = [mps.busy(), mps.busy()]
        alone = player.start("serve")
        assert alone.hear() == "ready"
        assert alone.ask({"do": "launch", "us": 20_000, "count": 500})
        shares = player.shares([*clients, alone], 0.5)
        assert shares == pytest.approx([0.476, 0.476, 0.476], abs=0.02)  # the two have one turn, and both all of it
        assert len(player.card().compute(mps.server())) == 1


def test_client_that_dies_with_work_in_flight_harms_its_server_s_clients_alone() -> None:
    with controls(2) as (player, (mps, other)):
        victim, neighbour, stranger = mps.busy(), mps.busy(), other.busy()
        victim.kill()
        wait_until(lambda: player.card().compute(neighbour.pid)[0].dead, "the neighbour fails")
        assert not player.card().compute(stranger.pid)[0].dead
        assert player.shares([stranger], 0.2)[0] > 0.9
        assert player.shares([mps.busy()], 0.2)[0] > 0.4, "a newcomer works"


def test_client_that_ends_without_work_harms_no_other() -> None:
    with controls(1) as (player, (mps,)):
        idle = player.start("serve", **mps.environment)
        assert idle.hear() == "ready"
        neighbour = mps.busy()
        idle.kill()
        assert player.shares([neighbour], 0.2)[0] > 0.9


def test_next_client_gets_a_new_server_when_the_server_died() -> None:
    with controls(1) as (player, (mps,)):
        client = mps.busy()
        before = mps.server()
        os.kill(before, 9)
        wait_until(lambda: player.card().compute(client.pid)[0].dead, "its client fails")
        assert player.shares([mps.busy()], 0.2)[0] > 0.9
        assert mps.server() != before


def test_clients_survive_the_player() -> None:
    with controls(1) as (player, (mps,)):
        clients = [mps.busy(), mps.busy()]
        player.crash()
        player.process = player.another()
        assert player.shares(clients, 0.3) == pytest.approx([1.0, 1.0], abs=0.05)


def test_quit_ends_control_and_server_and_programs_then_run_without_mps() -> None:
    with controls(1) as (player, (mps,)):
        mps.busy()
        server = mps.server()
        mps.tell("quit")
        assert mps.control.wait(PATIENCE) == 0
        wait_until(lambda: not os.path.exists(f"/proc/{server}"), "the server ends")
        assert player.shares([mps.busy()], 0.2)[0] > 0.9
        assert "Cannot find" in mps.tell("quit")
