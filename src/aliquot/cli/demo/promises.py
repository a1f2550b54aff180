"""Promised and measured values of the demo. Pure functions.

The promises are those of docs/performance.md for real cards. On simulated cards the scheduling is real, but kernels are
only waits on a shared processor: their bounds are wider, and the table says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SECONDS = 20
SETTLE = 1.0  # seconds after a change; `share` in the status is that of the last second
NO_COST = "no measurable cost"
_WITH_IDLE = 40  # seconds; shorter demos skip the part with an idle tenant
_OVERHEAD = 11.5  # seconds of starting and ending processes
_TELLS_P99 = 300  # requests; with fewer, p99 is a single outlier
# The parts of the remaining time that measurements take; each of the policies is measured separately.
_PARTS = {"read": 0.5, "shares": 1.5, "idle": 0.9, "alone": 1.0, "whole": 0.8, "gaps": 1.2, "kept": 1.6, "after": 0.5}
Latency = dict[str, float]  # microseconds by percentile


@dataclass(frozen=True, slots=True)
class Promise:
    """One row of the final table."""

    key: str
    promised: str
    measured: str
    held: bool
    reasons: tuple[str, ...] = ()  # why it was missed


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The tolerances."""

    points: float  # of a share, in percent of the card
    whole: float  # the least share of a tenant that is alone on the card
    added_us: float  # the most that offline work may add to an online request
    added_rank: str  # the percentile for that bound, given enough requests
    beside: float  # the largest share of offline work beside online work
    resume_ms: float  # the longest time to resume, after the release delay
    wake_s: float  # the longest time until a parked program has its memory and the result of a kernel
    note: str = ""  # printed above the table


REAL = Bounds(points=2.0, whole=0.97, added_us=300.0, added_rank="p99", beside=0.01, resume_ms=100.0, wake_s=1.0)
SIMULATED = Bounds(
    points=5.0, whole=0.90, added_us=1000.0, added_rank="p50", beside=0.02, resume_ms=300.0, wake_s=5.0,
    note="Simulated cards share this machine's processor: their bounds are wider than those of real cards.",
)  # fmt: skip


def pace(seconds: float) -> dict[str, float]:
    """Seconds per measurement for a demo of that many seconds; "idle" is 0 where it is skipped."""
    rests = seconds >= _WITH_IDLE
    times = {"shares": 3, "idle": 2 if rests else 0}
    left = max(seconds - _OVERHEAD - SETTLE * (5 if rests else 3), seconds / 4)
    unit = left / sum(part * times.get(name, 1) for name, part in _PARTS.items())
    return {name: part * unit if times.get(name, 1) else 0.0 for name, part in _PARTS.items()}


def expected_shares(policy: str, quotas: Sequence[float], idle: int | None = None) -> tuple[float, ...]:
    """The promised share of each tenant when all but the idle one have work; from 0 to 1."""
    wanted = [0.0 if at == idle else 1.0 if policy == "best-effort" else quota for at, quota in enumerate(quotas)]
    whole = 1.0 if policy == "fixed-share" else sum(wanted)
    return tuple(want / whole for want in wanted)


class Counter:
    """A tenant's progress file: times (CLOCK_MONOTONIC) and the number of kernels finished by then."""

    def __init__(self, text: str) -> None:
        rows = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]  # the last may be cut
        self._times = [float(row[0]) for row in rows]
        self._done = [float(row[2]) for row in rows]
        self.done = self._done[-1] if rows else 0.0
        self.last = self._times[-1] if rows else None  # when a kernel last finished

    def at(self, moment: float) -> float:
        """Kernels finished at that time, interpolated."""
        after = bisect_right(self._times, moment)
        if after in (0, len(self._times)):
            return self.done if after else 0.0
        before = after - 1
        part = (moment - self._times[before]) / (self._times[after] - self._times[before])
        return self._done[before] + part * (self._done[after] - self._done[before])

    def share(self, begin: float, end: float, kernel_us: float) -> float:
        """The share of the card in that time."""
        return (self.at(end) - self.at(begin)) * kernel_us * 1e-6 / (end - begin)

    def completed(self, begin: float, end: float, kernel_us: float) -> float:
        """The share by kernels that finished in that time, without interpolation over a pause."""
        first, last = ([0.0, *self._done][bisect_right(self._times, moment)] for moment in (begin, end))
        return (last - first) * kernel_us * 1e-6 / (end - begin)

    def first_after(self, moment: float) -> float | None:
        """When the next kernel finished."""
        return next(iter(self._times[bisect_right(self._times, moment) :]), None)


def placed(*, wanted: int, running: int, reasons: Sequence[str]) -> Promise:
    """Pods of every dialect got their cards and run."""
    promised = f"{wanted} Pods of {wanted} vendors find a card"
    return Promise("placed", promised, f"{running} of {wanted} run", running == wanted, tuple(reasons))


