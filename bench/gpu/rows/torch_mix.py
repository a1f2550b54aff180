"""PyTorch: ResNet-50 inference (one CUDA graph, 25 requests a second) beside the training of a transformer.

PyTorch takes longer to start than to measure: each process is started once per ground, and they run and idle by turns.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

from bench.gpu.children import ChildError
from bench.gpu.grounds import Ground
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import Stage, Window, window
from bench.gpu.words import Ask

WORKLOADS = Path(__file__).parents[1] / "workloads"
MOST_P99, LEAST_TRAINING, MOST_P99_HELD, LEAST_SHIM = 1.35, 0.97, 1.10, 0.995
ONLINE, OFFLINE = "resnet.py", "transformer.py"
_START_SECONDS = 75.0
_TURNS, _TURN_SECONDS = 6, 1.5  # of training with and without the shim


class Workload:
    """One PyTorch process that runs and idles as it is told."""

    def __init__(self, stage: Stage, ground: Ground, script: str, app_class: str, memory: str) -> None:
        name = f"{ground.name}-{Path(script).stem}"
        self._control, self._samples = stage.folder / f"{name}.control", stage.folder / f"{name}.samples"
        command = [sys.executable, str(WORKLOADS / script), str(self._control), str(self._samples)]
        ask = Ask(name=name, app_class=app_class, core=40, memory=memory)
        self.child = stage.child(ask, command, ground)

    def ready(self) -> None:
        self.child.wait_for("READY", _START_SECONDS)

    def say(self, word: str) -> None:
        unseen = self._control.with_suffix(".tmp")
        unseen.write_text(word)
        unseen.rename(self._control)

    def samples(self, over: Window) -> list[tuple[float, float]]:
        """What began in the window: when, and how long it took."""
        lines = (line.split() for line in self._samples.read_text().splitlines())
        whole = [(float(line[0]), float(line[1])) for line in lines if len(line) == 2]
        return [sample for sample in whole if over.begin <= sample[0] < over.end]

    def latency_ms(self, over: Window) -> dict[str, float]:
        took = sorted(1000 * latency for _, latency in self.samples(over))
        picked = {
            name: took[math.ceil(part * len(took)) - 1] for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        }
        return {"requests": len(took), **{name: round(value, 3) for name, value in picked.items()}}

    def rate(self, over: Window) -> float:
        """Turns per second, from the first to the last that began in the window; 0 where it stood still."""
        began = [moment for moment, _ in self.samples(over)]
        return (len(began) - 1) / (began[-1] - began[0]) if len(began) > 1 else 0.0


def measure(lab: Lab) -> list[Row]:
    if lab.simulate or not importlib.util.find_spec("torchvision"):
        why = "PyTorch needs a real card" if lab.simulate else "torchvision is not installed"
        return [Row(what="ResNet-50 beside training", must="", measured=why, ok=None)]
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(lab.node(release_delay="0"))
        stage = stack.enter_context(lab.stage(node))
        both: list[Ground] = [lab.stock, node]
        trainings = {ground.name: Workload(stage, ground, OFFLINE, "offline", "48GiB") for ground in both}
        for training in trainings.values():
            training.ready()
        cost = _shim_cost(trainings["stock"], trainings["aliquot"])
        lab.say(f"training alone, steps/s: {cost}")

        mps = stack.enter_context(lab.mps())
        if mps:
            trainings["mps"] = Workload(stage, mps, OFFLINE, "offline", "48GiB")
        everywhere = [*both, *([mps] if mps else [])]
        servers = {ground.name: Workload(stage, ground, ONLINE, "online", "8GiB") for ground in everywhere}
        for name in ("stock", "aliquot"):
            servers[name].ready()
        if mps and not _comes_up(servers["mps"], trainings["mps"]):
            lab.say("MPS: PyTorch does not come up under it")
            del servers["mps"], trainings["mps"]

        longer = 2 * lab.seconds  # 25 requests a second: a p99 needs some hundreds
        found: dict[str, Any] = {"training_alone": mean(cost["without"]), "shim_cost": cost}
        servers["stock"].say("run")
        time.sleep(0.5)
        found["alone"] = servers["stock"].latency_ms(window(longer))
        servers["stock"].say("idle")
        found["release-delay 0"] = _together(servers["aliquot"], trainings["aliquot"], longer + 2)
        node.set_release_delay("100ms")
        found["release-delay 100ms"] = _together(servers["aliquot"], trainings["aliquot"], longer + 2)
        for name in ("stock", "mps"):
            if name in servers:
                found[name] = _together(servers[name], trainings[name], longer)
        lab.say(str(found))
    return _rows(found)


def _comes_up(*workloads: Workload) -> bool:
    try:
        for workload in workloads:
            workload.ready()
    except ChildError:
        return False
    return True


def _together(server: Workload, training: Workload, seconds: float) -> dict[str, Any]:
    for process in (training, server):
        process.say("run")
    time.sleep(1.0)
    measured = window(seconds)
    time.sleep(0.3)  # a step that began in the window is written when it ends
    answer = {"online_ms": server.latency_ms(measured), "steps_per_second": training.rate(measured)}
    for process in (training, server):
        process.say("idle")
    time.sleep(0.5)
    return answer


def _shim_cost(without: Workload, with_shim: Workload) -> dict[str, list[float]]:
    """Steps per second, by turns: ABBA, so that drift hits both alike."""
    rates: dict[str, list[float]] = {"without": [], "with": []}
    for turn in range(_TURNS):
        pair = [("without", without), ("with", with_shim)]
        for key, process in pair if turn % 2 == 0 else reversed(pair):
            process.say("run")
            time.sleep(0.4)
            measured = window(_TURN_SECONDS)
            process.say("idle")
            time.sleep(0.3)
            rates[key].append(process.rate(measured))
    return rates


def _rows(found: dict[str, Any]) -> list[Row]:
    alone, training = found["alone"]["p99"], found["training_alone"]

    def ratios(name: str) -> tuple[float, float] | None:
        scene = found.get(name)
        return (scene["online_ms"]["p99"] / alone, scene["steps_per_second"] / training) if scene else None

    def text(pair: tuple[float, float] | None) -> str:
        return f"{pair[0]:.2f}; {pair[1]:.3f}" if pair else ""

    at_once, held = ratios("release-delay 0"), ratios("release-delay 100ms")
    shim = mean(found["shim_cost"]["with"]) / mean(found["shim_cost"]["without"])
    if at_once is None or held is None:
        raise LookupError("our own node was not measured")
    return [
        Row(
            what="ResNet-50 at 25/s beside training, release-delay 0: p99 / alone; training / alone",
            must="<= 1.35; >= 0.97",
            measured=text(at_once),
            ok=at_once[0] <= MOST_P99 and at_once[1] >= LEAST_TRAINING,
            stock=text(ratios("stock")),
            mps=text(ratios("mps")),
            numbers=found,
        ),
        Row(
            what="the same with release-delay 100 ms: p99 / alone",
            must="<= 1.10",
            measured=text(held),
            ok=held[0] <= MOST_P99_HELD,
            numbers={"see": "the row before"},
        ),
        Row(
            what="training with the shim / without",
            must=">= 0.995",
            measured=f"{shim:.4f}",
            ok=shim >= LEAST_SHIM,
            numbers=found["shim_cost"],
        ),
    ]
