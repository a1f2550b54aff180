"""An online request (100 us of GPU every 10 ms) beside offline kernels of 200 ms: how much later does it come?"""

from __future__ import annotations

import time
from typing import Any

from bench.gpu.grounds import Ground, Node
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.words import Ask

KERNEL, PERIOD, OFFLINE = "100us", "10ms", "200ms"
MOST_ADDED_US = 200.0
DELAYS = ("0", "100ms")


def measure(lab: Lab) -> list[Row]:
    alone = lab.alone_latency(KERNEL, PERIOD)
    with lab.node(release_delay=DELAYS[0]) as node:
        ours = _beside(lab, node, DELAYS)
    (stock,) = _beside(lab, lab.stock, ("",))
    shared = lab.under_mps(lambda mps: _beside(lab, mps, ("",))[0])

    def added(latency: dict[str, Any] | None) -> str:
        return f"{latency['p99'] - alone['p99']:.0f} us" if latency else ""

    return [
        Row(
            what=f"online request beside 200 ms kernels, release-delay {delay}: added p99",
            must=f"<= {MOST_ADDED_US:.0f} us",
            measured=added(latency),
            ok=latency["p99"] - alone["p99"] <= MOST_ADDED_US,
            stock=added(stock),
            mps=added(shared),
            numbers={"alone": alone, "ours": latency, "stock": stock, "mps": shared},
        )
        for delay, latency in zip(DELAYS, ours, strict=True)
    ]


def _beside(lab: Lab, ground: Ground, delays: tuple[str, ...]) -> list[dict[str, Any]]:
    """Latencies beside the offline load, one server per release delay: only one of them is let in at a time."""
    with lab.stage(ground) as stage:
        offline = stage.load(Ask(name="offline", app_class="offline"), OFFLINE)
        servers = [
            stage.server(Ask(name=f"online-{at}", app_class="online"), KERNEL, PERIOD, lab.seconds)
            for at, _ in enumerate(delays)
        ]
        stage.ready(offline, *servers)
        offline.start()
        time.sleep(0.5)
        answers = []
        for delay, server in zip(delays, servers, strict=True):
            if isinstance(ground, Node) and delay != ground.release_delay:
                ground.set_release_delay(delay)
            answers.append(server.run())
        return answers