def shares(
    policy: str, quotas: Sequence[float], measured: Sequence[float], bounds: Bounds, idle: int | None = None
) -> Promise:
    """The shares are close to what the policy promises."""
    expected = expected_shares(policy, quotas, idle)
    error = max(abs(a - b) for a, b in zip(expected, measured, strict=True))
    key, title = (policy, policy) if idle is None else (f"{policy}-idle", f"{policy}, one idle")
    promised = f"{title}: {_shares(expected)} ±{bounds.points:g}"
    return Promise(key, promised, _shares(measured), 100 * error <= bounds.points)


def whole(share: float, bounds: Bounds) -> Promise:
    """A tenant alone on the card."""
    promised = f"offline job alone: {bounds.whole:.0%} of the card or more"
    return Promise("offline-alone", promised, f"{share:.1%}", share >= bounds.whole)


def added(alone: Latency, beside: Latency, bounds: Bounds, *, delay: str, requests: int) -> Promise:
    """The latency that the offline job adds to requests."""
    more = {rank: beside[rank] - alone[rank] for rank in ("p50", "p90", "p99")}
    rank = "p90" if bounds.added_rank == "p99" and requests < _TELLS_P99 else bounds.added_rank
    shown = ("p50" if rank == "p99" else rank, "p99")
    costs = any(_costs(more[name]) for name in shown)
    measured = ", ".join(f"{name} {_added(more[name])}" for name in shown) if costs else NO_COST
    promised = f"delay {delay}: requests +{microseconds(bounds.added_us)} at most ({rank})"
    return Promise(f"added-{delay}", promised, measured, more[rank] <= bounds.added_us)


def kept_off(share: float, bounds: Bounds) -> Promise:
    """The share of offline work while online work holds the card."""
    promised = f"offline job during requests: at most {bounds.beside:.0%}"
    return Promise("offline-beside", promised, f"{share:.1%}", share <= bounds.beside)


def resumed(seconds: float | None, *, delay: float, bounds: Bounds) -> Promise:
    """The time from the last online request to the next finished offline kernel."""
    most = 1000 * delay + bounds.resume_ms
    promised = f"job resumes within {most:.0f} ms of last request"
    if seconds is None:
        return Promise("resumed", promised, "it did not resume", False)
    return Promise("resumed", promised, f"{1000 * seconds:.0f} ms", 1000 * seconds <= most)


def nothing_lost(*, right: bool | None, same_process: bool, kernels: float) -> Promise:
    """The job verifies that each of its kernels ran exactly once."""
    measured = _kernels(right, kernels) if same_process else "ANOTHER process"
    return Promise(
        "nothing-lost", "job continues where it stopped, same process", measured, bool(right) and same_process
    )


def memory(*, refused: bool, asked: str, quota: str) -> Promise:
    """Memory beyond the quota is refused."""
    return Promise("memory", f"{asked} with a quota of {quota}: refused", "refused" if refused else "GRANTED", refused)


def crowded(*, size: str, card: str, parked: str, held: bool) -> Promise:
    """More memory is in use than the card has."""
    measured = f"all run, {parked} parked" if held else "NOT all run"
    return Promise("crowded", f"3 programs of {size} run on a card of {card}", measured, held)


def woken(seconds: float | None, *, size: str, bounds: Bounds) -> Promise:
    """A parked program's next kernel."""
    promised = f"parked {size} and a kernel: back within {bounds.wake_s:g} s"
    if seconds is None:
        return Promise("woken", promised, "it did not wake", False)
    return Promise("woken", promised, f"{seconds:.2f} s", seconds <= bounds.wake_s)


def memory_kept(*, right: bool, kernels: float) -> Promise:
    """All three verify the results of their kernels on the card."""
    return Promise("memory-kept", "results of all three are right after moves", _kernels(right, kernels), right)


def microseconds(micros: float) -> str:
    """A time in us or ms."""
    if micros < 999.5:
        return f"{micros:.0f} us"
    return f"{micros / 1000:.{0 if micros >= 9950 else 1}f} ms".replace(".0 ", " ")


def _kernels(right: bool | None, kernels: float) -> str:
    return f"all {kernels:,.0f} kernels once" if right else "NOT every kernel once"


def _costs(micros: float) -> bool:
    """Less than nothing was added: the two measurements differ by chance."""
    return round(micros) > 0


def _added(micros: float) -> str:
    return f"+{microseconds(micros)}" if _costs(micros) else "no cost"


def _shares(values: Sequence[float]) -> str:
    return "/".join(f"{100 * value:.1f}".removesuffix(".0") for value in values) + "%"
