"""The stand-in for libcuda.so.1, used as a program uses the real one."""

from __future__ import annotations

import pytest

from simgpu.rig import Player

MIB = 1 << 20
CONTEXT = 64 * MIB  # what a context takes for itself
UUIDS = [f"5106f00{i}51b64a119000{i:012x}" for i in range(3)]


def test_without_a_player_there_is_no_device(player: Player) -> None:
    assert player.run("init", ALIQUOT_SIMGPU="/nowhere") == [100, []]
    assert player.run("init", ALIQUOT_SIMGPU="") == [100, []]


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, [0, 1, 2]),
        ("1", [1]),
        ("2,0", [2, 0]),
        ("GPU-5106f002", [2]),
        (" gpu-5106F001-51b6 , 0", [1, 0]),
        ("1,7,0", [1]),
        ("0,0", []),
        ("GPU-5106f00", []),
        ("-1", []),
        ("", []),
    ],
)
def test_cuda_visible_devices_picks_and_orders_cards(visible: str | None, seen: list[int]) -> None:
    """A list ends at the first entry that names no card, or several; a card named twice leaves none."""
    with Player("--cards", "3", "--memory", "1024") as player:
        environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        expected = [0, [UUIDS[i] for i in seen]] if seen else [100, []]
        assert player.run("init", **environment) == expected


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-5106f002,GPU-5106f000"}, [2, 0]),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-5106f002", "CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, [0, 1, 2]),
    ],
)
def test_nvidia_visible_devices_picks_cards_as_nvidias_container_runtime_does(
    environment: dict[str, str], seen: list[int]
) -> None:
    with Player("--cards", "3", "--memory", "1024") as player:
        assert player.run("init", **environment) == [0, [UUIDS[i] for i in seen]]


def test_a_card_says_what_it_is() -> None:
    with Player("--memory", "4096", "--name", "A card of the tests") as player:
        assert player.run("device") == {
            "name": "A card of the tests",
            "bus": "0000:01:00.0",
            "memory": 4096 * MIB,
            "version": 13000,
            "multiprocessors": 132,
            "capability": [9, 0],
        }


def test_a_forked_child_has_no_driver(player: Player) -> None:
    assert player.run("fork_after_init") == [0, 3, 3]


def test_contexts_are_made_current_and_counted(player: Player) -> None:
    assert player.run("contexts") == {
        "none": 201,
        "same": True,
        "not current": 0,
        "created is current": True,
        "pushed is current": True,
        "popped": True,
        "destroyed": 201,
        "still active": 1,
        "gone": 0,
    }
    assert player.card().groups == ()
    assert player.card().used == 0


def test_memory_is_taken_from_the_card_and_given_back(player: Player) -> None:
    seen = player.run("memory", 100)
    assert seen["start"] == 8192 * MIB - CONTEXT
    assert seen["plain"] == seen["managed"] == 100 * MIB
    assert seen["pooled"] == seen["kept by the pool"] == 128 * MIB  # pools take chunks of 32 MiB
    assert seen["freed"] == seen["after synchronize"] == seen["end"] == 0
    assert seen["too much"] == [2, 2, 1]
    assert seen["invalid"] == [1, 1]


def test_a_pool_keeps_what_its_threshold_says(player: Player) -> None:
    assert player.run("pools") == {
        "reserved": 64 * MIB,
        "used": 40 * MIB,
        "kept": 64 * MIB,
        "unused": 0,
        "high": 40 * MIB,
        "trimmed": 0,
    }


def test_virtual_memory_goes_back_when_it_has_neither_handle_nor_mapping(player: Player) -> None:
    assert player.run("virtual_memory") == {
        "reserved": 0,
        "created": 64 * MIB,
        "cleared": [2**64 - 1, 0, 0, 0, 0, 2**64 - 1],
        "twice": 1,
        "released": 64 * MIB,
        "unmapped": 0,
        "not a multiple": 1,
    }


def test_memory_is_one_ledger_for_all_processes(player: Player) -> None:
    first, second = player.start("serve"), player.start("serve")
    assert (first.hear(), second.hear()) == ("ready", "ready")
    assert first.ask({"do": "allocate", "mib": 6000}) == 0
    assert second.ask({"do": "allocate", "mib": 3000}) == 2
    assert second.ask({"do": "allocate", "mib": 2000}) == 0


