"""The rows of the table, what each must be, and how the others stand to ours."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.pace import python_start_ms

from aliquot.cli.tables import table

Results = Mapping[str, Mapping[str, float]]  # contestant -> figure -> number


@dataclass(frozen=True, slots=True)
class Figure:
    """One row. `most` and `least` are what ours must hold; neither: only for the record."""

    key: str
    what: str
    most: float | None = None
    least: float | None = None
    digits: int = 1

    @property
    def must(self) -> str:
        if self.most is not None:
            return f"<= {self.most:g}"
        return f">= {self.least:g}" if self.least is not None else ""

    def holds(self, value: float) -> bool | None:
        if self.most is not None:
            return value <= self.most
        return value >= self.least if self.least is not None else None


def figures(small: int, large: int, names: int, streams: int, pods: int, huge: int = 15_000) -> list[Figure]:
    """The rows, with the sizes that were asked for in their words."""
    return [
        Figure("filter_p50_small", f"filter p50 ms, {small:,} nodes, {names} names, 1 stream", most=0.7, digits=2),
        Figure("filter_p99_small", "  p99 ms", most=2.0, digits=2),
        Figure("machine_p50_small", "  the same calls to a program that answers at once, p50 ms", digits=2),
        Figure("machine_p99_small", "  the same calls to a program that answers at once, p99 ms", digits=2),
        Figure("filter_p50_new_small", "  of shapes never seen before, p50 ms", digits=2),
        Figure("filter_p99_new_small", "  of shapes never seen before, p99 ms", digits=2),
        Figure("filter_p50_large", f"filter p50 ms, {large:,} nodes, all names", most=3.0, digits=2),
        Figure("filter_p99_large", "  p99 ms", digits=2),
        Figure("prioritize_p50_small", f"prioritize p50 ms, {names} names", most=1.0, digits=2),
        Figure("prioritize_p50_large", f"prioritize p50 ms, {large:,} names", most=3.0, digits=2),
        Figure("pods_per_s", f"Pods/s filter + prioritize + bind, {small:,} nodes, {streams} streams", least=200),
        Figure("cpu_ms_per_pod", f"  extender CPU ms per Pod, {names} names", most=2.5, digits=2),
        Figure("bind_p50_small", "  bind p50 ms, the API server's write included", digits=2),
        Figure("bind_p99_small", "  bind p99 ms", digits=2),
        Figure("binds_refused", "  binds refused and tried again", digits=0),
        Figure(
            "cold_s", f"cold start to the first right answer s, {large:,} nodes, {2 * large:,} Pods", most=3.0, digits=2
        ),
        Figure("cold_huge_s", f"cold start s, {huge:,} nodes, {2 * huge:,} Pods", most=6.0, digits=2),
        Figure("cold_huge_cpu_s", "  our CPU s of that", digits=2),
        Figure("memory_mb", f"memory MB at {large:,} nodes", most=200, digits=0),
        Figure("memory_peak_mb", "  at most", digits=0),
        Figure("kube_pods_per_s", f"{pods} Pods at once through kube-scheduler, Pods/s, {small:,} nodes"),
        Figure("kube_ratio", "  over kube-scheduler without an extender", least=0.95, digits=2),
        Figure("kube_before_pods_per_s", "  Pods created beforehand"),
        Figure("kube_before_ratio", "  over kube-scheduler without an extender", digits=2),
        Figure("claims_pods_per_s", f"{pods} Pods with ResourceClaims at once through kube-scheduler, Pods/s"),
        Figure("claims_ratio", "  over the same Pods with the extended resource", digits=2),
        Figure("claims_unbound", "  Pods that got no card", most=0, digits=0),
        Figure("waiting_rest_percent", "12 waiting Pods: more CPU of the API server, % of a core, at rest", most=2.0),
        Figure("waiting_busy_percent", "  while a Pod a second comes and goes", most=10.0),
        Figure("others", "share of the machine that other programs took, at worst", digits=2),
        Figure("stolen", "share of the machine that its host took for other machines, at worst", digits=3),
        Figure("all_wrongs", "cards over-allocated, Pods lost", most=0, digits=0),
    ]


def render(rows: Sequence[Figure], results: Results, mine: str) -> str:
    """A column for each; the peers' with how many times ours they are."""
    others = [name for name in results if name != mine]
    head = ["", "MUST", mine.upper(), ""]
    for name in others:
        head += [name.upper(), "x OURS"]
    body = []
    for row in rows:
        if not any(row.key in found for found in results.values()):  # not asked for
            continue
        own = results.get(mine, {}).get(row.key)
        verdict = {True: "ok", False: "MISSED", None: ""}[None if own is None else row.holds(own)]
        cells = [row.what, row.must, _shown(own, row.digits), verdict]
        for name in others:
            value = results[name].get(row.key)
            cells += [_shown(value, row.digits), _ratio(value, own)]
        body.append(cells)
    right = frozenset({2, *range(4, len(head))})
    return table(head, body, right=right)


def missed(rows: Sequence[Figure], results: Results, mine: str) -> list[str]:
    own = results.get(mine, {})
    return [
        f"{row.what.strip()}: {_shown(own[row.key], row.digits)}, must be {row.must}"
        for row in rows
        if row.key in own and row.holds(own[row.key]) is False
    ]


def as_json(rows: Sequence[Figure], results: Results, about: Mapping[str, Any]) -> str:
    described = [{"key": row.key, "what": row.what.strip(), "must": row.must} for row in rows]
    clean = {name: {key: _finite(value) for key, value in found.items()} for name, found in results.items()}
    return json.dumps({"about": about, "rows": described, "results": clean}, indent=2)


def machine() -> dict[str, Any]:
    cores = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("processor")]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "cores": len(cores),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "python_start_ms": round(python_start_ms(), 1),
    }


def _shown(value: float | None, digits: int) -> str:
    if value is None or math.isnan(value):
        return "-"
    return "never" if math.isinf(value) else f"{value:,.{digits}f}"


def _ratio(value: float | None, own: float | None) -> str:
    if value is None or not own or math.isnan(value):
        return ""
    return "" if math.isinf(value) else f"{value / own:.2g}" if value / own < 10 else f"{value / own:,.0f}"


def _finite(value: float) -> float | None:
    """JSON has no word for never."""
    return value if math.isfinite(value) else None
