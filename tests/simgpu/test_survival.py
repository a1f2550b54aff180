"""Cards outlive the process that plays them: the next player goes on, and programs notice nothing but a pause."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator

import pytest

from simgpu.rig import OK, PATIENCE, Player, checked_player, library_folder, wait_until

MIB = 1 << 20


@pytest.fixture
def player() -> Iterator[Player]:
    with Player("--memory", "8192", program=checked_player()) as made:
        yield made


def replace(player: Player) -> None:
    player.crash()
    player.process = player.another()


class TestAfterACrash:
    def test_a_kernel_that_ran_ends_as_if_nothing_had_happened(self, player: Player) -> None:
        tenant = player.start("serve")
        tenant.hear()
        tenant.ask({"do": "launch", "us": 300_000, "slot": 0})
        tenant.say({"do": "attempt", "call": "cuCtxSynchronize"})
        time.sleep(0.05)
        player.crash()
        time.sleep(0.1)
        player.process = player.another()
        assert tenant.hear() == 0
        count, start, end = tenant.ask({"do": "times", "slot": 0})
        assert count == 1
        assert end - start == pytest.approx(300_000_000, abs=5_000_000)  # the card did not stand still

    def test_memory_objects_slices_and_pauses_are_as_before(self, player: Player) -> None:
        tenant = player.start("serve")
        tenant.hear()
        assert tenant.ask({"do": "allocate", "mib": 1000}) == 0
        daemon = tenant.rm_file()
        group = tenant.group()
        assert daemon.set_slice(group, 4321) == OK
        assert daemon.pause(group) == OK
        before = player.card()
        replace(player)
        after = player.card()
        assert (after.uuid, after.used) == (before.uuid, before.used)
        assert tenant.group().slice_us == 4321
        assert tenant.group().stopped == len(group.channels)
        assert set(tenant.group().channels) == set(group.channels)
        tenant.ask({"do": "launch", "us": 100})
        assert not tenant.ask({"do": "done"})
        assert daemon.resume(group) == OK  # the file that the daemon holds is good for the next player too
        assert tenant.ask({"do": "attempt", "call": "cuCtxSynchronize"}) == 0
        assert tenant.ask({"do": "allocate", "mib": 8192}) == 2
        daemon.close()

    def test_who_died_meanwhile_is_gone(self, player: Player) -> None:
        dying, living = player.start("serve"), player.start("serve")
        for tenant in (dying, living):
            tenant.hear()
            assert tenant.ask({"do": "allocate", "mib": 100}) == 0
        used = player.card().used
        player.crash()
        dying.kill()
        player.process = player.another()
        wait_until(lambda: len(player.card().compute()) == 1, "only the living one is left")
        assert player.card().used == used // 2

    def test_a_lost_card_stays_lost(self, player: Player) -> None:
        player.ask(12, struct.pack("=IIQ", 0, 1, 0))
        replace(player)
        assert player.card().lost

    def test_a_program_that_starts_meanwhile_waits(self, player: Player) -> None:
        player.crash()
        tenant = player.start("serve")
        time.sleep(0.5)
        player.process = player.another()
        assert tenant.hear() == "ready"

    def test_a_state_of_another_boot_counts_for_nothing(self, player: Player) -> None:
        tenant = player.start("serve")
        tenant.hear()
        player.crash()
        with open(f"{player.socket}.state/state", "r+b") as state:
            state.seek(8)
            state.write(b"another boot")
        player.process = player.another()
        assert player.card().groups == ()
        assert sorted(os.listdir(f"{player.socket}.state")) == ["state"]


class TestStandby:
    def test_it_takes_over_by_itself(self, player: Player) -> None:
        tenant = player.start("serve")
        tenant.hear()
        standby = player.another()
        tenant.ask({"do": "launch", "us": 200_000, "slot": 0})
        player.crash()
        player.process = standby
        assert tenant.ask({"do": "attempt", "call": "cuCtxSynchronize"}) == 0
        assert tenant.ask({"do": "times", "slot": 0})[0] == 1

    def test_one_for_other_cards_is_refused(self, player: Player) -> None:
        command = [*player.command, "--cards", "3"]
        refused = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE)
        assert refused.returncode == 1
        assert "other cards are simulated here already: 1 of 8192 MiB" in refused.stderr


@pytest.mark.parametrize("seed", range(3))
def test_programs_see_no_error_and_lose_no_kernel_however_often_players_are_killed(seed: int) -> None:
    """Killed at any moment, with another one that stands by: every call succeeds, and every kernel ran once."""
    rng = random.Random(seed)
    player = Player("--memory", "8192")
    tenants = [player.start("busy", 4.0) for _ in range(3)]
    for tenant in tenants:
        assert tenant.hear() == "ready"
    end = time.monotonic() + 3
    kills = 0
    while time.monotonic() < end:
        standby = player.another()
        time.sleep(rng.uniform(0, 0.03))
        player.crash()
        player.process = standby
        kills += 1
    for tenant in tenants:
        launched, ended, errors, longest = tenant.hear()
        assert errors == []
        assert ended == launched > 10
        assert longest < PATIENCE
        assert tenant.process.wait(PATIENCE) == 0
        tenant.link.close()
    assert kills > 5
    wait_until(lambda: player.card().used == 0, "nothing is left of them")
    wait_until(lambda: os.listdir(f"{player.socket}.state") == ["state"], "no file is left of them")
    assert player.close() == 0


class TestUuids:
    def _uuids(self, *options: str) -> list[str]:
        with Player("--cards", "3", *options) as player:
            return [card.uuid for card in player.cards()]

    def test_they_are_those_of_the_seed(self) -> None:
        first = self._uuids("--seed", "12345")
        assert first == self._uuids("--seed", "12345")
        assert len(set(first)) == 3
        assert all(len(uuid) == len("GPU-5106f000-51b6-4a11-9000-000000000000") for uuid in first)

    def test_no_two_seeds_share_one(self) -> None:
        known = {uuid for seed in range(5) for uuid in self._uuids("--seed", str(seed))}
        assert len(known) == 15


def test_the_folder_of_the_socket_appears_with_the_socket_in_it() -> None:
    """A program that finds the folder finds the cards, also right after a reboot."""
    player = Player("--memory", "8192")
    folder = player.folder / "run" / "player"
    folder.parent.mkdir()
    command = [str(library_folder() / "player"), "--socket", f"{folder}/s", "--state", f"{player.folder}/state"]
    process = subprocess.Popen([*command, "--until-stdin-closes"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_until(folder.exists, "the folder is there")
    assert (folder / "s").exists()
    process.communicate(timeout=PATIENCE)
    player.crash()
    shutil.rmtree(player.folder)
