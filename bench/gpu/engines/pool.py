"""Does a serving engine feel it when the first parkable tenant starts, and the host's pool is made for it?"""

from __future__ import annotations

import sys
import time
from functools import partial

from bench.gpu.engines.catalog import ENGINES
from bench.gpu.engines.folder import PROGRAMS, Folder
from bench.gpu.engines.player import Player
from bench.gpu.engines.scenes import SETTLE, Found, Measure, length, watch
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.words import Ask

MOST = 1.05
GIB = {True: 1, False: 60}  # of the parkable tenant: on a simulated card, and on a real one
_ORDER = "rate=4 tokens=32 prompt=512"
_LONGER = 2  # windows: the pool grows for so long


def measured(name: str) -> Measure:
    return partial(_measure, name)


def _measure(name: str, lab: Lab, folder: Folder) -> list[Row]:
    with lab.node() as node, lab.stage(node) as stage:
        online = Player(stage, folder, ENGINES[name], "online", order=_ORDER, app_class="online")
        online.ready()
        alone = watch(lab, online, seconds=_LONGER * length(lab))[0]
        online.run()
        time.sleep(SETTLE if lab.simulate is None else 0.3)
        gib = GIB[lab.simulate is not None]
        ask = Ask(name="parkable", core=0, memory=f"{gib + 1}GiB", app_class="offline", park="1h")
        stage.child(ask, [sys.executable, str(PROGRAMS / "hold.py"), str(gib)])
        while_growing = watch(lab, online, seconds=_LONGER * length(lab))[0]
    return [_row(name, alone, while_growing)]


def _row(name: str, alone: Found, growing: Found) -> Row:
    before, now = alone.ms("all_ms", "p99"), growing.ms("all_ms", "p99")
    ratio = now / before if before and now else None
    return Row(
        what=f"{name} online while the first parkable tenant starts: p99 over the same before",
        must=f"<= {MOST:.2f}",
        measured="-" if ratio is None else f"{ratio:.2f} ({before:.1f} ms, then {now:.1f})",
        ok=ratio is not None and ratio <= MOST,
        numbers={"alone": alone.figures, "growing": growing.figures},
    )
