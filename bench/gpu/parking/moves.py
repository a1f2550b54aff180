"""One program whose memory leaves the card and comes back: how fast, how soon it works, what it costs otherwise."""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from typing import Any

from bench.gpu.children import ChildError
from bench.gpu.lab import Lab
from bench.gpu.parking.program import WORKLOAD, Crowd, Program, begin, crowded, gib, on_stock, quota, until
from bench.gpu.report import Row
from bench.gpu.words import Ask

MOVED_GIB, LEAST_WARM, LEAST_COLD = 32, 40.0, 15.0
WOKEN_GIB, MOST_P50, MOST_P99, WAKINGS = 12, 0.6, 1.2, 20
LEAST_COST = 0.99
CHECKPOINT_GIB = 16


def _rounds(crowd: Crowd, program: Program, rounds: int) -> dict[str, list[float]]:
    """Out and back, in GB/s by the shim's own clock; and seconds as they pass outside."""
    found: dict[str, list[float]] = {"out": [], "back": [], "away": []}
    for _ in range(rounds):
        program.hold()
        began = time.monotonic()
        refused = crowd.park(program.name)
        if refused:
            raise ChildError(refused)
        found["away"].append(time.monotonic() - began)
        there = crowd.residency(program.name)
        found["out"].append(there["parked_bytes"] / max(1e-9, there["last_out_seconds"]) / 1e9)
        program.go()
        until(lambda: crowd.residency(program.name)["parked_bytes"] == 0, 60, "all of it is back")
        back = crowd.residency(program.name)["last_in_seconds"] or 1e-9
        found["back"].append(there["parked_bytes"] / back / 1e9)
    return found


def move(lab: Lab) -> list[Row]:
    size = gib(lab, MOVED_GIB)
    with crowded(lab, 40) as crowd:  # cold: the pool has no memory until the first tenant comes
        program = crowd.sleeper("cold", size)
        program.ready()
        cold = _rounds(crowd, program, 1)
        crowd.warm()
        warm = _rounds(crowd, program, 5 if lab.simulate is None else 2)
        ended = program.finish()
    cold_out = size * 2**30 / cold["away"][0] / 1e9
    out, back = statistics.median(warm["out"]), statistics.median(warm["back"])
    return [
        Row(
            what=f"{size} GiB out; back; warm pool",
            must=f">= {LEAST_WARM:g} GB/s; >= {LEAST_WARM:g} GB/s; nothing wrong",
            measured=f"{out:.1f}; {back:.1f} GB/s; {ended['wrong']} wrong",
            ok=min(out, back) >= LEAST_WARM and not ended["wrong"],
            numbers={"warm": warm, "ended": ended},
        ),
        Row(
            what=f"{size} GiB out; back; pool not warmed up, out by the clock on the wall",
            must=f">= {LEAST_COLD:g} GB/s",
            measured=f"{cold_out:.1f}; {cold['back'][0]:.1f} GB/s",
            ok=min(cold_out, cold["back"][0]) >= LEAST_COLD,
            numbers={"cold": cold},
        ),
    ]


def wake(lab: Lab) -> list[Row]:
    size, rounds = gib(lab, WOKEN_GIB), WAKINGS if lab.simulate is None else 2
    with crowded(lab, 16) as crowd:
        program = crowd.sleeper("sleeper", size)
        program.ready()
        crowd.warm()
        _rounds(crowd, program, rounds)
        ended = program.finish()
    woken = sorted(ended["woken"])
    p50, worst = statistics.median(woken), woken[min(len(woken) - 1, int(0.99 * len(woken)))]
    return [
        Row(
            what=f"first kernel of a parked tenant of {size} GiB: p50; p99 of {rounds}",
            must=f"<= {MOST_P50} s; <= {MOST_P99} s; nothing wrong",
            measured=f"{p50:.3f} s; {worst:.3f} s; {ended['wrong']} wrong",
            ok=p50 <= MOST_P50 and worst <= MOST_P99 and not ended["wrong"],
            numbers=ended,
        )
    ]


def cost(lab: Lab) -> list[Row]:
    """Offline work on a card that may be oversubscribed, and on one that may not."""
    size, seconds = gib(lab, 8), max(2.0, 2 * lab.seconds)
    rates: dict[float, list[float]] = {1.0: [], 2.0: []}
    for factor in (1.0, 2.0) * (3 if lab.simulate is None else 1):
        with crowded(lab, 16, factor) as crowd:
            program = crowd.begin("alone", size)
            program.ready()
            time.sleep(1.0)
            began = time.monotonic()
            time.sleep(seconds)
            rates[factor].append(program.rate(began, time.monotonic()))
            program.finish()
    fixed, parkable = statistics.median(rates[1.0]), statistics.median(rates[2.0])
    return [
        Row(
            what=f"parkable tenant of {size} GiB alone, over one that is not",
            must=f">= {LEAST_COST}",
            measured=f"{parkable / fixed:.3f} ({parkable:.2f}, {fixed:.2f} steps/s)" if fixed else "no step",
            ok=bool(fixed) and parkable / fixed >= LEAST_COST,
            numbers={"steps_per_second": {str(factor): found for factor, found in rates.items()}},
        )
    ]


