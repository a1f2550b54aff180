"""Tenants with few kernels in the queue, which runs dry between waits; and fixed-share from the start of a program."""

from __future__ import annotations

import time

from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import Window, window
from bench.gpu.words import Ask

QUOTAS = (50, 30, 20)
KERNELS = (("50us",) * 3, ("200us",) * 3, ("50us", "1ms", "20ms"))
POLICIES = ("burst-share", "fixed-share")
DEPTH = ("--depth", "8")
MOST_POINTS, LEAST_TOGETHER = 2.0, 0.97
MOST_FROM_START = 31.0
SECONDS = 3.0


def measure(lab: Lab) -> list[Row]:
    return [_shares(lab, kernels) for kernels in KERNELS] + [_from_start(lab)]


def _alone(lab: Lab, kernel: str) -> float:
    with lab.stage(lab.stock) as stage:
        load = stage.load(Ask(name=f"alone-{kernel}"), kernel, *DEPTH)
        stage.ready(load)
        return lab.solo(load, 1.5)


def _shares(lab: Lab, kernels: tuple[str, ...]) -> Row:
    """Percent of what each reaches alone."""
    alone = {kernel: _alone(lab, kernel) for kernel in dict.fromkeys(kernels)}
    found: dict[str, list[float]] = {}
    with lab.node(POLICIES[0]) as node, lab.stage(node) as stage:
        loads = [
            stage.load(Ask(name=f"t{at}", core=quota), kernel, *DEPTH)
            for at, (quota, kernel) in enumerate(zip(QUOTAS, kernels, strict=True))
        ]
        stage.ready(*loads)
        for load in loads:
            load.start()
        for policy in POLICIES:
            node.set_policy(policy)
            time.sleep(2.0)
            measured = window(SECONDS)
            time.sleep(0.1)  # so that every load has written what it did
            found[policy] = [100 * load.share(measured) / alone[load.kernel] for load in loads]
    errors = [abs(share - quota) for shares in found.values() for share, quota in zip(shares, QUOTAS, strict=True)]
    together = min(sum(shares) for shares in found.values()) / 100
    text = ["/".join(f"{share:.1f}" for share in shares) for shares in found.values()]
    return Row(
        what=f"{', '.join(dict.fromkeys(kernels))} kernels, eight queued, quotas 50/30/20: burst; fixed; together",
        must="<= 2 points; >= 0.97",
        measured=f"{'; '.join(text)}; {together:.3f}",
        ok=max(errors) <= MOST_POINTS and together >= LEAST_TOGETHER,
        numbers={"shares": found, "alone": alone},
    )


def _from_start(lab: Lab) -> Row:
    alone = lab.alone("1ms")
    with lab.node("fixed-share") as node, lab.stage(node) as stage:
        load = stage.load(Ask(name="capped", core=30), "1ms")
        load.start()  # it begins as soon as it is ready: the context is new
        stage.ready(load)
        began = time.monotonic()
        time.sleep(6.1)
        share = 100 * load.share(Window(began, began + 6.0)) / alone
    return Row(
        what="fixed-share of 30% over the first 6 s of a program",
        must="<= 31%",
        measured=f"{share:.1f}%",
        ok=25.0 <= share <= MOST_FROM_START,
        numbers={"share": share},
    )
