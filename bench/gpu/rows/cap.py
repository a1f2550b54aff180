"""Fixed-share on a card that is otherwise idle: the quota is a cap, not only a promise."""

from __future__ import annotations

import time

from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import window
from bench.gpu.words import Ask

KERNEL, QUOTA = "1ms", 30
MOST_POINTS = 1.0


def measure(lab: Lab) -> list[Row]:
    alone = lab.alone(KERNEL)
    with lab.node("fixed-share") as node, lab.stage(node) as stage:
        load = stage.load(Ask(name="capped", core=QUOTA), KERNEL)
        stage.ready(load)
        load.start()
        time.sleep(1.0)
        share = load.share(window(lab.seconds)) / alone
    over = 100 * share - QUOTA
    return [
        Row(
            what=f"fixed-share of {QUOTA}% on an idle card: over the cap",
            must="<= 1 point",
            measured=f"{over:+.2f} points",
            ok=abs(over) <= MOST_POINTS,  # far below the cap would be no share either
            stock=f"{100 - QUOTA:+d} points",
            numbers={"share": share, "quota": QUOTA / 100},
        )
    ]
