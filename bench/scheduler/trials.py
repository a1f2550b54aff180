"""What is measured of an extender by calling it as kube-scheduler does."""

from __future__ import annotations

import gc
import random
import statistics
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path

import msgspec
from bench.scheduler.calls import Crowd, Object, asked, binding, read_bound, read_filtered, read_scores, trimmed
from bench.scheduler.contestants import Contestant, Running
from bench.scheduler.echo import answering_at_once
from bench.scheduler.ground import EMPTY, Ground
from bench.scheduler.line import Line, get
from bench.scheduler.shapes import new_shapes

Numbers = dict[str, float]

_LOOK = 0.025  # seconds between two looks at a start; each takes the extender about half a millisecond of CPU
_VARIETY = 16  # different requests, so that no two in a row are alike


def latency(running: Running, ground: Ground, *, names: int, calls: int, seconds: float, label: str) -> Numbers:
    """filter and prioritize by one caller, one after the other; at most so many calls, or so many seconds."""
    chance = random.Random(5)
    crowds = [Crowd.of(ground.some_nodes(names, chance), running.verbs) for _ in range(_VARIETY)]
    found: Numbers = {}
    for verb, path in (("filter", running.verbs.filter), ("prioritize", running.verbs.prioritize)):
        if path is None:
            continue
        # Every call is of a Pod that was not asked about before: the second call of a Pod gets a longer answer.
        seen = [_imagined(pod) for pod in ground.drafts(calls)]
        first = _requests(path, [_imagined(pod) for pod in ground.each_draft()], crowds)
        times = _timed(running, _requests(path, seen, crowds), calls, seconds, warm=first)
        found |= _figures(f"{verb}_{{}}_{label}", times)
        if verb == "filter" and label == "small":
            with answering_at_once() as url:
                times = _timed(replace(running, url=url), _requests(path, seen, crowds), calls, seconds)
            found |= _figures("machine_{}_small", times)
        if verb == "filter":
            shapes = list(new_shapes(calls // 2, gpushare_only=True))
            unseen = [_imagined(pod) for pod in ground.drafts(len(shapes), shapes)]
            times = _timed(running, _requests(path, unseen, crowds), calls, seconds)
            found |= _figures(f"filter_{{}}_new_{label}", times)
    ground.clear()
    return found


def _imagined(pod: Object) -> bytes:
    """A Pod that is asked about and never created, as the API server would complete it."""
    metadata = {**pod["metadata"], "uid": str(uuid.uuid4()), "creationTimestamp": "2026-01-01T12:00:00Z"}
    return msgspec.json.encode({**pod, "metadata": metadata})


def _requests(path: str, pods: Sequence[bytes], crowds: Sequence[Crowd]) -> list[bytes]:
    return [asked(path, pod, crowds[at % len(crowds)]) for at, pod in enumerate(pods)]


def _figures(key: str, times: Sequence[float]) -> Numbers:
    return {
        key.format("p50"): statistics.median(times),
        key.format("p99"): statistics.quantiles(times, n=100)[98] if len(times) > 1 else times[0],
        key.format("calls"): len(times),
    }


def _timed(
    running: Running, requests: Sequence[bytes], calls: int, seconds: float, warm: Sequence[bytes] = ()
) -> list[float]:
    times: list[float] = []
    with running.line() as line:
        turn = cycle(requests)
        enough = time.perf_counter() + seconds / 3
        for request in warm:
            _expect(line.call(request), running)
            if time.perf_counter() > enough:
                break
        gc.disable()
        try:
            end = time.perf_counter() + seconds
            while len(times) < min(calls, len(requests)) and (began := time.perf_counter()) < end:
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
    binds: list[float] = field(default_factory=list)  # milliseconds
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
        **(_figures("bind_{}_small", race.binds) if race.binds else {}),
        "binds_refused": race.refused,
        "wrongs": len(wrongs),
    }


def _first_bind(running: Running, ground: Ground, crowd: Crowd, seconds: float = 30.0) -> None:
    """Until one Pod is bound: a leader is elected by then."""
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
                    if _place(line, race.running, pod, encoded, crowd, chance, race.binds) == "":
                        race.bound.append(pod["metadata"]["name"])
                        race.last = max(race.last, time.perf_counter())
                        break
                    race.refused += 1
                if now >= race.end:
                    return
    except (OSError, msgspec.MsgspecError) as error:
        race.errors.append(f"a stream ended early: {error!r}")


def _place(
    line: Line,
    running: Running,
    pod: Object,
    encoded: bytes,
    crowd: Crowd,
    chance: random.Random,
    binds: list[float] | None = None,
) -> str:
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
    began = time.perf_counter()
    error = read_bound(line.call(binding(verbs.bind, pod, node))[1]).error
    if binds is not None:
        binds.append((time.perf_counter() - began) * 1000)
    return error


def cold_start(contestant: Contestant, ground: Ground, folder: Path, *, seconds: float) -> tuple[Running, Numbers]:
    """From the start of the process to the first right answer: the one empty node, of all there are."""
    everyone = Crowd.of(list(ground.nodes.values()), contestant.verbs)
    question = asked(contestant.verbs.filter, msgspec.json.encode(ground.big_pod()), everyone)
    began = time.monotonic()
    running = contestant.start(ground.kubeconfig, folder)
    try:
        while not (_ready(running) and _right(running, question)):
            if time.monotonic() > began + seconds:
                ground.say(f"{contestant.name}: no right answer within {seconds:g} s")
                return running, {"cold_s": float("inf")}
            if not running.alive():
                raise RuntimeError(f"{contestant.name} ended by itself")
            time.sleep(_LOOK)
    except BaseException:
        running.stop()
        raise
    if contestant.url:  # it ran before we came
        return running, {}
    return running, {"cold_s": time.monotonic() - began, "cold_cpu_s": running.cpu_seconds()}


def _ready(running: Running) -> bool:
    """Whether it says so, or has no word for it. Reading 15,000 names a hundred times a second would slow the start."""
    try:
        with running.line() as line:
            return line.call(get("/readyz"))[0] in (200, 404)
    except OSError:
        return False


def _right(running: Running, question: bytes) -> bool:
    try:
        with running.line() as line:
            status, body = line.call(question)
        return status == 200 and read_filtered(body).fit == [EMPTY]
    except (OSError, msgspec.MsgspecError):
        return False
