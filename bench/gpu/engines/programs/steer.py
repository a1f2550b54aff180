"""How a program that drives an engine is told what to do, and how it writes down what it did.

usage of every program here: PROGRAM CONTROL_FILE SAMPLES_FILE [OPTIONS]. It says READY on stderr once its engine has
started and has answered once. The control file holds one line, read again fifty times a second:

    idle
    stop
    run                                     a loop: as fast as it goes
    run rate=6 tokens=24 prompt=512         a server: so many requests a second, whenever those before end
    run rate=6 tokens=24 prompt=512 poisson=1
    run clients=4 tokens=24 prompt=512      a server: so many requests at any time, each followed by the next

A sample is a line of JSON. Of a request: when it was due, the milliseconds to its first token and to each one after it,
which prompt it had, and a hash of its tokens' numbers. Of a loop's turn: when it began, the seconds it took, and how
much it did.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

PROMPTS = 8  # different ones, in turns: the same request comes again, so that answers can be compared
_LOOK_SECONDS = 0.02
_SLEEP_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Order:
    """What to do. `rate` 0: not by the clock but by `clients`."""

    word: str = "idle"
    rate: float = 0.0
    clients: int = 1
    tokens: int = 16
    prompt: int = 64
    poisson: int = 0

    @classmethod
    def read(cls, text: str) -> Order:
        """Raises ValueError on what is no order."""
        word, *given = text.split() or ["idle"]
        try:
            numbers = {name: float(value) for name, value in (each.split("=") for each in given)}
            if word in ("idle", "run", "stop"):
                return cls(word, numbers.pop("rate", 0.0), **{name: int(value) for name, value in numbers.items()})
        except TypeError as error:
            raise ValueError(f"no order: {text}") from error
        raise ValueError(f"no order: {text}")


class Control:
    """The file with the order."""

    def __init__(self, path: Path) -> None:
        self._path, self._looked, self._order = path, 0.0, Order()

    def order(self) -> Order:
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            try:
                self._order = Order.read(self._path.read_text())
            except OSError:
                self._order = Order()
        return self._order


class Samples:
    """The file with what was done."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def request(self, due: float, prompt: int, moments: list[float], tokens: Iterable[int]) -> None:
        """`moments`: when each token was there."""
        numbers = list(tokens)
        later = [round(1000 * (late - early), 4) for early, late in pairwise(moments)]
        digest = hashlib.sha256(",".join(map(str, numbers)).encode()).hexdigest()[:16]
        first = round(1000 * (moments[0] - due), 4)
        self._write(due=due, first_ms=first, token_ms=later, tokens=len(numbers), prompt=prompt, hash=digest)

    def turn(self, began: float, amount: float, tokens: Iterable[int] = ()) -> None:
        """One that ends now."""
        numbers = ",".join(map(str, tokens))
        digest = {"prompt": 0, "hash": hashlib.sha256(numbers.encode()).hexdigest()[:16]} if numbers else {}
        self._write(began=began, took=time.monotonic() - began, amount=amount, **digest)

    def _write(self, **sample: Any) -> None:
        self._file.write(json.dumps(sample) + "\n")


class Pace:
    """When the next request is due."""

    def __init__(self, order: Order) -> None:
        self._order, self._chance = order, random.Random(20261119)
        self.due = time.monotonic()

    def advance(self) -> None:
        """Not far into the past, after the program was busy or idle: a queue without end says nothing."""
        gap = self._chance.expovariate(self._order.rate) if self._order.poisson else 1 / self._order.rate
        self.due = max(self.due + gap, time.monotonic() - 1.0)


def prompts(length: int, vocabulary: int) -> list[list[int]]:
    """The same ones in every program and on every run."""
    chance = random.Random(length)
    return [[chance.randrange(10, vocabulary - 10) for _ in range(length)] for _ in range(PROMPTS)]


def ready() -> None:
    print("READY", file=sys.stderr, flush=True)


Answer = Callable[[list[int], int, Callable[[int], None]], None]


def serve(control: Control, samples: Samples, vocabulary: int, answer: Answer) -> None:
    """Requests one after the other; `answer` hands over each token after a prompt as it comes."""
    pace, told, count = Pace(Order(rate=1.0)), Order(), 0
    asked: list[list[int]] = []
    while (order := control.order()).word != "stop":
        if order != told:
            told, pace, asked = order, Pace(order), prompts(order.prompt, vocabulary)
        now = time.monotonic()
        if order.word == "idle" or (order.rate and pace.due > now):
            time.sleep(_SLEEP_SECONDS if order.word == "idle" else min(_LOOK_SECONDS, pace.due - now))
            continue
        due = pace.due if order.rate else now
        if order.rate:
            pace.advance()
        come: list[tuple[float, int]] = []
        answer(asked[count % PROMPTS], order.tokens, lambda number: come.append((time.monotonic(), number)))  # noqa: B023
        samples.request(due, count % PROMPTS, [moment for moment, _ in come], [number for _, number in come])
        count += 1


def loop(control: Control, samples: Samples, turn: Callable[[], tuple[float, Iterable[int]]]) -> None:
    """Turn after turn; `turn` answers how much it did, and the tokens where there are any."""
    while (order := control.order()).word != "stop":
        if order.word == "idle":
            time.sleep(_SLEEP_SECONDS)
            continue
        began = time.monotonic()
        amount, tokens = turn()
        samples.turn(began, amount, tokens)