def test_what_is_written_is_read_back_in_the_order_of_the_stream(player: Player) -> None:
    seen = player.run("contents")
    assert seen["copied"] == [11, 22]
    assert seen["late"] == [33, 44]
    assert seen["large"] == [0]
    assert seen["beyond"] == 1


def test_copies_and_fills_in_rows(player: Player) -> None:
    ones = 0x0101010101010101
    words = [ones, 0, 0, 0] * 4
    words[5], words[9] = 10, 12
    assert player.run("rows") == {"words": words, "hints": [0, 1]}


def test_many_threads_may_use_one_context(player: Player) -> None:
    assert player.run("threads", 6, 200) == [200] * 6


def test_kernels_take_as_long_as_they_have_iterations(player: Player) -> None:
    seen = player.run("kernels")
    for us in (50, 1000, 20000):
        assert seen[str(us)] == [us, True]
    assert seen["count"] == 3
    assert seen["ten others"] == pytest.approx(0.1, abs=1e-4)
    assert (seen["missing"], seen["block too large"]) == (500, 1)


def test_copies_of_both_directions_run_beside_a_kernel(player: Player) -> None:
    ended = player.run("copies")
    assert ended == pytest.approx({"kernel": 4.0, "into": 2.002, "out": 2.002, "third": 4.004}, abs=0.001)


def test_streams_keep_their_order_and_wait_for_each_other(player: Player) -> None:
    assert player.run("streams") == {
        "busy": 600,
        "idle": 0,
        "second waited": True,
        "first in order": True,
        "legacy waited": True,
        "waited for legacy": True,
        "per thread": 1,
        "bad handle": 400,
    }


def test_host_functions_run_in_their_place(player: Player) -> None:
    assert player.run("host_functions") == [True, True, True]


def test_graphs_are_captured_built_and_launched(player: Player) -> None:
    assert player.run("graphs") == {
        "capturing": 1,
        "refused": 900,
        "broken": 901,
        "before": 0,
        "after": 6,
        "added": 0,
        "launched": 64 * MIB,
        "destroyed": 0,
    }


@pytest.mark.parametrize(
    ("mode", "call", "own", "breaks"),
    [
        ("global", "cuMemAlloc_v2", "global", True),
        ("global", "cuMemFree_v2", "global", True),
        ("global", "cuStreamSynchronize", "global", True),
        ("global", "cuCtxSynchronize", "global", True),
        ("global", "cuMemFree_v2", "relaxed", False),
        ("global", "cuMemAlloc_v2", "thread-local", False),
        ("global", "cuStreamQuery", "relaxed", False),
        ("global", "cuCtxSynchronize", "relaxed", True),
        ("thread-local", "cuMemAlloc_v2", "global", False),
        ("thread-local", "cuMemFree_v2", "global", False),
        ("thread-local", "cuStreamSynchronize", "global", False),
        ("thread-local", "cuCtxSynchronize", "global", True),
        ("relaxed", "cuMemFree_v2", "global", False),
        ("relaxed", "cuCtxSynchronize", "global", True),
    ],
)
def test_some_calls_break_captures_of_others(player: Player, mode: str, call: str, own: str, breaks: bool) -> None:
    """As an H200 with driver 580 does it."""
    modes = ["global", "thread-local", "relaxed"]
    seen = player.run("captures", modes.index(mode), call, modes.index(own))
    if breaks:
        assert seen == {"call": 900, "status": 2, "launch": 901, "end": 901, "after": 0}
    else:
        assert seen == {"call": 0, "status": 1, "launch": 0, "end": 0, "after": 0}


def test_a_fault_ends_the_context_and_nothing_else(player: Player) -> None:
    assert player.run("faults") == [700, 700]


def test_a_launch_costs_microseconds_not_a_round_trip(player: Player) -> None:
    """Generous: 1 us of C and 3 us of ctypes on an idle machine."""
    assert player.run("launch_cost", 400) < 40


def test_a_queue_of_sixteen_keeps_the_card_busy(player: Player) -> None:
    """With kernels long enough that a busy machine brings the program back in time."""
    assert player.run("queue", 5000, 16, 0.5) > 0.9
