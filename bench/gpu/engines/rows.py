"""The rows with engines, by name."""

from __future__ import annotations

from collections.abc import Callable

from bench.gpu.engines import beside, concurrency, groups, ordinary, pool, shares, single, valve
from bench.gpu.engines.catalog import BESIDE, ENGINES, GROUPS, ORDINARY, VALVE
from bench.gpu.engines.scenes import row
from bench.gpu.lab import Lab
from bench.gpu.report import Row

PREFIX = "engines"
# Seconds after which a row is given up. A start takes up to 40 s; on the stock driver they come one after the other.
_SINGLE, _PAIR, _SWEEP, _CONCURRENCY = 240.0, 300.0, 330.0, 540.0

_LONG = (f"{PREFIX}.sweep", f"{PREFIX}.valve")


def _rows() -> dict[str, Callable[[Lab], list[Row]]]:
    found = {f"{PREFIX}.{name}": row((name,), _SINGLE, single.measured(name)) for name in ENGINES}
    for names in BESIDE:
        found[f"{PREFIX}.{names[0]}-beside-{names[1]}"] = row(names, _PAIR, beside.measured(names))
    for several in ORDINARY:
        found[f"{PREFIX}.{'-and-'.join(several)}"] = row(several, _PAIR, ordinary.measured(several))
    for several, least in GROUPS:
        found[f"{PREFIX}.group-{len(several)}-{several[0]}"] = row(several, _PAIR, groups.measured(several, least))
    found[f"{PREFIX}.shares"] = row(("vllm",), _PAIR, shares.measured("vllm"))
    for names, prompt in VALVE:
        found[f"{PREFIX}.valve-{names[1]}-{prompt}"] = row(names, _SWEEP, valve.measured(names, prompt))
    found[f"{PREFIX}.pool"] = row(("vllm",), _PAIR, pool.measured("vllm"))
    for mode in ("Graph", "Eager"):
        found[f"{PREFIX}.concurrency-{mode.lower()}"] = row(("vllm",), _CONCURRENCY, concurrency.measured(mode))
    for names in BESIDE:
        found[f"{PREFIX}.sweep-{names[0]}-beside-{names[1]}"] = row(names, _SWEEP, beside.swept(names))
    return found


ROWS = _rows()


def chosen(name: str) -> list[str]:
    """`engines` leaves out what takes minutes each: `engines.sweep` and `engines.valve` name all of their kind."""
    if name == PREFIX:
        return [row for row in ROWS if not row.startswith(tuple(f"{kind}-" for kind in _LONG))]
    if name in _LONG:
        return [row for row in ROWS if row.startswith(f"{name}-")]
    return [name]
