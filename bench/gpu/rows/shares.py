"""Does every tenant get its share? 2, 3, 4 and 8 tenants, kernels of 50 us, 1 ms and 20 ms, one with three processes.

All eight are started once; the policy is changed while they run, and tenants leave until two are left.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from bench.gpu.grounds import Ground, Node
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import Load, window
from bench.gpu.words import Ask

MOST_POINTS = 2.0
COUNTS = (8, 4, 3, 2)
POLICIES = ("best-effort", "fixed-share", "burst-share")
SETTLE_SECONDS = 1.0  # a new policy, and the debts of the old one


@dataclass(frozen=True, slots=True)
class Part:
    """One tenant: its quota in percent, its kernels, its processes."""

    quota: int
    kernel: str
    processes: int = 1


# In the order in which they stay: the first two are there to the end. The quotas of all eight are the whole card.
CAST = (
    Part(35, "1ms", processes=3),
    Part(25, "50us"),
    Part(10, "20ms"),
    Part(10, "1ms"),
    Part(5, "50us"),
    Part(5, "20ms"),
    Part(5, "1ms"),
    Part(5, "50us"),
)


def expected(policy: str, count: int) -> list[float]:
    """Shares of the card when all of the first `count` tenants are busy."""
    quotas = [part.quota / 100 for part in CAST[:count]]
    if policy == "fixed-share":
        return quotas
    if policy == "burst-share":
        return [quota / sum(quotas) for quota in quotas]
    return [1 / count] * count


def measure(lab: Lab) -> list[Row]:
    with lab.node() as node:
        ours = _play(lab, node, POLICIES)
    stock = _play(lab, lab.stock, ("best-effort",))
    by_chance = max(row["error_points"] for row in stock)
    rows = []
    for policy in POLICIES:
        scenes = [entry for entry in ours if entry["policy"] == policy]
        worst = max(scenes, key=lambda scene: float(scene["error_points"]))
        text = ", ".join(f"{scene['tenants']}: {scene['error_points']:.2f}" for scene in reversed(scenes))
        rows.append(
            Row(
                what=f"{policy}: error of a tenant's share, 2 to 8 tenants",
                must="<= 2 points",
                measured=text,
                ok=worst["error_points"] <= MOST_POINTS,
                stock=f"{by_chance:.1f}" if policy == "best-effort" else "",
                numbers={"scenes": scenes, "stock": stock if policy == "best-effort" else None},
            )
        )
    return rows


def _play(lab: Lab, ground: Ground, policies: tuple[str, ...]) -> list[dict[str, Any]]:
    scenes = []
    with lab.stage(ground) as stage:
        loads = [
            stage.load(Ask(name=f"t{at}", core=part.quota), part.kernel, "--processes", str(part.processes))
            for at, part in enumerate(CAST)
        ]
        alone = [lab.alone(load.kernel) for load in loads]
        stage.ready(*loads)
        for load in loads:
            load.start()
        for count in COUNTS:
            for gone in loads[count:]:
                gone.stop()
            for policy in policies:
                if isinstance(ground, Node):
                    ground.set_policy(policy)
                time.sleep(SETTLE_SECONDS)
                scenes.append(_scene(policy, loads[:count], alone, min(3.0, lab.seconds)))
                lab.say(f"{ground.name} {policy} {count}: {scenes[-1]['error_points']:.2f} points")
    return scenes


def _scene(policy: str, loads: list[Load], alone: list[float], seconds: float) -> dict[str, Any]:
    measured = window(seconds)
    time.sleep(0.1)  # so that every load has written what it did
    shares = [load.share(measured) / best for load, best in zip(loads, alone, strict=False)]
    wanted = expected(policy, len(loads))
    return {
        "policy": policy,
        "tenants": len(loads),
        "shares": [round(share, 4) for share in shares],
        "expected": [round(expected, 4) for expected in wanted],
        "error_points": round(100 * max(abs(a - b) for a, b in zip(shares, wanted, strict=True)), 3),
        "together": round(sum(shares), 4),
    }
