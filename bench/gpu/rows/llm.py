"""A language model that answers requests beside training: what each release delay costs tokens and training.

The node's own processes are measured alone too, while the other idles: PyTorch takes longer to start than to measure.
"""

from __future__ import annotations

import importlib.util
import math
import time
from typing import Any

from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.rows.torch_mix import OFFLINE, Workload
from bench.gpu.stage import Stage, Window, window

MOST_TOKEN, MOST_FIRST_MS, LEAST_TRAINING = 1.10, 0.5, 0.97
TOKENS = 24
SECONDS = 6.0
# release delay, requests per second, tokens of an answer
SCENES = (
    ("0", 6, TOKENS),
    ("5ms", 6, TOKENS),
    ("100ms", 6, TOKENS),
    ("auto", 6, TOKENS),
    ("auto", 1, TOKENS),
    ("auto", 20, TOKENS),
    ("auto", 25, 1),
    ("auto", 5, 1),
    ("auto", 100, 1),  # a step of the load: 5 to 100
)
_SETTLE = 2.0


class Model(Workload):
    """The server; it writes two kinds of samples."""

    def firsts(self, over: Window) -> dict[str, float]:
        return self.latency_ms(over)

    def tokens(self, over: Window) -> dict[str, float] | None:
        lines = self._samples.with_name(self._samples.name + ".tokens").read_text().splitlines()
        whole = [(float(line[0]), 1000 * float(line[1])) for line in map(str.split, lines) if len(line) == 2]
        took = sorted(took for began, took in whole if over.begin <= began < over.end)
        if not took:
            return None
        return {name: round(took[math.ceil(part * len(took)) - 1], 3) for name, part in (("p50", 0.5), ("p99", 0.99))}


def measure(lab: Lab) -> list[Row]:
    if lab.simulate or not importlib.util.find_spec("torch"):
        why = "PyTorch needs a real card" if lab.simulate else "PyTorch is not installed"
        return [Row(what="a language model beside training", must="", measured=why, ok=None)]
    with lab.node(release_delay="0") as node, lab.stage(node) as stage:
        training, model = _started(stage)
        alone = _alone(model, training)
        lab.say(f"alone: {alone}")
        training.say("run")
        scenes = []
        for delay, rate, tokens in SCENES:
            node.set_release_delay(delay)
            model.say(f"run {rate} {tokens}")
            time.sleep(_SETTLE)
            measured = window(SECONDS if rate > 1 else 2 * SECONDS)
            time.sleep(0.3)  # what began in the window is written when it ends
            scenes.append({"delay": delay, "rate": rate, "tokens": tokens} | _judged(model, training, measured, alone))
            lab.say(str(scenes[-1]))
    return [_row(scene, alone) for scene in scenes]


def _started(stage: Stage) -> tuple[Workload, Model]:
    training = Workload(stage, stage.ground, OFFLINE, "offline", "48GiB")
    model = Model(stage, stage.ground, "llm.py", "online", "12GiB")
    training.ready()
    model.ready()
    return training, model


def _alone(model: Model, training: Workload) -> dict[str, Any]:
    training.say("run")
    time.sleep(0.5)
    measured = window(3.0)
    training.say("idle")
    time.sleep(0.5)
    steps = training.rate(measured)
    model.say(f"run 6 {TOKENS}")
    time.sleep(0.5)
    measured = window(SECONDS)
    time.sleep(0.1)
    return {"training": steps, "first": model.firsts(measured), "token": model.tokens(measured)}


def _judged(model: Model, training: Workload, measured: Window, alone: dict[str, Any]) -> dict[str, Any]:
    firsts, tokens = model.firsts(measured), model.tokens(measured)
    others = 0 if tokens is None else TOKENS - 1
    request = (alone["first"]["p50"] + others * alone["token"]["p50"]) / 1000
    free = 1 - firsts["requests"] * request / measured.seconds
    return {
        "first": firsts,
        "token": tokens,
        "token_ratio": None if tokens is None else round(tokens["p99"] / alone["token"]["p99"], 3),
        "first_added_ms": round(firsts["p99"] - alone["first"]["p99"], 3),
        "training_of_free": round(training.rate(measured) / alone["training"] / free, 3),
        "steps_per_second": round(training.rate(measured), 3),
    }


def _row(scene: dict[str, Any], alone: dict[str, Any]) -> Row:
    ratio, added, training = scene["token_ratio"], scene["first_added_ms"], scene["training_of_free"]
    good = (ratio is None or ratio <= MOST_TOKEN) and added <= MOST_FIRST_MS and training >= LEAST_TRAINING
    kind = f"a GPT at {scene['rate']}/s" if scene["tokens"] > 1 else f"first tokens only, {scene['rate']}/s"
    judged = scene["delay"] == "auto"
    return Row(
        what=f"{kind} beside training, release-delay {scene['delay']}: token p99 / alone; TTFT p99 added; training",
        must="<= 1.10; <= 0.5 ms; >= 0.97 of what is free" if judged else "",
        measured=f"{'-' if ratio is None else f'{ratio:.2f}'}; {added:+.2f} ms; {training:.2f}",
        ok=good if judged else None,
        numbers={"scene": scene, "alone": alone},
    )
