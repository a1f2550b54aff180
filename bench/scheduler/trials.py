"""What is measured of an extender by calling it as kube-scheduler does."""

from __future__ import annotations

import gc
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import msgspec
from bench.scheduler.calls import Crowd, Object, asked, binding, read_bound, read_filtered, read_scores, trimmed
from bench.scheduler.contestants import Contestant, Running
from bench.scheduler.ground import EMPTY, Ground
from bench.scheduler.line import Line

Numbers = dict[str, float]

_VARIETY = 16  # different requests, so that no two in a row are alike
_WARM = 10


def latency(running: Running, ground: Ground, *, names: int, calls: int, seconds: float, label: str) -> Numbers:
    """filter and prioritize by one caller, one after the other; at most so many calls, or so many seconds."""
    chance = random.Random(5)
    pods = [msgspec.json.encode(trimmed(pod)) for pod in ground.pods(_VARIETY)]
    crowds = [Crowd.of(ground.some_nodes(names, chance), running.verbs) for _ in pods]
    found: Numbers = {}
    for verb, path in (("filter", running.verbs.filter), ("prioritize", running.verbs.prioritize)):
        if path is None:
            continue
        requests = [asked(path, pod, crowd) for pod, crowd in zip(pods, crowds, strict=True)]
        times = _timed(running, requests, calls, seconds)
        found[f"{verb}_p50_{label}"] = statistics.median(times)
        found[f"{verb}_p99_{label}"] = statistics.quantiles(times, n=100)[98] if len(times) > 1 else times[0]
        found[f"{verb}_calls_{label}"] = len(times)
    ground.clear()
    return found


def _timed(running: Running, requests: Sequence[bytes], calls: int, seconds: float) -> list[float]:
    times: list[float] = []
    with running.line() as line:
        turn = cycle(requests)
        warm = time.perf_counter() + seconds / 3
        for _ in range(_WARM):
            _expect(line.call(next(turn)), running)
            if time.perf_counter() > warm:
                break
        gc.disable()
        try:
            end = time.perf_counter() + seconds
            while len(times) < calls and (began := time.perf_counter()) < end:
                answer = line.call(next(turn))
                times.append((time.perf_counter() - began) * 1000)
                _expect(answer, running)
        finally:
            gc.enable()
    return times


def _expect(answer: tuple[int, bytes], running: Running) -> None:
    status, body = answer
    if status != 200 or len(body) < 20:
        raise RuntimeError(f"{running.contestant.name} answered {status} {body[:200]!r}")


@dataclass(slots=True)
class _Race:
    """What the streams of a throughput trial share."""

    running: Running
    pods: Iterator[tuple[Object, bytes, Crowd]]
    end: float
    bound: list[str] = field(default_factory=list)
    refused: int = 0
    errors: list[str] = field(default_factory=list)
    last: float = 0.0


def throughput(running: Running, ground: Ground, *, names: int, pods: int, streams: int, seconds: float) -> Numbers:
    """filter + prioritize + bind for Pods that exist already, by several callers at once."""
    chance = random.Random(9)
    crowds = [Crowd.of(ground.some_nodes(names, chance), running.verbs) for _ in range(_VARIETY)]
    made = ground.pods(pods)
    _first_bind(running, ground, crowds[0])
    work = [(pod, msgspec.json.encode(trimmed(pod)), crowds[at % _VARIETY]) for at, pod in enumerate(made)]
    race = _Race(running, iter(work), time.perf_counter() + seconds)
    threads = [threading.Thread(target=_stream, args=(race, seed)) for seed in range(streams)]
    cpu, began = running.cpu_seconds(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = race.last - began
    cpu = running.cpu_seconds() - cpu
    wrongs = ground.wrongs(race.bound) + race.errors
    for wrong in wrongs[:5]:
        ground.say(f"{running.contestant.name}: {wrong}")
    ground.clear()
    count = len(race.bound)
    return {
        "pods_per_s": count / took if count else 0.0,
        "cpu_ms_per_pod": 1000 * cpu / count if count else float("nan"),
        "pods_bound": count,
        "binds_refused": race.refused,
        "wrongs": len(wrongs),
    }


def _first_bind(running: Running, ground: Ground, crowd: Crowd, seconds: float = 30.0) -> None:
    """Until one Pod is bound: whoever must be elected first is elected by then."""
    (pod,) = ground.pods(1)
    encoded = msgspec.json.encode(trimmed(pod))
    end = time.monotonic() + seconds
    with running.line() as line:
        while (answer := _place(line, running, pod, encoded, crowd, random.Random(1))) != "":
            if time.monotonic() > end:
                raise TimeoutError(f"{running.contestant.name} bound nothing within {seconds:g} s: {answer}")
            time.sleep(0.2)


def _stream(race: _Race, seed: int) -> None:
    chance = random.Random(seed)
    try:
        with race.running.line() as line:
            for pod, encoded, crowd in race.pods:
                while (now := time.perf_counter()) < race.end:
                    if _place(line, race.running, pod, encoded, crowd, chance) == "":
                        race.bound.append(pod["metadata"]["name"])
                        race.last = max(race.last, time.perf_counter())
                        break
                    race.refused += 1
                if now >= race.end:
                    return
    except (OSError, msgspec.MsgspecError) as error:
        race.errors.append(f"a stream ended early: {error!r}")


def _place(line: Line, running: Running, pod: Object, encoded: bytes, crowd: Crowd, chance: random.Random) -> str:
    """The three calls for one Pod; "" when it is bound, else why not."""
    verbs = running.verbs
    filtered = read_filtered(line.call(asked(verbs.filter, encoded, crowd))[1])
    fit = filtered.fit
    if filtered.error or not fit:
        return filtered.error or "no node fits"
    node = chance.choice(fit)
    if verbs.prioritize is not None:
        scores = read_scores(line.call(asked(verbs.prioritize, encoded, crowd.fewer(fit, verbs)))[1])
        best = max((score.score for score in scores), default=0)
        node = chance.choice([score.host for score in scores if score.score == best] or fit)
    return read_bound(line.call(binding(verbs.bind, pod, node))[1]).error


def cold_start(contestant: Contestant, ground: Ground, folder: Path, *, seconds: float) -> tuple[Running, Numbers]:
    """From the start of the process to the first right answer: the one empty node, of all there are."""
    everyone = Crowd.of(list(ground.nodes.values()), contestant.verbs)
    question = asked(contestant.verbs.filter, msgspec.json.encode(ground.big_pod()), everyone)
    began = time.monotonic()
    running = contestant.start(ground.kubeconfig, folder)
    try:
        while not _right(running, question):
            if time.monotonic() > began + seconds:
                ground.say(f"{contestant.name}: no right answer within {seconds:g} s")
                return running, {"cold_s": float("inf")}
            if not running.alive():
                raise RuntimeError(f"{contestant.name} ended by itself")
            time.sleep(0.01)
    except BaseException:
        running.stop()
        raise
    if contestant.url:  # it ran before we came
        return running, {}
    return running, {"cold_s": time.monotonic() - began, "cold_cpu_s": running.cpu_seconds()}


def _right(running: Running, question: bytes) -> bool:
    try:
        with running.line() as line:
            status, body = line.call(question)
        return status == 200 and read_filtered(body).fit == [EMPTY]
    except (OSError, msgspec.MsgspecError):
        return False
