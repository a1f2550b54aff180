"""Line charts as SVG, light and dark. Written by hand: a plotting library would be forty times the size of aliquot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 860, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 64, 52
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2")
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #334155 }
  .title { font-size: 17px; font-weight: 600; fill: #0f172a } .note { fill: #64748b }
  .back { fill: #ffffff } .grid { stroke: #e2e8f0 } .axis { stroke: #94a3b8 }
  .ideal { stroke: #94a3b8; stroke-dasharray: 4 4; fill: none } .line { fill: none; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #cbd5e1 } .title { fill: #f8fafc } .note { fill: #94a3b8 }
    .back { fill: #0f172a } .grid { stroke: #1e293b } .axis { stroke: #475569 }
  }
"""

Points = Sequence[tuple[float, float]]


def line_chart(
    title: str,
    note: str,
    x_label: str,
    y_label: str,
    lines: Mapping[str, Points],
    ideal: Points = (),
    least: tuple[float, float] = (0.0, 0.0),
) -> str:
    """One SVG document. Each line has its name at its right end; `ideal` is drawn dashed.

    The axes start at `least`; points before it are cut off.
    """
    every = [point for points in lines.values() for point in points] + list(ideal)
    x_ticks = _ticks(least[0], max((x for x, _ in every), default=1.0))
    y_ticks = _ticks(least[1], max((y for _, y in every), default=1.0))
    across, up = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        right, high = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]), (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return _LEFT + across * right, _HEIGHT - _BOTTOM - up * high

    def path(points: Points) -> str:
        return "M" + "L".join(f"{at[0]:.1f},{at[1]:.1f}" for at in (place(x, y) for x, y in points))

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="back" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<clipPath id="inside"><rect x="{_LEFT}" y="{_TOP}" width="{across}" height="{up}"/></clipPath>',
        f'<text class="title" x="{_LEFT}" y="28">{escape(title)}</text>',
        f'<text class="note" x="{_LEFT}" y="48">{escape(note)}</text>',
    ]
    for tick in x_ticks:
        x, y = place(tick, y_ticks[0])
        out.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{_number(tick)}</text>')
    for tick in y_ticks:
        x, y = place(x_ticks[0], tick)
        out.append(f'<line class="grid" x1="{x:.1f}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        out.append(f'<text x="{x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    out.append(f'<text x="{_LEFT + across / 2}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>')
    out.append(
        f'<text transform="rotate(-90)" x="{-(_TOP + up / 2)}" y="18" text-anchor="middle">{escape(y_label)}</text>'
    )
    if ideal:
        out.append(f'<path class="ideal" clip-path="url(#inside)" d="{path(ideal)}"/>')
    named = [name for name in lines if lines[name]]
    heights = _apart([place(*lines[name][-1])[1] for name in named])
    for at, name in enumerate(named):
        colour = COLOURS[at % len(COLOURS)]
        out.append(f'<path class="line" clip-path="url(#inside)" stroke="{colour}" d="{path(lines[name])}"/>')
        x, y = place(*lines[name][-1])
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        out.append(f'<text x="{x + 9:.1f}" y="{heights[at] + 4:.1f}" style="fill:{colour}">{escape(name)}</text>')
    out.append("</svg>\n")
    return "\n".join(out)


def _ticks(least: float, most: float) -> list[float]:
    """About five round steps that cover the range."""
    length = most - least
    if not length > 0 or not math.isfinite(length):
        length = 1.0
    size = 10.0 ** math.floor(math.log10(length / 5))
    step = next(size * by for by in (1, 2, 2.5, 5, 10) if size * by * 6 >= length)
    return [least + step * at for at in range(math.ceil(length / step - 1e-9) + 1)]


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _apart(heights: list[float], distance: float = 16.0) -> list[float]:
    """The heights, moved down so that the names of lines do not overlap."""
    moved = list(heights)
    last = -math.inf
    for at in sorted(range(len(heights)), key=lambda at: heights[at]):
        moved[at] = last = max(heights[at], last + distance)
    return moved
