"""The sample workload: keeps a card busy or serves requests at a fixed rate, and measures the result.

A kernel is a fixed amount of work (adapters/gpu/burnkernel.py), so the number of finished kernels times the duration of
one on an idle card is the share obtained. The measured window starts after start-up and ends before the queue drains;
counts at its edges are interpolated between two completions.
"""

from __future__ import annotations

import gc
import heapq
import math
import resource
import time
from collections.abc import Callable
from ctypes import c_uint64
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from aliquot.adapters.gpu.burnkernel import PTX, RESULT_BYTES
from aliquot.adapters.gpu.cuda import OUT_OF_MEMORY, Card, CudaError, Launch
from aliquot.model.status.burn import BurnResult, BurnTimeline, SlowRequest
from aliquot.services.burn.measuring import Marks, percentiles
from aliquot.wording.amounts import memory

THREADS, BLOCKS_PER_PROCESSOR = 256, 2
_QUEUED_US = 8_000.0  # work queued on the card: more than the longest time this process is likely to be descheduled
_BATCH_US = 1_000.0  # short kernels are launched in batches of that much work, with one event each
_MOST_QUEUED = 512  # kernels; above about a thousand the driver blocks launches
_STOPS = 32_768  # slots for times at which a kernel was preempted
_SHORT_US, _SHORT_ROUNDS = 250.0, 20  # calibration beside others: kernels that fit into a slice, ten in a round
_CLEARLY = 1.1  # times as fast
_SLOWEST = 10  # requests that are named one by one
SPANS = 32_768  # the latest kernels, whose times are kept


class Gate(Protocol):
    """Start and end of the measurement; a benchmark opens the gates of several loads at once."""

    def begin(self) -> float:
        """Report ready and wait for the start. Returns the start of the measured window (CLOCK_MONOTONIC)."""

    def over(self, now: float) -> bool:
        """Whether the window has ended; called for every batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parameters. `depth` None: enough to keep the card busy."""

    kernel_us: float
    iterations_per_us: float | None = None  # None: calibrate first
    device: int = 0
    memory: int = 0
    check: bool = False
    timeline: bool = False
    progress: Path | None = None
    # a steady load
    depth: int | None = None
    streams: int = 1
    graph: bool = False
    # a server
    kernels: int = 1
    period: float = 0.01

    @property
    def batch(self) -> int:
        """Kernels per launch."""
        return max(1, round(_BATCH_US / self.kernel_us))

    @property
    def batches(self) -> int:
        """Batches in the queue: at least two, so that the next is ready when one ends."""
        wanted = self.depth or min(_MOST_QUEUED, math.ceil(_QUEUED_US / self.kernel_us))
        return max(2, math.ceil(wanted / self.batch), self.streams)


