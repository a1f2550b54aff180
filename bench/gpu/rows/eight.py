"""Eight equal tenants: how much of the card is lost to switching between them?"""

from __future__ import annotations

import time

from bench.gpu.grounds import Ground
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import window
from bench.gpu.words import Ask

KERNEL, TENANTS = "1ms", 8
LEAST = 0.98


def measure(lab: Lab) -> list[Row]:
    with lab.node("best-effort") as node:
        ours = _shares(lab, node)
    stock = _shares(lab, lab.stock)
    shared = lab.under_mps(lambda mps: _shares(lab, mps))
    return [
        Row(
            what="eight best-effort tenants together / alone",
            must=">= 0.98",
            measured=f"{sum(ours):.4f}",
            ok=sum(ours) >= LEAST,
            stock=f"{sum(stock):.4f}",
            mps=f"{sum(shared):.4f}" if shared else "",
            numbers={"ours": ours, "stock": stock, "mps": shared},
        )
    ]


def _shares(lab: Lab, ground: Ground) -> list[float]:
    alone = lab.alone(KERNEL)
    with lab.stage(ground) as stage:
        loads = [stage.load(Ask(name=f"t{at}"), KERNEL) for at in range(TENANTS)]
        stage.ready(*loads)
        for load in loads:
            load.start()
        time.sleep(1.0)
        measured = window(min(3.0, lab.seconds))
        time.sleep(0.1)
        return [load.share(measured) / alone for load in loads]
