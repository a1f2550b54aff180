"""Captures of a tenant that may be parked, over simulated cards: its calls break those that the driver's own would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.gpu.page import Order, Page, State, Why
from aliquot.model.tenant import Allotment
from shim.harness import GIB, Built, eventually, preloaded
from simgpu.rig import Player, library_folder

MODES = ["global", "thread-local", "relaxed"]


class Parkable:
    """A tenant with a page on a player's only card."""

    def __init__(self, folder: Path, player: Player, built: Built) -> None:
        self.player = player
        self.page = Page(folder / "page", [Allotment(player.card().uuid, 4 * GIB)])
        self.page.set_parkable(0, True)
        self.environment = {
            "ALIQUOT_TENANT": str(folder),
            "LD_PRELOAD": preloaded(f"{built.shim} {library_folder() / 'libsimrm.so'}"),
        }

    def run(self, program: str, *arguments: object) -> Any:
        return self.player.run(program, *arguments, **self.environment)


@pytest.fixture
def simulated(tmp_path: Path, built: Built) -> Iterator[Parkable]:
    with Player("--memory", "8192") as player:
        made = Parkable(tmp_path, player, built)
        yield made
        made.page.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("own", MODES)
@pytest.mark.parametrize("call", ["cuMemFree_v2", "cuMemAlloc_v2", "cuMemAllocAsync"])
def test_memory_that_can_leave_breaks_no_other_captures_than_plain_memory(
    simulated: Parkable, mode: str, own: str, call: str
) -> None:
    arguments = (MODES.index(mode), call, MODES.index(own))
    seen = simulated.run("captures", *arguments)
    assert seen == simulated.player.run("captures", *arguments)
    assert seen["end"] == (901 if mode == own == "global" else 0)


@pytest.mark.parametrize("capture", [True, False])
def test_free_waits_for_work_in_all_streams(simulated: Parkable, capture: bool) -> None:
    """Also that of the context of the memory, when the caller is in another one."""
    waited, elsewhere, end = simulated.run("free_waits", int(capture))
    assert waited >= 0.25
    assert elsewhere >= 0.25
    assert end == 0


def test_memory_that_was_not_freed_because_of_a_capture_can_be_freed_later(simulated: Parkable) -> None:
    assert simulated.run("free_again") == {"refused": 900, "charged": True, "freed": 0, "left": 0}


@pytest.mark.parametrize(
    ("instead", "why"),
    [
        ("", Why.CAPTURE),
        ("unmatched", Why.CAPTURE),  # it was not ended by the call
        ("stream", Why.MOVER),  # it was destroyed: there is no capture, and no mover here
        ("context", Why.MOVER),
    ],
)
def test_memory_does_not_leave_while_a_stream_captures(
    simulated: Parkable, tmp_path: Path, instead: str, why: Why
) -> None:
    program = simulated.player.start("capture_while", str(tmp_path), instead, **simulated.environment)
    eventually((tmp_path / "begun").exists, 60)
    simulated.page.order(0, 0, Order.LEAVE)
    eventually(lambda: bool(simulated.page.move(0, 0).why), 60)
    move = simulated.page.move(0, 0)
    assert (move.why, move.state) == (why, State.RESIDENT)
    (tmp_path / "end").touch()
    assert program.result() == 0