class Burner:
    """A card with the loaded kernel and its result buffers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.card = Card(plan.device)
        self.card.load(PTX)
        self.traced = False
        function = self.card.function("burn_traced") if plan.timeline else None
        if function is not None:
            self.traced = True
        else:
            function = self.card.function("burn")
        if function is None:
            raise LookupError("burn")
        self.function = function
        self.ballast = self._allocate(plan.memory) if plan.memory else None
        # Slot 0 is for kernels whose times are not kept.
        self.places = 1 + (SPANS if plan.timeline else 0)
        self.results = self.card.allocate(self.places * RESULT_BYTES)
        self.stops = self.card.allocate(16 + 16 * _STOPS) if self.traced else 0
        self.iterations, self.out = c_uint64(), c_uint64(self.results if plan.check else 0)
        self.launched = 0
        self.rate = plan.iterations_per_us or self.calibrate()
        self.iterations.value = max(1, round(plan.kernel_us * self.rate))

    def _allocate(self, size: int) -> int:
        try:
            return self.card.allocate(size)
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            why = f"{memory(size >> 20)} are more than is left of the card, or of this tenant's quota"
            raise CudaError("out of memory", error.code, why) from error

    def launcher(self, stream: Any) -> Launch:
        arguments = [self.iterations, self.out]
        if self.traced:
            arguments += [c_uint64(self.stops), c_uint64(_STOPS)]
        blocks = BLOCKS_PER_PROCESSOR * self.card.multiprocessors
        return self.card.launcher(self.function, stream, arguments, blocks=blocks, threads=THREADS)

    def calibrate(self) -> float:
        """Iterations per microsecond on the idle card: the best of three rounds, after the clocks have ramped up.

        Beside others, kernels of 20 ms lose time to them, and short ones that fit into a slice do not. Those count only
        if they are clearly faster: their start and end are a larger part of them."""
        places, out = 10, self.out.value
        buffer = self.card.allocate(places * RESULT_BYTES)
        launch = self.launcher(self.card.stream())
        self.iterations.value, best, short = 1_000, 0.0, 0.0
        warm = time.monotonic() + 0.3
        rounds = 0
        while rounds < 3:
            for place in range(places):
                self.out.value = buffer + place * RESULT_BYTES
                self.card.check(launch())
            self.card.synchronize()
            times = self.card.read(buffer, 3 * places)
            took = max(1, times[-1] - times[1]) / 1000 / places
            rate = self.iterations.value / took
            if time.monotonic() > warm and took > 5_000:
                rounds, best = rounds + 1, max(best, rate)
            if not 10_000 < took < 30_000:  # aim at kernels of 20 ms, with any clocks at the start
                self.iterations.value = max(1, min(100 * self.iterations.value, round(20_000 * rate)))
        self.iterations.value = max(1, round(_SHORT_US * best))
        for _ in range(_SHORT_ROUNDS):
            for place in range(places):
                self.out.value = buffer + place * RESULT_BYTES
                self.card.check(launch())
            self.card.synchronize()
            times = self.card.read(buffer, 3 * places)
            took = max(1, min(end - start for start, end in zip(times[1::3], times[2::3], strict=True))) / 1000
            short = max(short, self.iterations.value / took)
        self.card.free(buffer)
        self.out.value = out
        return short if short > _CLEARLY * best else best

    def place(self) -> None:
        """Before each traced launch: select the slot for this kernel's times. Tiny kernels are only sampled."""
        every = max(1, math.ceil(50 / self.plan.kernel_us))
        sample, rest = divmod(self.launched, every)
        self.launched += 1
        self.out.value = self.results + (0 if rest else (1 + sample % SPANS) * RESULT_BYTES)

    def checked(self, launched: int) -> bool:
        """Whether every kernel ran exactly once to its end and all its threads counted correctly."""
        results = self.card.read(self.results, 3 * self.places)
        return sum(results[::3]) == launched

    def timeline(self) -> BurnTimeline:
        """Start and end of the kernels in the card's nanoseconds, and when they were preempted in between."""
        words = self.card.read(self.results, 3 * self.places)
        spans = sorted((words[at + 1], words[at + 2]) for at in range(3, len(words), 3) if words[at])
        count, watched = self.card.read(self.stops, 2) if self.traced else (0, 0)
        words = self.card.read(self.stops + 16, 2 * min(count, _STOPS)) if count else []
        stops = sorted(zip(words[::2], words[1::2], strict=True))
        return BurnTimeline(self.plan.kernel_us, traced=bool(watched), spans=spans, stops=stops)


@dataclass(slots=True)
class Outcome:
    """The result and the timeline of a burn."""

    result: BurnResult
    timeline: BurnTimeline | None = None


OnProgress = Callable[[float, float], None]  # seconds of the window so far, share so far


class _Queue:
    """Batches of kernels on the card, in FIFO order; streams and events are used round-robin."""

    def __init__(self, burner: Burner) -> None:
        plan, card = burner.plan, burner.card
        self._card = card
        self._streams = [card.stream() for _ in range(plan.streams)]
        self._launches = [_batches(burner, stream, plan.batch) for stream in self._streams]
        events = [card.event() for _ in range(plan.batches)]
        self._records = [card.recorder(event, self._streams[at % plan.streams]) for at, event in enumerate(events)]
        self._waits = [card.waiter(event) for event in events]
        self._put = self._taken = 0

    def warm_up(self) -> int:
        """Make the driver load everything that it loads lazily. Returns the number of batches."""
        for launch in self._launches:
            self._card.check(launch())
        self._card.synchronize()
        return len(self._launches)

    @property
    def full(self) -> bool:
        return self._put - self._taken == len(self._waits)

    @property
    def empty(self) -> bool:
        return self._put == self._taken

    def put(self) -> None:
        place = self._put % len(self._waits)
        self._card.check(self._launches[place % len(self._streams)]())
        self._card.check(self._records[place]())
        self._put += 1

    def take(self) -> None:
        """Wait for the oldest batch."""
        self._card.check(self._waits[self._taken % len(self._waits)]())
        self._taken += 1


