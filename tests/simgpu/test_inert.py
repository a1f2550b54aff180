"""Controls that answer OK, read back what was set, and change nothing: as reported of A100 and RTX 5070, driver 610."""

from __future__ import annotations

import subprocess

import pytest

from simgpu import faults
from simgpu.rig import OK, Player, library_folder
from simgpu.test_sharing import busy_tenant


@pytest.mark.parametrize("what", ["slices", "pause", "both"])
def test_inert_controls_answer_ok_and_change_nothing(what: str) -> None:
    with Player("--memory", "8192", "--inert", what) as player:
        (one, file), (other, _) = busy_tenant(player), busy_tenant(player)
        assert file.set_slice(one.group(), 20_000) == OK
        assert file.get_slice(one.group()) == 20_000
        equal = player.shares([one, other], 0.2) == pytest.approx([0.476, 0.476], abs=0.03)
        assert equal is (what in ("slices", "both"))
        assert file.pause(one.group()) == OK
        runs = player.shares([one], 0.1)[0] > 0.1
        assert runs is (what in ("pause", "both"))


def test_controls_can_lose_their_effect_and_get_it_back(player: Player) -> None:
    (one, file), (other, _) = busy_tenant(player), busy_tenant(player)
    assert file.set_slice(one.group(), 20_000) == OK
    faults.make_inert(player.socket, 0, "both")
    assert player.shares([one, other], 0.2) == pytest.approx([0.476, 0.476], abs=0.03)
    faults.make_inert(player.socket, 0, "nothing")
    assert player.shares([one], 0.2)[0] > 0.8


def test_an_unknown_kind_of_inertness_is_refused() -> None:
    command = [str(library_folder() / "player"), "--socket", "/nowhere/s", "--inert", "all"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--inert: all is none of slices, pause, both" in done.stderr
