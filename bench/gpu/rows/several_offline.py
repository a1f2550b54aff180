"""Three offline tenants beside an online one: they share by the policy what online leaves, and it hardly notices."""

from __future__ import annotations

import time
from typing import Any

from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import Window
from bench.gpu.words import Ask

KERNEL, PERIOD = "100us", "10ms"
CAST = (("1ms", 40), ("20ms", 30), ("1ms", 20))  # kernel, quota in percent
POLICIES = ("best-effort", "burst-share", "fixed-share")
MOST_POINTS, MOST_ADDED_US = 3.0, 400.0
SETTLE_SECONDS = 0.3


def measure(lab: Lab) -> list[Row]:
    alone = lab.alone_latency(KERNEL, PERIOD)
    scenes = _play(lab)
    for scene in scenes:
        scene["added_p99_us"] = round(scene["online"]["p99"] - alone["p99"], 1)
    error, added = (max(float(scene[key]) for scene in scenes) for key in ("error_points", "added_p99_us"))
    return [
        Row(
            what="three offline tenants beside an online one: error of their shares; online's added p99",
            must="<= 3 points; <= 400 us",
            measured=f"{error:.2f} points; {added:.0f} us",
            ok=error <= MOST_POINTS and added <= MOST_ADDED_US,
            numbers={"alone": alone, "scenes": scenes},
        )
    ]


def _play(lab: Lab) -> list[dict[str, Any]]:
    alone = [lab.alone(kernel) for kernel, _ in CAST]
    scenes = []
    with lab.node(POLICIES[0], release_delay="0") as node, lab.stage(node) as stage:
        loads = [
            stage.load(Ask(name=f"offline-{at}", app_class="offline", core=quota), kernel)
            for at, (kernel, quota) in enumerate(CAST)
        ]
        servers = [
            stage.server(Ask(name=f"online-{policy}", app_class="online", core=1), KERNEL, PERIOD, lab.seconds)
            for policy in POLICIES
        ]
        stage.ready(*loads, *servers)
        for load in loads:
            load.start()
        for policy, server in zip(POLICIES, servers, strict=True):
            node.set_policy(policy)
            time.sleep(0.7)
            begin = time.monotonic() + SETTLE_SECONDS
            latency = server.run(SETTLE_SECONDS)
            measured = Window(begin, begin + lab.seconds)
            shares = [load.share(measured) / best for load, best in zip(loads, alone, strict=True)]
            scenes.append({"policy": policy, "online": latency, **_judged(policy, shares)})
    return scenes


def _judged(policy: str, shares: list[float]) -> dict[str, Any]:
    """Fixed-share promises parts of the card; the others, parts of what online work leaves."""
    quotas = [quota for _, quota in CAST]
    whole = sum(shares)
    if policy == "best-effort":
        wanted = [1 / len(quotas)] * len(quotas)
    elif policy == "burst-share":
        wanted = [quota / sum(quotas) for quota in quotas]
    else:
        wanted, whole = [quota / 100 for quota in quotas], 1.0
    errors = [abs(share / max(whole, 1e-9) - want) for share, want in zip(shares, wanted, strict=True)]
    return {"shares": shares, "expected": wanted, "error_points": round(100 * max(errors), 3)}
