"""The plots of the README and docs/policies.md: the arbiter on a card in virtual time, placement on a made-up cluster.

Nothing here looks at a clock, so the same code draws the same picture to the byte: `make docs` writes them to docs/img,
and tests/test_docs.py draws them again and compares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from aliquot.cli.plot import line_chart
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules
from aliquot.placement.choose import POLICIES
from aliquot.sim.arrivals import arrivals
from aliquot.sim.replay import replay
from aliquot.sim.trace import generate

sys.path += [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1])]  # the virtual card is the tests'
from bench.gpu.drawing import Lane, Panel, Spans, timeline

from kit.cards.virtualcard import Event, Load, VirtualCard

_QUOTAS = {"a, 20%": 0.2, "b, 30%": 0.3, "c, 50%": 0.5}
_WORKS = 4.0  # c has work for so long, rests as long, and works again
_STEP = 0.2
Lines = dict[str, list[tuple[float, float]]]


def _watched(card: VirtualCard, tenants: Mapping[str, str], seconds: float, step: float) -> Lines:
    """Each tenant's share of the card, in percent, step after step."""
    lines: Lines = {name: [] for name in tenants}
    for at in range(round(seconds / step)):
        card.mark()
        card.run(step)
        for name, tenant in tenants.items():
            lines[name].append((round((at + 1) * step, 6), round(100 * card.share(tenant), 2)))
    return lines


def isolation(policy: Isolation) -> str:
    """Three tenants with quotas of 20, 30 and 50%; the largest has nothing to do between 4 and 8 seconds."""
    card = VirtualCard(SharingRules(policy))
    for name, quota in _QUOTAS.items():
        card.admit(name, quota=quota)
    for name in ("a, 20%", "b, 30%"):
        card.start(f"{name}/1", name, Load())
    card.start("c, 50%/1", "c, 50%", Load())
    lines: Lines = {name: [] for name in _QUOTAS}
    for stage in range(3):
        if stage == 1:
            card.stop("c, 50%/1")
        if stage == 2:
            card.start("c, 50%/2", "c, 50%", Load())
        seen = _watched(card, {name: name for name in _QUOTAS}, _WORKS, _STEP)
        for name, points in seen.items():
            lines[name] += [(round(x + stage * _WORKS, 6), y) for x, y in points]
    return line_chart(
        f"{policy}: who has the card",
        "three tenants with work all the time, but c rests from second 4 to second 8; virtual time",
        "seconds",
        "share of the card, %",
        lines,
    )


def mixing(delay: float) -> str:
    """An online server with a second of requests every two seconds, two offline tenants behind it."""
    card = VirtualCard(SharingRules(Isolation.BURST_SHARE, delay))
    card.admit("online", AppClass.ONLINE)
    for name, quota in (("offline, 75%", 0.75), ("offline, 25%", 0.25)):
        card.admit(name, AppClass.OFFLINE, quota)
        card.start(f"{name}/1", name, Load(kernel=0.2))
    for burst in range(3):  # one process per burst: forty requests of 10 ms, one every 25 ms
        card.start(f"online/{burst}", "online", Load(work=0.01, period=0.025, start=1.0 + 2.0 * burst))
    names = ("online", "offline, 75%", "offline, 25%")
    lines: Lines = {name: [] for name in names}
    at = 0.0
    for until, ends in ((2.0, "online/0"), (4.0, "online/1"), (6.0, "online/2"), (8.0, None)):
        for name, points in _watched(card, {name: name for name in names}, until - at, 0.25).items():
            lines[name] += [(round(x + at, 6), y) for x, y in points]
        at = until
        if ends:
            card.stop(ends)
    return line_chart(
        "online beside offline: who has the card",
        f"requests of 10 ms every 25 ms, from 1 to 2, 3 to 4, 5 to 6; release delay {delay * 1000:g} ms; virtual time",
        "seconds",
        "share of the card, %",
        lines,
    )


class StockCard(VirtualCard):
    """The same card with the driver alone: the arbiter knows no tenant, so all keep the driver's slices of 2 ms."""

    def post(self, event: Event) -> None:
        """Drop it."""


