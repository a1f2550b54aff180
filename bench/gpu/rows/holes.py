"""Ways around a quota: memory by export, import, pools and graphs of honest programs; time by half a registration."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.gpu import words
from bench.gpu.children import Child, ChildError, answer
from bench.gpu.grounds import Node
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.rows.memory import _full, _used
from bench.gpu.stage import Actor, Load, Stage, window
from bench.gpu.words import Ask

FOLDER = Path(__file__).parents[1] / "workloads"
WAYS = (
    *("export-import", "export-hold", "dma-buf", "many-pools", "managed-pools", "managed-default-pool"),
    *("child-graph", "cloned-graph", "heap", "two-processes", "two-processes-ipc", "borrow"),
)
SHARED = ("once", "lend")  # what must be granted
CAP = 10  # percent
_GIB = 1 << 30
_AT_ONCE = 5  # probes; each has a context, and some have two
_TOLERANCE = 1.01


def measure(lab: Lab) -> list[Row]:
    quota = _GIB if lab.simulate else 4 * _GIB
    found: dict[str, dict[str, Any]] = {}
    cases = [*SHARED, *reversed(WAYS)]  # who lends, and who borrows, at the same time
    with lab.node() as node:
        for at in range(0, len(cases), _AT_ONCE):
            with lab.stage(node) as stage:
                found |= _attempt(lab, node, stage, cases[at : at + _AT_ONCE], quota)
    bad = [case for case in WAYS if found[case].get("granted", 0) > _TOLERANCE * quota or "error" in found[case]]
    bad += [case for case in SHARED if not found[case].get("granted") and not lab.simulate]  # the stand-in cannot
    rows = [
        Row(
            what="memory: ways around the quota that end within it; shared memory counts once",
            must="all",
            measured=f"{len(found) - len(bad)} of {len(found)}" + (f"; not: {', '.join(bad)}" if bad else ""),
            ok=not bad,
            stock="none",
            numbers={"quota": quota, "cases": found},
        )
    ]
    return [*rows, _half(lab)]


def _attempt(lab: Lab, node: Node, stage: Stage, cases: list[str], quota: int) -> dict[str, dict[str, Any]]:
    """Each in a tenant of its own; a line for each."""
    probes: dict[str, Child] = {}
    for case in cases:
        command = [sys.executable, str(FOLDER / "holes.py"), case, str(quota), str(stage.folder / f"{case}.stop")]
        probes[case] = stage.child(Ask(name=case, core=5, memory=f"{quota >> 20}MiB"), command)
    found = {case: _full(child) for case, child in probes.items()}
    time.sleep(1.5)  # the daemon's own look at NVML
    used, ledger = _used(lab), _ledger(node)
    for case, child in probes.items():
        result = found[case]
        result |= {"driver_says": used.get(child.pid), "ledger": ledger.get(case)}
        lab.say(
            f"{case}: granted {_gib(result.get('granted'))} of {_gib(quota)} GiB, ledger {_gib(ledger.get(case))}, "
            f"driver {_gib(used.get(child.pid))} (all: {sum(used.values()) / _GIB:.1f}): "
            f"{result.get('refusal', result.get('error', ''))[:110]}"
        )
        (stage.folder / f"{case}.stop").touch()
    return found


def _ledger(node: Node) -> dict[str, int]:
    """Bytes that the daemon has on the books of each tenant."""
    found: dict[str, int] = {}
    for tenant in json.loads(answer(words.standings(), node.env)).get("tenants", []):
        found[tenant["name"]] = sum(card["memory_used_bytes"] for card in tenant["cards"])
    return found


def _gib(number: int | None) -> str:
    return "-" if number is None else f"{number / _GIB:.2f}"


def _half(lab: Lab) -> Row:
    """A program that keeps its context to itself: nothing can hold it, so somebody must hear of it."""
    with lab.node("fixed-share") as node, lab.stage(node) as stage:
        honest = stage.load(Ask(name="honest", core=50), "1ms")
        hidden = Load("hidden", stage.folder, "1ms")
        flags = ["--kernel", "1ms", "-o", "json", *hidden.flags()]
        hidden.child = stage.child(Ask(name="hidden", core=CAP), [sys.executable, str(FOLDER / "half.py"), *flags])
        actors: list[Actor] = [honest, hidden]
        stage.ready(*actors)
        for actor in actors:
            actor.start()
        deadline = time.monotonic() + 15
        said: list[str] = []
        while not said and time.monotonic() < deadline:
            time.sleep(0.5)
            said = _findings(node)
        share = hidden.share(window(min(2.0, lab.seconds)))
    lab.say(f"half a registration: {100 * share:.1f}% of the card with a cap of {CAP}%; {said or 'no finding'}")
    return Row(
        what="half a registration: reported",
        must="a finding",
        measured=f"{'a finding' if said else 'none'}; {100 * share:.1f}% of the card with a cap of {CAP}%",
        ok=bool(said),
        numbers={"share": share, "findings": said},
    )


def _findings(node: Node) -> list[str]:
    try:
        found = json.loads(answer(words.standings(), node.env)).get("findings", [])
    except ChildError:
        return []
    return [str(finding.get("text", ""))[:160] for finding in found if finding.get("kind") == "unregistered"]
