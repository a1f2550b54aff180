"""An engine on a stage: a tenant that runs and idles as it is told, and what it did in a window."""

from __future__ import annotations

import time
from typing import Any

from bench.gpu.engines import figures
from bench.gpu.engines.catalog import Engine
from bench.gpu.engines.folder import Folder
from bench.gpu.grounds import Ground
from bench.gpu.stage import Stage, Window
from bench.gpu.words import Ask

START_SECONDS = 120.0


class Player:
    """Started once; starting takes longer than a measurement."""

    def __init__(
        self,
        stage: Stage,
        folder: Folder,
        engine: Engine,
        name: str,
        *,
        order: str | None = None,
        ground: Ground | None = None,
        more: tuple[str, ...] = (),
        **asked: Any,
    ) -> None:
        """`order`: what it is told, if not what makes it busy; `asked`: of its slice, as in Ask; `more`: options of the
        program."""
        self.engine, self.name = engine, name
        self.order = engine.busy if order is None else order
        self._control, self._samples = stage.folder / f"{name}.control", stage.folder / f"{name}.samples"
        ground = ground or stage.ground
        memory = "2GiB" if folder.simulate else f"{engine.gib}GiB"
        ask = Ask(**{"name": name, "core": 30, "memory": memory, **asked})
        command = folder.command(engine, ground, self._control, self._samples, more)
        self.child = stage.child(ask, command, ground)

    def ready(self) -> None:
        self.child.wait_for("READY", START_SECONDS)

    def say(self, order: str) -> None:
        unseen = self._control.with_suffix(".tmp")
        unseen.write_text(order)
        unseen.rename(self._control)

    def run(self) -> None:
        self.say(f"run {self.order}".strip())

    def idle(self) -> None:
        self.say("idle")

    def done(self, over: Window) -> dict[str, Any]:
        samples = figures.read(self._samples)
        return figures.of_server(samples, over) if self.engine.server else figures.of_loop(samples, over)

    def answers(self, over: Window) -> dict[int, set[str]]:
        return figures.answers(figures.read(self._samples), over)

    def requests(self, over: Window) -> list[figures.Request]:
        """Those that were due in the window."""
        found = figures.requests(figures.read(self._samples))
        return [each for each in found if over.begin <= each.due < over.end]


def let_end(*players: Player) -> None:
    """Tell them to idle, and wait until what they had begun is written down."""
    for player in players:
        player.idle()
    before = [-1 for _ in players]
    for _ in range(40):
        time.sleep(0.5)  # longer than a request waits for its first token
        now = [len(player.requests(Window(0.0, time.monotonic()))) for player in players]
        if now == before:
            return
        before = now
