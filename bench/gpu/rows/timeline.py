"""Who held the card: 300 ms of online requests beside offline kernels of 200 ms, drawn. A picture, not a promise."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from bench.gpu.drawing import Lane, Panel, held, timeline
from bench.gpu.grounds import Ground
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.words import Ask

EXCERPT_MS = 300.0
_SECONDS = 1.2
_REQUEST = "10ms"  # several of the stock driver's slices of 2 ms, so that it is seen how they take turns


def measure(lab: Lab) -> list[Row]:
    panels = [_panel(lab, lab.stock, "stock driver", burst=False)]
    with lab.node(release_delay="0") as node:
        panels.append(_panel(lab, node, "aliquot, idle gaps handed back at once (release-delay 0)", burst=False))
        node.set_release_delay("100ms")
        panels.append(_panel(lab, node, "aliquot, kept for 100 ms after the last request (the default)", burst=True))
    where = lab.out / "timeline.svg"
    what = "the simulated card" if lab.simulate else "one card"
    where.write_text(
        timeline(f"Who held {what}: requests of {_REQUEST} beside kernels of {_kernel(lab)}", panels, EXCERPT_MS)
    )
    lab.say(f"timeline: {where}")
    return []


def _panel(lab: Lab, ground: Ground, title: str, *, burst: bool) -> Panel:
    """`burst`: a request every 150 ms, so that it is seen how the card is kept and given back."""
    with lab.stage(ground) as stage:
        files = {name: stage.folder / f"{name}.timeline" for name in ("online", "offline")}
        period = "150ms" if burst else "40ms"
        offline = stage.load(
            Ask(name="offline", app_class="offline"), _kernel(lab), "--timeline", str(files["offline"])
        )
        online = stage.server(
            Ask(name="online", app_class="online"), _REQUEST, period, _SECONDS, "--timeline", str(files["online"])
        )
        stage.ready(offline, online)
        offline.start()
        time.sleep(0.4)
        took = online.run(0.1)
        offline.stop()
        offline.result()
        spans = {name: _read(file) for name, file in files.items()}
    begin = _middle(spans["online"]["spans"])
    lanes = [Lane(name, _excerpt(spans[name], spans["online"], begin)) for name in ("online", "offline")]
    return Panel(f"{title}: a request takes {took['p50'] / 1000:.2f} ms, at most {took['max'] / 1000:.2f}", lanes)


def _kernel(lab: Lab) -> str:
    """A simulated card does not tell where a kernel was stopped: there, only kernels too short to hide it show it."""
    return "2ms" if lab.simulate else "200ms"


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def _middle(spans: list[list[int]]) -> int:
    """Where the excerpt begins: a little before a request in the middle of the run."""
    return spans[len(spans) // 3][0] - 10_000_000


def _excerpt(traced: dict[str, Any], online: dict[str, Any], begin: int) -> list[tuple[float, float]]:
    """When it held the card, in milliseconds of the excerpt."""
    kernels = [tuple(span) for span in traced["spans"]]
    if traced["traced"]:
        spans = held(kernels, [tuple(stop) for stop in traced["stops"]])
    else:  # one that took much longer than its work was stopped somewhere: what is certain is its end
        work = int(1000 * traced["kernel_us"])
        cut = [(max(since, until - work) if until - since > 2 * work else since, until) for since, until in kernels]
        spans = held(cut, [] if traced is online else [tuple(span) for span in online["spans"]])
    moved = [((since - begin) / 1e6, (until - begin) / 1e6) for since, until in spans]
    return [(max(0.0, since), min(EXCERPT_MS, until)) for since, until in moved if until > 0 and since < EXCERPT_MS]