ALLOCATORS: dict[str, tuple[tuple[str, ...], str]] = {
    "native": ((), ""),
    "expandable_segments": ((), "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    "cudaMallocAsync": (("--churn",), "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync"),
    "CUDA graph": (("--graph",), ""),
    "Triton": (("--triton",), ""),
}


def allocators(lab: Lab) -> list[Row]:
    """Each is moved and right afterwards, or refused with a reason; and a tenant of two processes."""
    size = gib(lab, WOKEN_GIB)
    names = list(ALLOCATORS) if lab.simulate is None else ["native", "CUDA graph"]
    rows = []
    with crowded(lab, 40) as crowd:
        crowd.warm()
        for at, name in enumerate(names):
            more, env = ALLOCATORS[name]
            try:
                program = crowd.sleeper(f"a{at}", size, *more, env=env)
                program.ready()
                rows.append(_allocator(crowd, name, program))
            except ChildError as error:
                rows.append(Row(what=f"{name}: moved", must="right, or a reason", measured=str(error), ok=False))
        rows.append(_two_processes(crowd, size))
    return rows


def _allocator(crowd: Crowd, name: str, program: Program) -> Row:
    program.hold()
    refused = crowd.park(program.name)
    there = crowd.residency(program.name)
    program.go()
    ended = program.finish()
    speed = there["parked_bytes"] / there["last_out_seconds"] / 1e9 if there.get("last_out_seconds") else 0.0
    found = f"refused: {refused}" if refused else f"{there['parked_bytes'] >> 20} MiB at {speed:.1f} GB/s"
    return Row(
        what=f"{name}: moved",
        must="right, or a reason",
        measured=f"{found}; {ended['wrong']} of {ended['pieces']} wrong",
        ok=not ended["wrong"] and (bool(refused) or there["parked_bytes"] > 0),
        numbers={"refused": refused, "residency": there, "ended": ended},
    )


def _two_processes(crowd: Crowd, size: int) -> Row:
    """Both in one tenant: a shell starts them."""
    ask = Ask(name="two", core=0, memory=quota(crowd.lab, size, 6), park="600s")
    flags = "" if crowd.lab.simulate is None else "--plain"
    line = " & ".join(f"{sys.executable} {WORKLOAD} {crowd.stage.folder} two-{at} {size / 2} {flags}" for at in (0, 1))
    child = crowd.stage.child(ask, ["sh", "-c", f"{line} & wait"])
    both = [Program(f"two-{at}", crowd.stage.folder, child) for at in (0, 1)]
    until(lambda: all(program.steps() for program in both), 180, "both work")
    for program in both:
        (program.folder / f"{program.name}.hold").touch()
    time.sleep(1.0)
    refused = crowd.park("two")
    there: dict[str, Any] = crowd.residency("two")
    for program in both:
        (program.folder / f"{program.name}.hold").unlink()
        program.stop()
    code = child.exit_code(120)
    wrong = [line.split('"wrong": ')[1].split(",")[0] for line in child.printed().splitlines() if '"wrong": ' in line]
    return Row(
        what="two processes in a tenant: moved",
        must="right, or a reason",
        measured=f"{refused or there.get('parked_bytes', 0) >> 20} MiB; wrong: {', '.join(wrong)}",
        ok=wrong == ["0", "0"] and (bool(refused) or there.get("parked_bytes", 0) > 0),
        numbers={"refused": refused, "residency": there, "code": code},
    )


def checkpoint(lab: Lab) -> list[Row]:
    """The driver's own way, for comparison: from another process of the same user, on the stock driver."""
    what = f"driver's checkpoint of {CHECKPOINT_GIB} GiB: out; back"
    if lab.simulate is not None:
        return [Row(what=what, must="for comparison", measured="simulated cards have none", ok=None)]
    with on_stock(lab) as stage:
        program = begin(lab, stage, Ask(name="stock"), CHECKPOINT_GIB)
        program.ready()
        program.hold()
        cuda, pid = ctypes.CDLL("libcuda.so.1"), program.child.pid
        cuda.cuInit(0)
        lock = (ctypes.c_uint * 16)(20_000)  # milliseconds
        took = {}
        for name, argument in (("Lock", ctypes.byref(lock)), ("Checkpoint", None), ("Restore", None), ("Unlock", None)):
            began = time.monotonic()
            code = getattr(cuda, f"cuCheckpointProcess{name}")(pid, argument)
            took[name] = time.monotonic() - began
            if code:
                raise ChildError(f"cuCheckpointProcess{name}: error {code}")
        program.go()
        ended = program.finish()
    speeds = [CHECKPOINT_GIB * 2**30 / took[name] / 1e9 for name in ("Checkpoint", "Restore")]
    return [
        Row(
            what=what,
            must="for comparison",
            measured=f"{speeds[0]:.1f}; {speeds[1]:.1f} GB/s; {ended['wrong']} wrong",
            ok=None,
            numbers={"seconds": took, "ended": ended},
        )
    ]
