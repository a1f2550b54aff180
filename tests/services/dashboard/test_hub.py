"""Who looks at the dashboard, and what all of them are told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from aliquot.services.dashboard.hub import Hub, Listener
from kit.fakepicture import PaperPicture


class Scene:
    """A hub with a clock of its own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.picture = PaperPicture()
        self.hub = Hub(self.picture, lambda: self.now)

    def pass_(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.hub.beat(self.now)


def told(listener: Listener) -> list[tuple[str, Any]]:
    """Events, by name and data."""
    frames = asyncio.run(listener.next())
    assert frames is not None
    blocks = [block.split("\n") for block in frames.decode().split("\n\n") if block]
    return [
        (
            next(line[7:] for line in block if line.startswith("event: ")),
            json.loads(next(line[6:] for line in block if line.startswith("data: "))),
        )
        for block in blocks
    ]


def test_while_nobody_looks_only_the_history_is_kept() -> None:
    scene = Scene()
    for _ in range(5):
        scene.pass_()
    assert scene.picture.asked == {"point": 5, "state": 0, "tick": 0}
    assert len(scene.hub.history.told("10m")["times"]) == 5


def test_whoever_comes_is_told_everything_first() -> None:
    scene = Scene()
    scene.pass_()
    ((name, state),) = told(scene.hub.join())
    assert (name, state["kind"]) == ("state", "paper")
    assert state["history"]["times"] == [1001.0]


def test_a_tick_is_worked_out_once_for_all() -> None:
    scene = Scene()
    listeners = [scene.hub.join() for _ in range(20)]
    for listener in listeners:
        told(listener)
    scene.pass_()
    assert scene.picture.asked["tick"] == 1
    for listener in listeners:
        ((name, tick),) = told(listener)
        assert (name, tick["now"]) == ("tick", 1001.0)
        assert tick["point"]["memory"] == 1.0


def test_everything_is_written_once_for_all_who_come_within_a_beat() -> None:
    scene = Scene()
    scene.pass_()
    for _ in range(20):
        scene.hub.join()
    assert scene.picture.asked["state"] == 1
    scene.pass_()
    scene.hub.join()
    assert scene.picture.asked["state"] == 2


def test_a_point_is_told_once_however_often_it_ticks() -> None:
    scene = Scene()
    listener = scene.hub.join()
    for seconds in (1.0, 0.5, 0.5):
        scene.pass_(seconds)
    points = [data["point"] for name, data in told(listener) if name == "tick"]
    assert [point and point["time"] for point in points] == [1001.0, None, 1002.0]


def test_when_nodes_come_or_go_everything_is_told_anew() -> None:
    scene = Scene()
    listener = scene.hub.join()
    told(listener)
    scene.picture.nodes_changed = True
    scene.pass_()
    assert [name for name, _ in told(listener)] == ["state"]


def test_who_does_not_keep_up_is_dropped_and_nobody_waits_for_it() -> None:
    scene = Scene()
    slow, quick = scene.hub.join(), scene.hub.join()
    for _ in range(30):
        scene.pass_()
        told(quick)
    assert asyncio.run(slow.next()) is None


def test_at_the_end_everybody_is_let_go() -> None:
    scene = Scene()
    listener = scene.hub.join()
    scene.hub.close()
    assert asyncio.run(listener.next()) is None


def test_a_picture_that_fails_is_said_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.picture.broken = True
    for _ in range(3):
        scene.pass_()
    assert caplog.text.count("cannot be drawn") == 1
    scene.picture.broken = False
    scene.pass_()
    assert len(scene.hub.history.told("10m")["times"]) == 1


def test_a_clock_that_is_set_back_does_not_stop_the_history() -> None:
    scene = Scene()
    scene.pass_()
    scene.pass_(-3600)
    scene.pass_()
    assert scene.picture.asked["point"] == 3
