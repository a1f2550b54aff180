"""The three figures of Valve (arXiv 2604.07874), at several rates: what online requests lose beside offline work, how
often each of them takes the card, and what offline work has of what is free. Requests come at random (Poisson), at the
same moments alone and beside."""

from __future__ import annotations

import time
from functools import partial

from bench.gpu.engines.beside import Scene, begin, number
from bench.gpu.engines.catalog import ENGINES
from bench.gpu.engines.folder import Folder
from bench.gpu.engines.scenes import Measure, differing, length, same, watch
from bench.gpu.grounds import Node
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import Window

RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
MOST_FIRST, MOST_TOKEN, MOST_TAKINGS, LEAST_FREE = 1.03, 1.01, 1.0, 0.95
_REQUESTS = 12  # at least, in a window


def measured(names: tuple[str, str], prompt: int) -> Measure:
    """`prompt`: tokens of each."""
    return partial(_measure, names, prompt)


def _measure(names: tuple[str, str], prompt: int, lab: Lab, folder: Folder) -> list[Row]:
    rows = []
    with lab.node(release_delay="auto") as node, lab.stage(node) as stage:
        online, offline = begin(stage, folder, names)
        offline_alone = watch(lab, offline)[0]
        for rate in RATES:
            online.order = f"rate={rate:g} tokens=32 prompt={prompt} poisson=1"
            seconds = length(lab) if lab.simulate else max(length(lab), _REQUESTS / rate)
            before = watch(lab, online, seconds=seconds)[0]
            began, taken = time.monotonic(), _takings(node)
            scene = Scene(names, [before, offline_alone], watch(lab, online, offline, seconds=seconds))
            answered = len(online.requests(Window(began, time.monotonic())))
            takings = (_takings(node) - taken) / max(1, answered)
            rows.append(_row(scene, f"{rate:g}/s of {prompt} tokens", takings))
            lab.say(rows[-1].measured)
    return rows


def _takings(node: Node) -> int:
    """Times that the online tenant took the card from offline work, so far."""
    tenants = node.standings()["tenants"]
    return sum(card["takings"] for tenant in tenants if tenant["name"] == "online" for card in tenant["cards"])


def _row(scene: Scene, words: str, takings: float) -> Row:
    online, offline = scene.names
    first, token = _ratio(scene, "first_ms"), _ratio(scene, "tpot_ms")
    both = zip(scene.alone, scene.beside, scene.names, strict=True)
    agree, well = same([differing(then, now, ENGINES[name]) for then, now, name in both])
    good = first is not None and first <= MOST_FIRST and (token is None or token <= MOST_TOKEN)
    return Row(
        what=f"{online} online, {words}, beside {offline}: TTFT p99, TPOT p99 / alone; preemptions a request; offline",
        must=f"<= {MOST_FIRST}; <= {MOST_TOKEN}; <= {MOST_TAKINGS}; >= {LEAST_FREE} of free; same tokens",
        measured=f"{number(first, '.3f')}; {number(token, '.3f')}; {takings:.2f}; {scene.of_free:.2f}; {agree}",
        ok=good and takings <= MOST_TAKINGS and scene.of_free >= LEAST_FREE and well,
        numbers={**scene.numbers(), "takings_per_request": round(takings, 3), "told": scene.told()},
    )


def _ratio(scene: Scene, what: str) -> float | None:
    """p99 beside over p99 alone."""
    before, now = scene.alone[0].ms(what, "p99"), scene.beside[0].ms(what, "p99")
    return now / before if before and now else None
