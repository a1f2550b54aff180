"""Ordinary work beside offline work: they share by the policy while online work is idle; how long do requests wait?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from bench.gpu.grounds import Node
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import Load, window
from bench.gpu.words import Ask

KERNEL, PERIOD = "100us", "20ms"
Part = tuple[str | None, str, int]  # class, kernel, quota in percent
CAST: tuple[Part, ...] = ((None, "1ms", 30), (None, "50us", 20), ("offline", "20ms", 60))
# An offline quota is a part of what the others leave: 60% of 50%.
QUOTAS = (30, 20, 30)
POLICIES = ("best-effort", "fixed-share", "burst-share")
MOST_POINTS = 3.0
MOST_POINTS_AT_THE_GATE = 8.0  # a closed gate does not stop the eight kernels that are already in the queue
# A request takes the card at once from offline work, and after a slice from each ordinary tenant.
MOST_ADDED_US = 2 * 2_400 + 1_000
SETTLE_SECONDS = 1.0


def measure(lab: Lab) -> list[Row]:
    alone = lab.alone_latency(KERNEL, PERIOD)
    with lab.node(POLICIES[0], "0") as node:
        without, beside = _play(lab, node, CAST)
    # A closed gate takes effect at the next launch, so kernels there are short.
    with lab.node(POLICIES[0], "0", gate=True) as node:
        at_the_gate = _play(lab, node, [(app_class, "1ms", quota) for app_class, _, quota in CAST])
    added = [max(scene["online"]["p99"] for scene in scenes) - alone["p99"] for scenes in (beside, at_the_gate[1])]
    errors = [max(scene["error_points"] for scene in scenes) for scenes in (without, beside, *at_the_gate)]
    return [
        Row(
            what="two ordinary tenants and an offline one: error of their shares; beside idle online work",
            must="<= 3 points",
            measured=f"{errors[0]:.2f}; {errors[1]:.2f}",
            ok=max(errors[:2]) <= MOST_POINTS,
            numbers={"without": without, "beside": beside},
        ),
        Row(
            what="  online's added p99 beside them",
            must=f"<= {MOST_ADDED_US} us",
            measured=f"{added[0]:.0f} us",
            ok=added[0] <= MOST_ADDED_US,
            numbers={"alone": alone},
        ),
        Row(
            what="  the same at the gate: error of shares; beside idle online work; online's added p99",
            must="<= 8 points",
            measured=f"{errors[2]:.2f}; {errors[3]:.2f}; {added[1]:.0f} us",
            ok=max(errors[2:]) <= MOST_POINTS_AT_THE_GATE,
            numbers={"without": at_the_gate[0], "beside": at_the_gate[1]},
        ),
    ]


def _play(lab: Lab, node: Node, cast: Sequence[Part]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Under every policy, without online work, then beside an online tenant: idle first, then with requests."""
    best = [lab.alone(kernel) for _, kernel, _ in cast]
    with lab.stage(node) as stage:
        loads = [
            stage.load(Ask(name=f"{app_class or 'normal'}-{at}", app_class=app_class, core=quota), kernel)
            for at, (app_class, kernel, quota) in enumerate(cast)
        ]
        stage.ready(*loads)
        for load in loads:
            load.start()
        without = [_scene(lab, node, policy, loads, best) for policy in POLICIES]
        servers = [
            stage.server(Ask(name=f"online-{policy}", app_class="online", core=1), KERNEL, PERIOD, lab.seconds)
            for policy in POLICIES
        ]
        stage.ready(*servers)
        beside = []
        for policy, server in zip(POLICIES, servers, strict=True):
            scene = _scene(lab, node, policy, loads, best)
            beside.append({**scene, "online": server.run(), "standings": node.standings()})
            lab.say(f"  requests: {beside[-1]['online']}")
    return without, beside


def _scene(lab: Lab, node: Node, policy: str, loads: list[Load], best: list[float]) -> dict[str, Any]:
    node.set_policy(policy)
    time.sleep(SETTLE_SECONDS)
    measured = window(lab.seconds)
    time.sleep(0.1)  # so that every load has written what it did
    shares = [load.share(measured) / alone for load, alone in zip(loads, best, strict=True)]
    wanted = _promised(policy)
    errors = [abs(share - want) for share, want in zip(shares, wanted, strict=True)]
    scene = {"policy": policy, "shares": shares, "expected": wanted, "error_points": round(100 * max(errors), 3)}
    lab.say(f"{policy}: {', '.join(f'{share:.3f}' for share in shares)}; together {sum(shares):.3f}")
    return scene


def _promised(policy: str) -> list[float]:
    if policy == "best-effort":
        return [1 / len(CAST)] * len(CAST)
    whole = 100 if policy == "fixed-share" else sum(QUOTAS)
    return [quota / whole for quota in QUOTAS]
