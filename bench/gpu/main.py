"""The bench from the command line: which rows, the table, and the exit code."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bench.gpu import health, report
from bench.gpu.children import ChildError
from bench.gpu.engines import rows as engines
from bench.gpu.kernellog import xids
from bench.gpu.lab import Lab
from bench.gpu.parking import crowds, moves
from bench.gpu.report import Row
from bench.gpu.rows import (
    busy_online,
    calls,
    cap,
    chaos,
    classes,
    eight,
    holes,
    idle_online,
    llm,
    memory,
    preemption,
    several_offline,
    shares,
    shim_cost,
    short_queues,
    tail,
    timeline,
    together,
    torch_mix,
    two_online,
)

# In the order of the table. Chaos comes last: whatever it breaks, the rest is measured.
ROWS: dict[str, Callable[[Lab], list[Row]]] = {
    "preemption": preemption.measure,
    "timeline": timeline.measure,
    "torch": torch_mix.measure,
    "busy-online": busy_online.measure,
    "idle-online": idle_online.measure,
    "shares": shares.measure,
    "cap": cap.measure,
    "eight": eight.measure,
    "shim-cost": shim_cost.measure,
    "memory": memory.measure,
    "holes": holes.measure,
    "two-online": two_online.measure,
    "several-offline": several_offline.measure,
    "classes": classes.measure,
    "chaos": chaos.measure,
}
EXTRA: dict[str, Callable[[Lab], list[Row]]] = {
    "llm": llm.measure,
    "short-queues": short_queues.measure,
    "tail": tail.measure,
    "park-move": moves.move,
    "park-wake": moves.wake,
    "park-online": crowds.online,
    "park-crowd": crowds.crowd,
    "park-turns": crowds.turns,
    "park-cost": moves.cost,
    "park-allocators": moves.allocators,
    "park-kills": crowds.kills,
    "park-checkpoint": moves.checkpoint,
    "together": together.measure,
    "calls": calls.measure,
    **engines.ROWS,
}  # by name only: the default run stays short
RISKY = frozenset({"memory", "holes", "chaos", "torch"})


def main(about: str | None) -> int:
    """Measure, print, write; 0 when every row that was measured holds."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME,...", help="these rows alone")
    parser.add_argument("--list", action="store_true", help="the names of the rows")
    parser.add_argument("--seconds", type=float, default=4.0, help="one measured window (default 4)")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds after which no further row is begun")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where gpu.json and timeline.svg go")
    parser.add_argument(
        "--simulate", nargs="?", const="1x24GiB", metavar="CARDSxSIZE", help="on simulated cards (default 1x24GiB)"
    )
    parser.add_argument(
        "--engines",
        type=Path,
        default=Path("out/engines"),
        metavar="FOLDER",
        help="vLLM, llama.cpp: docs/performance.md",
    )
    parser.add_argument(
        "--grounds", default="", metavar="stock,mps", help="rows of engines: measured there as well, in twice the time"
    )
    options = parser.parse_args()
    if options.list:
        print("\n".join([*ROWS, *EXTRA]))
        return 0
    names = [row for name in options.only.split(",") for row in engines.chosen(name)] if options.only else list(ROWS)
    if unknown := sorted(set(names) - set(ROWS | EXTRA)):
        parser.error(f"--only: {', '.join(unknown)}: unknown; there are engines, {', '.join(ROWS | EXTRA)}")
    if not 0.2 <= options.seconds <= 60:
        parser.error("--seconds: from 0.2 to 60")
    if unknown := sorted(set(filter(None, options.grounds.split(","))) - {"stock", "mps"}):
        parser.error(f"--grounds: {', '.join(unknown)}: unknown; there are stock, mps")
    options.out.mkdir(parents=True, exist_ok=True)
    # One that `timeout` ends takes its daemon and tenants with it: they would disturb the next measurement.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    lab = Lab(options.out, options.seconds, options.simulate)
    lab.engines, lab.grounds = options.engines.resolve(), tuple(filter(None, options.grounds.split(",")))
    try:
        lab.open()
        rows = _measure(lab, names, options.limit)
    except ChildError as error:  # before any row: there is no card, or no daemon
        print(f"bench: {error}", file=sys.stderr)
        return 2
    finally:
        lab.close()
    print(report.render(rows))
    print(f"\n{options.out / 'gpu.json'}")
    return 0 if all(row.ok is not False for row in rows) else 1


def _measure(lab: Lab, names: list[str], limit: float) -> list[Row]:
    """Row by row; one that fails is a row that was missed, and the next is measured all the same."""
    about, rows, seconds = report.machine(lab.simulate), [], {}
    started, before = time.monotonic(), xids()
    for name in names:
        began = time.monotonic()
        if began - started > limit:
            rows.append(Row(what=name, must="", measured=f"not begun: {limit:.0f} s were over", ok=False))
            continue
        print(f"{began - started:5.0f} s  {name}", file=sys.stderr, flush=True)
        try:
            found = (ROWS | EXTRA)[name](lab)
        except Exception as error:  # of whatever kind: it belongs into the table, not in its place
            found = [_failed(name, error)]
        if name in RISKY:
            found += _unwell(lab, name, before)
        rows += found
        for row in found:
            lab.say(f"{ {True: 'ok', False: 'MISSED', None: '-'}[row.ok] }: {row.what}: {row.measured} ({row.must})")
        seconds[name] = round(time.monotonic() - began, 1)
        report.write(lab.out / "gpu.json", {**about, "alone": lab.baselines()}, rows, seconds)
    return rows


def _failed(name: str, error: Exception) -> Row:
    lines = str(error).strip().splitlines() or [""]
    last = lines[0] if len(lines) == 1 else f"{lines[0][:60]} ... {lines[-1]}"
    whole = "".join(traceback.format_exception(error))
    return Row(what=name, must="", measured=f"failed: {last}", ok=False, numbers={"error": whole})


def _unwell(lab: Lab, name: str, before: int | None) -> list[Row]:
    """A row only when the card is not well after it."""
    after = health.examine(lab)
    if after.works and (before is None or after.xids is None or after.xids == before + lab.xids_of_mps):
        return []
    return [Row(what=f"the card after {name}", must="well", measured=str(asdict(after))[:200], ok=False)]
