"""Online work that never pauses: what does offline work beside it still get?"""

from __future__ import annotations

import time

from bench.gpu.grounds import Ground, Node
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import window
from bench.gpu.words import Ask

KERNEL = "1ms"
MOST = 0.01


def measure(lab: Lab) -> list[Row]:
    with lab.node(release_delay="0") as node:
        ours = _shares(lab, node, ("0", "100ms"))
    stock = _shares(lab, lab.stock, ("",))
    worst = max(offline for _, offline in ours)
    return [
        Row(
            what="online busy all the time: offline's share",
            must="<= 1%",
            measured=f"{100 * worst:.2f}%",
            ok=worst <= MOST,
            stock=f"{100 * stock[0][1]:.1f}%",
            numbers={"online, offline by release-delay 0 and 100 ms": ours, "stock": stock},
        )
    ]


def _shares(lab: Lab, ground: Ground, delays: tuple[str, ...]) -> list[tuple[float, float]]:
    """What online and offline got, for each release delay."""
    alone = lab.alone(KERNEL)
    with lab.stage(ground) as stage:
        online = stage.load(Ask(name="online", app_class="online"), KERNEL)
        offline = stage.load(Ask(name="offline", app_class="offline"), KERNEL)
        stage.ready(online, offline)
        online.start()
        offline.start()
        windows = []
        for delay in delays:
            if isinstance(ground, Node) and delay != ground.release_delay:
                ground.set_release_delay(delay)
            time.sleep(0.7)
            windows.append(window(min(3.0, lab.seconds)))
        return [(online.share(window) / alone, offline.share(window) / alone) for window in windows]
