"""Who held the card, as SVG: one lane per tenant, solid where its kernels ran. In the manner of the other charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from aliquot.cli.plot import COLOURS, STYLE

Spans = Sequence[tuple[float, float]]

_WIDTH, _LEFT, _RIGHT = 860, 84, 36
_TOP, _PANEL, _LANE, _BAR, _BOTTOM, _NOTE = 56, 34, 26, 18, 44, 24
_WAITING = "#fca5a5"


@dataclass(frozen=True, slots=True)
class Lane:
    """One tenant: when it held the card, and when it had work but not the card, in milliseconds."""

    name: str
    spans: Spans
    waits: Spans = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """One way of sharing."""

    title: str
    lanes: Sequence[Lane]


def held(kernels: Sequence[tuple[int, ...]], stops: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """The times of the kernels without those at which they were stopped. Both sorted; a stop may outreach a kernel."""
    spans: list[tuple[int, int]] = []
    first = 0
    for begin, end in kernels:
        at = begin
        while first < len(stops) and stops[first][1] <= begin:
            first += 1
        for since, until in stops[first:]:
            if since >= end:
                break
            if since > at:
                spans.append((at, since))
            at = max(at, until)
        if at < end:
            spans.append((at, end))
    return spans


def timeline(title: str, panels: Sequence[Panel], milliseconds: float, note: str = "") -> str:
    """One SVG document: the panels below each other, on one axis of time; below it a note."""
    bottom_margin = _BOTTOM + (_NOTE if note else 0)
    height = _TOP + sum(_PANEL + _LANE * len(panel.lanes) for panel in panels) + bottom_margin
    across = _WIDTH - _LEFT - _RIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="back" width="{_WIDTH}" height="{height}"/>',
        f'<text class="title" x="{_LEFT}" y="30">{escape(title)}</text>',
    ]
    bottom = height - bottom_margin
    for tick in range(7):
        x = _LEFT + across * tick / 6
        out.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        label = f"{milliseconds * tick / 6:g}" + (" ms" if tick == 6 else "")
        out.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{label}</text>')
    y = float(_TOP)
    for panel in panels:
        out.append(f'<text class="note" x="{_LEFT}" y="{y + 22:.1f}">{escape(panel.title)}</text>')
        y += _PANEL
        for at, lane in enumerate(panel.lanes):
            out.extend(_lane(lane, COLOURS[at % len(COLOURS)], y, across / milliseconds))
            y += _LANE
    if note:
        out.append(f'<text class="note" x="{_LEFT}" y="{height - 14}">{escape(note)}</text>')
    out.append("</svg>\n")
    return "\n".join(out)


def _lane(lane: Lane, colour: str, y: float, scale: float) -> list[str]:
    """A name and its bars; what is too short to be seen is drawn a hair wide."""
    out = [f'<text x="{_LEFT - 8}" y="{y + 14:.1f}" text-anchor="end" style="fill:{colour}">{escape(lane.name)}</text>']
    for spans, fill in ((lane.waits, _WAITING), (lane.spans, colour)):
        bars = ""
        for begin, end in spans:
            width = max(0.3, scale * (end - begin))
            bars += f"M{_LEFT + scale * begin:.2f},{y:.1f}h{width:.2f}v{_BAR}h-{width:.2f}z"
        if bars:
            out.append(f'<path fill="{fill}" d="{bars}"/>')
    return out
