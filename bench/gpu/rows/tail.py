"""Three offline tenants beside an online one, 20 times: the tail of each run, and what the daemon did meanwhile.

One run is a server's window with all three policies in turn. Each slow request is named with the steps that overlap it:
orders (Pause, Resume, SetSlice), the loop's rounds, its checks of slices, and what the threads of meter and audit ask
of NVML. 20 runs take less than 200 s on one H200; `--seconds` 2 or more is 2 for each policy.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.gpu.grounds import Node
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.rows.several_offline import CAST, KERNEL, MOST_ADDED_US, PERIOD, POLICIES, SETTLE_SECONDS
from bench.gpu.stage import Stage
from bench.gpu.words import Ask

RUNS = 20
MOST_SECONDS = 2.0  # with each policy
MOST_TOTAL = 190.0  # seconds, after which no further run is begun
_CLOSE = 0.0005  # seconds before a request: what ended then may have left the card as it was found


class Step(NamedTuple):
    """A line of the daemon's log of steps (services/runtime/cards/trace.py)."""

    what: str
    whose: str
    began: float
    ended: float


def measure(lab: Lab) -> list[Row]:
    """See the head of the file."""
    alone = lab.alone_latency(KERNEL, PERIOD)
    log = lab.folder / "steps"
    began, runs = time.monotonic(), list[dict[str, Any]]()
    variables = {"ALIQUOT_STEP_LOG": str(log)}
    with lab.node(POLICIES[0], release_delay="0", variables=variables) as node, lab.stage(node) as stage:
        _start_offline(stage)
        while len(runs) < RUNS and time.monotonic() - began < MOST_TOTAL:
            runs.append(_run(lab, node, stage, len(runs), alone["p99"], log))
            lab.say(_line(runs[-1]))
    return [_row(runs, alone, read_steps(log))]


def _start_offline(stage: Stage) -> None:
    loads = [
        stage.load(Ask(name=f"offline-{at}", app_class="offline", core=quota), kernel)
        for at, (kernel, quota) in enumerate(CAST)
    ]
    stage.ready(*loads)
    for load in loads:
        load.start()


def _run(lab: Lab, node: Node, stage: Stage, number: int, alone: float, log: Path) -> dict[str, Any]:
    seconds = min(lab.seconds, MOST_SECONDS)
    ask = Ask(name=f"online-{number}", app_class="online", core=1)
    server = stage.server(ask, KERNEL, PERIOD, len(POLICIES) * seconds)
    stage.ready(server)
    begin = time.monotonic() + SETTLE_SECONDS
    server.start(begin)
    for at, policy in enumerate(POLICIES):
        time.sleep(max(0.0, begin + at * seconds - time.monotonic() - (SETTLE_SECONDS if at == 0 else 0.0)))
        node.set_policy(policy)
    result = server.result(len(POLICIES) * seconds + 30)
    steps = read_steps(log)
    slow = [
        {
            **request,
            "policy": POLICIES[min(len(POLICIES) - 1, max(0, int((request["begin"] - begin) / seconds)))],
            "steps": overlapping(steps, request["begin"], request["us"]),
        }
        for request in result["slowest"]
    ]
    latency = result["latency_us"]
    added = round(latency["p99"] - alone, 1)
    return {"run": number, "added_p99_us": added, "max_us": latency["max"], "slowest": slow}


def read_steps(log: Path) -> list[Step]:
    """All that are written; the last line may be half."""
    if not log.exists():
        return []
    text = log.read_text()
    return [Step(*json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]


def overlapping(steps: Iterable[Step], begin: float, micros: float) -> list[dict[str, Any]]:
    """The steps that were under way during the request, or had just ended: how long after its beginning each began, and
    how long it took."""
    end = begin + micros * 1e-6
    return [
        {
            "step": step.what,
            "whose": step.whose,
            "after_us": round(1e6 * (step.began - begin)),
            "took_us": round(1e6 * (step.ended - step.began)),
        }
        for step in steps
        if step.began < end and step.ended > begin - _CLOSE
    ]


def step_times(steps: Sequence[Step]) -> dict[str, dict[str, float]]:
    """By kind: how many, and how long they took, in microseconds."""
    kinds: dict[str, list[float]] = {}
    for step in steps:
        kinds.setdefault(step.what, []).append(1e6 * (step.ended - step.began))
    return {
        what: {
            "count": len(times),
            "p50": round(statistics.median(times)),
            "p99": round(sorted(times)[int(0.99 * (len(times) - 1))]),
            "max": round(max(times)),
        }
        for what, times in sorted(kinds.items())
    }


def _line(run: Mapping[str, Any]) -> str:
    worst = run["slowest"][0]
    steps = ", ".join(f"{step['step']} {step['took_us']} us" for step in worst["steps"]) or "no step of the daemon"
    return (
        f"run {run['run']}: added p99 {run['added_p99_us']:.0f} us; slowest {worst['us']:.0f} us ({worst['policy']}; "
        f"launch {worst['launch_us']:.0f}, processor {worst['processor_us']:.0f}, "
        f"displaced {worst['displaced']} times): {steps}"
    )


def _row(runs: Sequence[Mapping[str, Any]], alone: Mapping[str, Any], steps: Sequence[Step]) -> Row:
    tails = [float(run["added_p99_us"]) for run in runs]
    good = sum(tail <= MOST_ADDED_US for tail in tails)
    return Row(
        what=f"three offline tenants beside an online one, {RUNS} runs: online's added p99",
        must=f"<= {MOST_ADDED_US:.0f} us in {RUNS} of {RUNS}",
        measured=f"{good} of {len(runs)}; {min(tails, default=0.0):.0f} to {max(tails, default=0.0):.0f} us",
        ok=good == RUNS,
        numbers={"alone": dict(alone), "runs": list(runs), "steps_us": step_times(steps)},
    )