def load(plan: Plan, gate: Gate, index: int = 0, on_progress: OnProgress | None = None) -> Outcome:
    """Keep the card's queue full until the gate closes."""
    burner = Burner(plan)
    queue, batch = _Queue(burner), plan.batch
    before = batch * queue.warm_up()
    gc.disable()  # a collection must not empty the queue
    begin = gate.begin()
    end = time.monotonic()
    marks = Marks(end, plan.progress, index)
    done, over = 0, False
    while not over:
        while not queue.full:
            queue.put()
        queue.take()
        done, end = done + batch, time.monotonic()
        marks.add(end, done)
        if on_progress is not None and end > begin:
            on_progress(end - begin, plan.kernel_us * 1e-6 * (done - marks.at(begin)) / (end - begin))
        over = gate.over(end)
    while not queue.empty:
        queue.take()
        done += batch
        marks.add(time.monotonic(), done)
    marks.close()
    gc.enable()
    result = _window(plan, burner, marks, begin, end)
    result.queued = batch * plan.batches
    if plan.check:
        result.right = burner.checked(before + done)
    return Outcome(result, burner.timeline() if plan.timeline else None)


def _batches(burner: Burner, stream: Any, batch: int) -> Launch:
    """A function that launches a batch of kernels on the stream and returns the first error, or 0."""
    launch = burner.launcher(stream)
    if burner.plan.graph:
        return burner.card.graph(stream, [launch] * batch)
    if burner.plan.timeline:

        def placed() -> int:
            burner.place()
            return launch()

        launch_one: Launch = placed
    else:
        launch_one = launch
    if batch == 1:
        return launch_one
    rounds = range(batch)

    def many() -> int:
        for _ in rounds:
            if code := launch_one():
                return code
        return 0

    return many


def _window(plan: Plan, burner: Burner, marks: Marks, begin: float, end: float) -> BurnResult:
    """The figures of the window from `begin` to `end`."""
    elapsed = max(end - begin, 1e-9)
    kernels = marks.at(end) - marks.at(begin)
    share = plan.kernel_us * 1e-6
    edges = [begin + second for second in range(int(elapsed + 1e-6) + 1)]
    series = [share * (marks.at(after) - marks.at(before)) for before, after in pairwise(edges)]
    return BurnResult(
        device=burner.card.name,
        kernel_us=plan.kernel_us,
        iterations_per_us=round(burner.rate, 4),
        begin=round(begin, 6),
        seconds=round(elapsed, 6),
        kernels=round(kernels, 3),
        share=round(share * kernels / elapsed, 5),
        series=[round(value, 4) for value in series],
        longest_gap_ms=round(1000 * marks.longest_gap(begin, end), 3),
    )


def serve(plan: Plan, gate: Gate, index: int = 0, on_progress: OnProgress | None = None) -> Outcome:
    """Every `period`, launch kernels and wait for them. Measures the latency of these requests."""
    burner = Burner(plan)
    card, stream = burner.card, burner.card.stream()
    launch, wait = _batches(burner, stream, plan.kernels), card.stream_waiter(stream)
    for _ in range(3):
        card.check(launch())
        card.check(wait())
    gc.disable()
    begin = gate.begin()
    latencies: list[float] = []
    slowest: list[tuple[float, float, float, float, int]] = []
    requests = late = 0
    due = time.monotonic()
    marks = Marks(due, plan.progress, index)
    while True:
        time.sleep(max(0.0, due - time.monotonic()))
        displaced = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        computed, started = time.thread_time(), time.monotonic()
        if gate.over(started):
            break
        card.check(launch())
        launched = time.monotonic()
        card.check(wait())
        ended = time.monotonic()
        requests += 1
        marks.add(ended, requests * plan.kernels)
        if started >= begin:
            latencies.append(1e6 * (ended - started))
            computed = time.thread_time() - computed
            displaced = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - displaced
            slow = ended - started, started, launched - started, computed, displaced
            if len(slowest) < _SLOWEST:
                heapq.heappush(slowest, slow)
            else:
                heapq.heappushpop(slowest, slow)
            if on_progress is not None:
                on_progress(ended - begin, plan.kernel_us * plan.kernels * 1e-6 * len(latencies) / (ended - begin))
        due += plan.period
        if due < ended:  # the request took longer than the period: start the next at once, never two in parallel
            due, late = ended, late + 1
    marks.close()
    gc.enable()
    result = _window(plan, burner, marks, begin, started)
    result.requests, result.late, result.latency_us = len(latencies), late, percentiles(latencies)
    result.slowest = [
        SlowRequest(
            begin=round(begun, 6),
            us=round(1e6 * took, 1),
            launch_us=round(1e6 * launching, 1),
            processor_us=round(1e6 * computing, 1),
            displaced=displaced,
        )
        for took, begun, launching, computing, displaced in sorted(slowest, reverse=True)
    ]
    if plan.check:
        result.right = burner.checked((requests + 3) * plan.kernels)
    return Outcome(result, burner.timeline() if plan.timeline else None)


def calibrate(device: int) -> tuple[str, float]:
    """The card's name and its iterations per microsecond when idle."""
    burner = Burner(Plan(kernel_us=1.0, device=device))
    return burner.card.name, burner.rate