REQUEST, EVERY, EXCERPT = 0.010, 0.040, 0.120  # seconds: a request's work, how often one comes, what is drawn
_BEFORE = 0.4003  # the first request comes here, at no special point of an offline slice


def request_beside_training(card: VirtualCard, request: float = REQUEST, every: float = EVERY) -> tuple[Panel, float]:
    """Who had the card, and the longest time that a request of the excerpt took, in milliseconds."""
    card.admit("online", AppClass.ONLINE)
    card.admit("offline", AppClass.OFFLINE, 0.5)
    card.start("offline", "offline", Load(kernel=0.2))
    card.start("online", "online", Load(work=request, period=every, start=_BEFORE, kernel=request))
    card.run(_BEFORE + 9.9 * every)  # 4 ms before a request
    begin = card.now
    card.mark()
    card.run(EXCERPT + every)
    took = [1000 * seconds for seconds in card.latencies("online")]
    came = [1000 * (_BEFORE + every * (10 + at) - begin) for at in range(len(took))]
    last = 1000 * EXCERPT

    def cut(spans: Spans) -> Spans:
        return [(max(0.0, since), min(last, until)) for since, until in spans if until > 0 and since < last]

    held = {
        name: cut([(1000 * (since - begin), 1000 * (until - begin)) for since, until, who in card.held if who == name])
        for name in ("online", "offline")
    }
    waits = cut([(at, at + spent) for at, spent in zip(came, took, strict=True)])
    return Panel("", [Lane("online", held["online"], waits), Lane("offline", held["offline"])]), max(took)


def online_beside_offline() -> str:
    """One request after the other beside training: the driver alone, and Aliquot with both release delays."""
    panels = []
    for card, words in (
        (StockCard(SharingRules(Isolation.BEST_EFFORT)), "stock driver: slices of 2 ms in turn; a request takes up to"),
        (
            VirtualCard(SharingRules(Isolation.BEST_EFFORT, 0.0)),
            "Aliquot, release delay 0: offline work has every gap; a request takes",
        ),
        (
            VirtualCard(SharingRules(Isolation.BEST_EFFORT, 0.1)),
            "Aliquot, release delay 100 ms (default): offline work stays paused; a request takes",
        ),
    ):
        panel, longest = request_beside_training(card)
        panels.append(replace(panel, title=f"{words} {longest:.1f} ms"))
    return timeline(
        f"Online requests of {1000 * REQUEST:g} ms beside offline training: who has the card",
        panels,
        1000 * EXCERPT,
        "Light red: the request waits. Virtual time: the real arbiter on a simulated card with an H200's slices.",
    )


def placement() -> str:
    """Every placement policy on the made-up cluster of `aliquot simulate --generate 200x8`."""
    nodes, pods = generate(200, 8, 42)
    coming = arrivals(pods, 1300 * sum(len(node.cards) for node in nodes), 42)
    outcomes = [replay(nodes, coming, policy, known=pods, clock=lambda: 0.0) for policy in POLICIES]
    most = max(outcome.curve[-1][0] for outcome in outcomes)
    return line_chart(
        "GPU allocated as Pods arrive",
        "200 nodes x 8 GPUs, made up (seed 42); the last stretch. Dashed: nothing ever dropped",
        "GPU requested so far, % of capacity",
        "GPU allocated, %",
        {f"{outcome.policy} {outcome.percent(outcome.allocated_milli):.2f}%": outcome.curve for outcome in outcomes},
        ideal=[(0, 0), (min(100, most), min(100, most)), (most, min(100, most))],
        least=(60.0, 60.0),
    )


PLOTS: Mapping[str, Callable[[], str]] = {
    **{f"{policy}.svg": partial(isolation, policy) for policy in Isolation},
    "release-delay-100ms.svg": partial(mixing, 0.1),
    "release-delay-0.svg": partial(mixing, 0.0),
    "placement.svg": placement,
    "timeline.svg": online_beside_offline,
}


def main(folder: Path) -> None:
    """Draw all of them."""
    for name, draw in PLOTS.items():
        (folder / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
