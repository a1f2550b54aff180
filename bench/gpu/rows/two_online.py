"""Two online tenants: a request of 1 ms beside one that is busy all the time. Neither may starve."""

from __future__ import annotations

import time
from typing import Any

from bench.gpu.grounds import Ground
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import Window
from bench.gpu.words import Ask

KERNEL, PERIOD = "1ms", "10ms"
MOST_US, LEAST_SHARE = 4000.0, 0.05
SETTLE_SECONDS = 0.3


def measure(lab: Lab) -> list[Row]:
    with lab.node() as node:
        ours, busy = _beside(lab, node)
    stock, busy_stock = _beside(lab, lab.stock)
    return [
        Row(
            what="two online tenants: p99 of a 1 ms request beside a busy one; the busy one's share",
            must="<= 4 ms; > 5%",
            measured=f"{ours['p99'] / 1000:.2f} ms; {100 * busy:.0f}%",
            ok=ours["p99"] <= MOST_US and busy > LEAST_SHARE,
            stock=f"{stock['p99'] / 1000:.2f} ms; {100 * busy_stock:.0f}%",
            numbers={"ours": ours, "busy": busy, "stock": stock, "busy_stock": busy_stock},
        )
    ]


def _beside(lab: Lab, ground: Ground) -> tuple[dict[str, Any], float]:
    """Latencies of the one, and the share of the other meanwhile."""
    alone = lab.alone(KERNEL)
    with lab.stage(ground) as stage:
        busy = stage.load(Ask(name="busy", app_class="online"), KERNEL)
        server = stage.server(Ask(name="server", app_class="online"), KERNEL, PERIOD, lab.seconds)
        stage.ready(busy, server)
        busy.start()
        time.sleep(0.5)
        begin = time.monotonic() + SETTLE_SECONDS
        latency = server.run(SETTLE_SECONDS)
        return latency, busy.share(Window(begin, begin + lab.seconds)) / alone
