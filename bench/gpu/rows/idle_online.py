"""An online tenant that is there and does nothing: does it cost offline work anything?"""

from __future__ import annotations

import time

from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import window
from bench.gpu.words import Ask

KERNEL = "1ms"
LEAST = 0.99


def measure(lab: Lab) -> list[Row]:
    alone = lab.alone(KERNEL)
    with lab.node() as node, lab.stage(node) as stage:
        online = stage.server(Ask(name="online", app_class="online"), "100us", "10ms", 1.0)
        offline = stage.load(Ask(name="offline", app_class="offline"), KERNEL)
        stage.ready(online, offline)
        offline.start()
        time.sleep(0.7)
        share = offline.share(window(lab.seconds))
    return [
        Row(
            what="online idle: offline's share / alone",
            must=">= 99%",
            measured=f"{100 * share / alone:.2f}%",
            ok=share / alone >= LEAST,
            numbers={"share": share, "alone": alone},
        )
    ]
