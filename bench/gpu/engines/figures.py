"""From samples of programs (programs/steer.py) to figures: times to tokens, throughput, whether answers agree."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from bench.gpu.stage import Window

Samples = Sequence[Mapping[str, Any]]


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines so far. A line of two numbers is a turn of the older workloads: when it began, its seconds."""
    try:
        text = path.read_text()
    except OSError:
        return []
    found = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        if line.startswith("{"):
            found.append(json.loads(line))
        else:
            began, took = map(float, line.split())
            found.append({"began": began, "took": took, "amount": 1.0})
    return found


def quantiles(values: Iterable[float]) -> dict[str, float] | None:
    """p50, p99 and the largest; None where there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    picked = {name: ordered[math.ceil(part * len(ordered)) - 1] for name, part in (("p50", 0.5), ("p99", 0.99))}
    return {name: round(value, 3) for name, value in {**picked, "max": ordered[-1]}.items()}


@dataclass(frozen=True, slots=True)
class Request:
    """One answer of a server, in seconds of CLOCK_MONOTONIC and milliseconds."""

    due: float
    first_ms: float
    token_ms: tuple[float, ...]
    answer: tuple[int, str]  # which prompt, and the hash of what came after it

    @property
    def moments(self) -> list[float]:
        """When each token was there."""
        return [self.due + after / 1000 for after in accumulate((self.first_ms, *self.token_ms))]

    @property
    def all_ms(self) -> float:
        return self.first_ms + sum(self.token_ms)

    @property
    def tpot_ms(self) -> float | None:
        """Milliseconds per token after the first, of this request."""
        return sum(self.token_ms) / len(self.token_ms) if self.token_ms else None


def requests(samples: Samples) -> list[Request]:
    return [
        Request(each["due"], each["first_ms"], tuple(each["token_ms"]), (each["prompt"], each["hash"]))
        for each in samples
        if "due" in each
    ]


def of_server(samples: Samples, over: Window) -> dict[str, Any]:
    """Of the requests that were due in the window; tokens per second are those that came in it, of any request."""
    every = requests(samples)
    mine = [each for each in every if over.begin <= each.due < over.end]
    came = sum(over.begin <= moment < over.end for each in every for moment in each.moments)
    return {
        "requests": len(mine),
        "first_ms": quantiles(each.first_ms for each in mine),
        "token_ms": quantiles(took for each in mine for took in each.token_ms),
        "tpot_ms": quantiles(each.tpot_ms for each in mine if each.tpot_ms is not None),
        "all_ms": quantiles(each.all_ms for each in mine),
        "per_s": round(came / over.seconds, 3),
        "busy": round(busy(every, over), 4),
    }


def busy(answered: Iterable[Request], over: Window) -> float:
    """The part of the window in which at least one request was being answered."""
    reached, total = over.begin, 0.0
    for begin, end in sorted((each.due, each.due + each.all_ms / 1000) for each in answered):
        begin, end = max(begin, reached), min(end, over.end)
        if end > begin:
            reached, total = end, total + end - begin
    return total / over.seconds


def of_loop(samples: Samples, over: Window) -> dict[str, Any]:
    """How much was done a second. A turn that is only partly in the window counts in proportion."""
    turns = [(each["began"], each["began"] + each["took"], each["amount"]) for each in samples if "began" in each]
    inside = [
        (amount * (min(end, over.end) - max(begin, over.begin)) / max(end - begin, 1e-9), end - begin)
        for begin, end, amount in turns
        if begin < over.end and end > over.begin
    ]
    return {
        "turns": len(inside),
        "per_s": round(sum(amount for amount, _ in inside) / over.seconds, 3),
        "turn_ms": quantiles(1000 * took for _, took in inside),
    }


def answers(samples: Samples, over: Window) -> dict[int, set[str]]:
    """By prompt: the hashes of the answers that were given in the window."""
    found: dict[int, set[str]] = {}
    for each in samples:
        if "hash" in each and over.begin <= each.get("due", each.get("began", 0.0)) < over.end:
            found.setdefault(each["prompt"], set()).add(each["hash"])
    return found


def differing(alone: Mapping[int, set[str]], beside: Mapping[int, set[str]]) -> int:
    """Prompts with another answer than alone; one that has several answers alone, or none, says nothing."""
    return sum(len(alone.get(prompt, ())) == 1 and given != alone[prompt] for prompt, given in beside.items())
