"""The rows with engines, by name."""

from __future__ import annotations

from collections.abc import Callable

from bench.gpu.engines import beside, concurrency, ordinary, pool, single
from bench.gpu.engines.catalog import BESIDE, ENGINES, ORDINARY
from bench.gpu.engines.scenes import row
from bench.gpu.lab import Lab
from bench.gpu.report import Row

PREFIX = "engines"
# Seconds after which a row is given up. A start takes up to 40 s; on the stock driver they come one after the other.
_SINGLE, _PAIR, _SWEEP, _CONCURRENCY = 240.0, 300.0, 330.0, 540.0


def _rows() -> dict[str, Callable[[Lab], list[Row]]]:
    found = {f"{PREFIX}.{name}": row((name,), _SINGLE, single.measured(name)) for name in ENGINES}
    for names in BESIDE:
        found[f"{PREFIX}.{names[0]}-beside-{names[1]}"] = row(names, _PAIR, beside.measured(names))
    for names in ORDINARY:
        found[f"{PREFIX}.{names[0]}-and-{names[1]}"] = row(names, _PAIR, ordinary.measured(names))
    found[f"{PREFIX}.pool"] = row(("vllm",), _PAIR, pool.measured("vllm"))
    for mode in ("Graph", "Eager"):
        found[f"{PREFIX}.concurrency-{mode.lower()}"] = row(("vllm",), _CONCURRENCY, concurrency.measured(mode))
    for names in BESIDE:
        found[f"{PREFIX}.sweep-{names[0]}-beside-{names[1]}"] = row(names, _SWEEP, beside.swept(names))
    return found


ROWS = _rows()


def chosen(name: str) -> list[str]:
    """`engines` is all of them but the sweeps, which take minutes each; `engines.sweep` is the sweeps."""
    if name == PREFIX:
        return [row for row in ROWS if not row.startswith(f"{PREFIX}.sweep-")]
    if name == f"{PREFIX}.sweep":
        return [row for row in ROWS if row.startswith(f"{PREFIX}.sweep-")]
    return [name]
