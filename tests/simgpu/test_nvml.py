"""The stand-in for libnvidia-ml.so.1, as pynvml sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.rig import Player

MIB = 1 << 20


def test_cards_processes_and_their_shares() -> None:
    with Player("--cards", "2", "--memory", "8192", "--name", "A card of the tests") as player:
        first, second = player.start("serve"), player.start("serve")
        for tenant, mib in ((first, 500), (second, 1000)):
            tenant.hear()
            assert tenant.ask({"do": "allocate", "mib": mib}) == 0
        first.rm_file().set_slice(first.group(), 3000)
        second.rm_file().set_slice(second.group(), 7000)
        for tenant in (first, second):
            tenant.ask({"do": "launch", "us": 20_000, "count": 400})
        seen = player.run("nvml", 1.2)
        assert seen["driver"] == "580.0.0-simulated"
        assert (seen["count"], seen["index"]) == (2, 0)
        assert (seen["uuid"], seen["name"]) == (player.card().uuid, "A card of the tests")
        assert seen["bus"] == "00000000:01:00.0"
        used = (500 + 1000 + 2 * 64) * MIB + 2 * 4096
        assert seen["memory"] == [8192 * MIB, used, used, 8192 * MIB - used]
        assert seen["processes"] == {str(first.pid): 564 * MIB + 4096, str(second.pid): 1064 * MIB + 4096}
        assert seen["graphics"] == 0
        assert seen["nvmlDeviceGetNumaNodeId"] == seen["nvmlDeviceGetMigMode"] == "not supported"
        assert seen["busy"] == 100
        assert seen["shares"][str(first.pid)] == pytest.approx(29, abs=2)
        assert seen["shares"][str(second.pid)] == pytest.approx(69, abs=2)
        assert seen["stamps"] == [True, True]
        assert all(seen["later"])
        assert seen["event"] == "timeout"


def test_an_idle_card_has_neither_processes_nor_samples(player: Player) -> None:
    seen = player.run("nvml", 0.0)
    assert (seen["processes"], seen["shares"], seen["busy"]) == ({}, {}, 0)


def test_without_a_player_there_is_no_driver(player: Player) -> None:
    assert player.run("nvml_without_driver", ALIQUOT_SIMGPU="/nowhere") == "driver not loaded"


def test_driver_limits_the_memory_of_a_cgroup(player: Player, tmp_path: Path) -> None:
    (tmp_path / "dmem.max").touch()
    assert player.run("nvml_memory_limit", str(tmp_path), 4 << 30) == [
        None,
        None,
        "the cgroup of the Pod has no dmem controller",
    ]
    lines = (tmp_path / "dmem.max").read_text().splitlines()
    assert lines == [f"nvidia/0000:01:00.0/vidmem {4 << 30}", f"nvidia/0000:01:00.0/vidmem {(4 << 30) + 1}"]
