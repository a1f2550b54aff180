"""The viewers of the dashboard, and what all of them are sent."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from aliquot.services.dashboard.access import Access
from aliquot.services.dashboard.hub import Hub, Listener
from aliquot.services.dashboard.server import show
from kit.machines.fakeview import FakeView


class Scene:
    """A hub with a clock of its own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.view = FakeView()
        self.hub = Hub(self.view, lambda: self.now)

    def pass_(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.hub.beat(self.now)


def received(listener: Listener) -> list[tuple[str, Any]]:
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


def test_hub_without_listeners_only_records_history() -> None:
    scene = Scene()
    for _ in range(5):
        scene.pass_()
    assert scene.view.asked == {"point": 5, "state": 0, "tick": 0}
    assert len(scene.hub.recorder.history("10m").times) == 5


def test_listener_gets_the_whole_state_first() -> None:
    scene = Scene()
    scene.pass_()
    ((name, state),) = received(scene.hub.join())
    assert (name, state["kind"]) == ("state", "machine")
    assert state["history"]["times"] == [1001.0]


def test_tick_is_computed_once_for_all_listeners() -> None:
    scene = Scene()
    listeners = [scene.hub.join() for _ in range(20)]
    for listener in listeners:
        received(listener)
    scene.pass_()
    assert scene.view.asked["tick"] == 1
    for listener in listeners:
        ((name, tick),) = received(listener)
        assert (name, tick["now"]) == ("tick", 1001.0)
        assert tick["point"]["memory"] == 1.0


def test_state_is_encoded_once_for_listeners_within_a_beat() -> None:
    scene = Scene()
    scene.pass_()
    for _ in range(20):
        scene.hub.join()
    assert scene.view.asked["state"] == 1
    scene.pass_()
    scene.hub.join()
    assert scene.view.asked["state"] == 2


def test_point_is_sent_with_one_tick_only() -> None:
    scene = Scene()
    listener = scene.hub.join()
    for seconds in (1.0, 0.5, 0.5):
        scene.pass_(seconds)
    points = [data["point"] for name, data in received(listener) if name == "tick"]
    assert [point and point["time"] for point in points] == [1001.0, None, 1002.0]


def test_changed_nodes_send_a_new_state() -> None:
    scene = Scene()
    listener = scene.hub.join()
    received(listener)
    scene.view.nodes_changed = True
    scene.pass_()
    assert [name for name, _ in received(listener)] == ["state"]


def test_slow_listener_is_dropped() -> None:
    scene = Scene()
    slow, quick = scene.hub.join(), scene.hub.join()
    for _ in range(30):
        scene.pass_()
        received(quick)
    assert asyncio.run(slow.next()) is None


def test_close_drops_listeners() -> None:
    scene = Scene()
    listener = scene.hub.join()
    scene.hub.close()
    assert asyncio.run(listener.next()) is None


def test_failing_view_is_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.view.broken = True
    for _ in range(3):
        scene.pass_()
    assert caplog.text.count("dashboard_failed") == 1
    scene.view.broken = False
    scene.pass_()
    assert len(scene.hub.recorder.history("10m").times) == 1


def test_clock_set_back_does_not_stop_the_history() -> None:
    scene = Scene()
    scene.pass_()
    scene.pass_(-3600)
    scene.pass_()
    assert scene.view.asked["point"] == 3


def test_history_begins_after_what_is_more_urgent() -> None:
    async def scene() -> None:
        view, listed = FakeView(), asyncio.Event()

        async def before() -> None:
            await listed.wait()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            access = Access("127.0.0.1", listener.getsockname()[1], None)
            showing = asyncio.create_task(show(view, listener, access, before=before))
            await asyncio.sleep(0.05)
            assert view.asked["point"] == 0
            listed.set()
            await asyncio.sleep(0.05)
            assert view.asked["point"] == 1
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    asyncio.run(scene())
