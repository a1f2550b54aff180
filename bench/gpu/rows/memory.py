"""A quota of memory, and fourteen ways to ask the driver for more: each in a tenant of its own, until it is refused."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.gpu.children import Child, ChildError
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import Stage
from bench.gpu.words import Ask

PROBE = Path(__file__).parents[1] / "workloads" / "memory.py"
DRIVER = ("alloc", "pitch", "managed", "async", "pool", "vmm", "graph", "array", "pair")
FRAMEWORKS = {  # case: the module it needs, and its environment
    "torch": ("torch", {}),
    "torch-async": ("torch", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    "torch-expandable": ("torch", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "jax": ("jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".99"}),
    "cupy": ("cupy", {}),
}
# A framework that keeps a reserve of its own refuses before the quota does; past it no program may come.
RESERVE = {"jax": 0.15}
TOLERANCE = 0.01
_MIB, _GIB = 1 << 20, 1 << 30
_SECONDS = 90.0
_MOST_OVERHEAD = _GIB  # of one process: context, code, and a framework's own libraries


def measure(lab: Lab) -> list[Row]:
    quota = _GIB if lab.simulate else 4 * _GIB  # small: managed memory must never outgrow a card
    with lab.node() as node, lab.stage(node) as stage:
        probes = {case: _probe(stage, case, quota) for case in [*DRIVER, *_frameworks(lab)]}
        seen_by = _probe(stage, "seen", quota)
        found = {case: _full(child) for case, child in probes.items()}
        used = _used(lab)
        for case, child in probes.items():
            if "error" not in found[case]:
                found[case]["verdict"] = _verdict(case, found[case]["granted"], quota, used.get(child.pid))
                if case.startswith("torch") and not found[case]["refusal"].startswith("OutOfMemoryError"):
                    found[case]["verdict"] = f"PyTorch said {found[case]['refusal'][:60]}"
                found[case]["driver_says"] = used.get(child.pid)
            (stage.folder / f"{case}.stop").touch()
        seen = _seen(seen_by, quota)
    missing = [] if lab.simulate else [case for case in FRAMEWORKS if case not in found]
    bad = [case for case, result in found.items() if result.get("verdict") != "ok"]
    for case in bad:
        lab.say(f"{case}: {found[case]}")
    wrong = [key for key, right in seen["right"].items() if not right] or ([] if seen["right"] else ["not known"])
    return [
        Row(
            what="memory: allocations past the quota refused, within 1% + context",
            must="all",
            measured=f"{len(found) - len(bad)} of {len(found)}"
            + (f"; not: {', '.join(bad)}" if bad else "")
            + (f"; not installed: {', '.join(missing)}" if missing else ""),
            ok=not bad,
            stock="none",
            numbers={"quota": quota, "cases": found, "not_installed": missing},
        ),
        Row(
            what="memory: what cuMemGetInfo, cuDeviceTotalMem, NVML, nvidia-smi show",
            must="the quota",
            measured=f"not: {', '.join(wrong)}" if wrong else "the quota",
            ok=not wrong,
            stock="the card",
            numbers=seen,
        ),
    ]


def _frameworks(lab: Lab) -> list[str]:
    if lab.simulate:  # a real runtime library refuses a driver that is not NVIDIA's
        return []
    return [case for case, (module, _) in FRAMEWORKS.items() if importlib.util.find_spec(module)]


def _probe(stage: Stage, case: str, quota: int) -> Child:
    # Through env: what the daemon starts the command with is the tenant's own environment.
    settings = [f"{key}={value}" for key, value in FRAMEWORKS.get(case, ("", {}))[1].items()]
    stop = str(stage.folder / f"{case}.stop")
    command = ["env", *settings, sys.executable, str(PROBE), case, str(quota), stop]
    return stage.child(Ask(name=case, core=5, memory=f"{quota // _MIB}MiB"), command)


def _full(child: Child) -> dict[str, Any]:
    """What it was granted before it was refused."""
    try:
        child.wait_for("FULL", _SECONDS)
        line = next(line for line in child.printed().splitlines() if line.startswith("FULL"))
        _, granted, *reason = line.split(maxsplit=2)
        return {"granted": int(granted), "refusal": " ".join(reason)[:200]}
    except (ChildError, ValueError, StopIteration) as error:
        return {"error": str(error)[:400]}


def _used(lab: Lab) -> dict[int, int]:
    """Bytes by pid, as the driver itself counts them."""
    program = shutil.which("nvidia-smi")
    if lab.simulate or program is None:
        return {}
    query = [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    listed = subprocess.run(query, env=lab.env, capture_output=True, text=True, timeout=30, check=False).stdout
    used: dict[int, int] = {}
    for line in listed.splitlines():
        with contextlib.suppress(ValueError):
            pid, mib = line.split(",")
            used[int(pid)] = int(mib) * _MIB
    return used


def _verdict(case: str, granted: int, quota: int, used: int | None) -> str:
    """`used` is what the driver counts for the process: what is not granted of it is the context's overhead."""
    if used is None:
        overhead = (2 if case == "pair" else 1) * _MOST_OVERHEAD
    elif case == "managed":  # it was not touched, so none of it is on the card
        overhead = used
    else:
        overhead = max(0, used - granted)
    if granted > (1 + TOLERANCE) * quota:
        return f"granted {granted / _MIB:.0f} MiB of {quota / _MIB:.0f}"
    if overhead > 2 * _MOST_OVERHEAD:
        return f"holds {overhead / _MIB:.0f} MiB more than it was granted"
    if granted < (1 - TOLERANCE - RESERVE.get(case, 0.0)) * quota - overhead:
        return f"refused at {granted / _MIB:.0f} MiB of {quota / _MIB:.0f}, overhead {overhead / _MIB:.0f}"
    return "ok"


def _seen(child: Child, quota: int) -> dict[str, Any]:
    try:
        totals = child.result(_SECONDS)
    except ChildError as error:
        return {"right": {}, "error": str(error)}
    right = {key: abs(total - quota) <= TOLERANCE * quota for key, total in totals.items() if total is not None}
    return {"right": right, "totals": totals, "quota": quota}
