"""Promised and measured values of the demo. Pure functions.

The promises are those of docs/performance.md for real cards. On simulated cards the scheduling is real, but kernels are
only waits on a shared processor: their bounds are wider, and the table says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SECONDS = 20
_WITH_IDLE = 40  # seconds; shorter demos skip the part with an idle tenant
_OVERHEAD = 11.5  # seconds of starting and ending processes
_TELLS_P99 = 300  # requests; with fewer, p99 is a single outlier
NO_COST = "no measurable cost"
_SETTLE = 1.0  # seconds; `share` in the status is that of the last second


@dataclass(frozen=True, slots=True, kw_only=True)
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
    note: str  # printed above the table


REAL = Bounds(
    points=2.0, whole=0.97, added_us=300.0, added_rank="p99", beside=0.01, resume_ms=100.0, wake_s=1.0, note=""
)
SIMULATED = Bounds(
    points=5.0, whole=0.90, added_us=1000.0, added_rank="p50", beside=0.02, resume_ms=300.0, wake_s=5.0,
    note="Simulated cards share this machine's processor: their bounds are wider than those of real cards.",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds per measurement; the rest of the time goes to starting and ending processes."""

    read: float  # the Pods of the first part
    settle: float
    shares: float  # each policy
    idle: float | None  # with an idle tenant, under burst-share and fixed-share; None: skipped
    alone: float  # the server alone
    whole: float  # the offline job alone
    gaps: float  # both, release delay 0
    kept: float  # both, release delay 100 ms
    after: float  # the offline job alone again


# Relative durations; every policy is measured separately.
_PARTS = {
    "read": 0.5,
    "shares": 1.5,
    "idle": 0.9,
    "alone": 1.0,
    "whole": 0.8,
    "gaps": 1.2,
    "kept": 1.6,
    "after": 0.5,
}


def pace(seconds: float) -> Pace:
    """The durations for a demo of that many seconds."""
    rests = seconds >= _WITH_IDLE
    times = {"read": 1, "shares": 3, "idle": 2 if rests else 0}
    settling = _SETTLE * (5 if rests else 3)
    left = max(seconds - _OVERHEAD - settling, seconds / 4)
    unit = left / sum(part * times.get(name, 1) for name, part in _PARTS.items())
    lengths = {name: part * unit for name, part in _PARTS.items()}
    idle = lengths.pop("idle")
    return Pace(settle=_SETTLE, idle=idle if rests else None, **lengths)


def expected_shares(policy: str, quotas: Sequence[float], idle: int | None = None) -> tuple[float, ...]:
    """The promised share of each tenant when all but the idle one have work; from 0 to 1."""
    if policy == "best-effort":
        working = len(quotas) - (idle is not None)
        return tuple(0.0 if at == idle else 1 / working for at in range(len(quotas)))
    whole = 1.0 if policy == "fixed-share" else sum(quota for at, quota in enumerate(quotas) if at != idle)
    return tuple(0.0 if at == idle else quota / whole for at, quota in enumerate(quotas))


class Counter:
    """A tenant's progress file: times (CLOCK_MONOTONIC) and the number of kernels finished by then."""

    def __init__(self, text: str) -> None:
        rows = [
            line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")
        ]  # the last line may be incomplete
        self._times = [float(row[0]) for row in rows]
        self._done = [float(row[2]) for row in rows]

    @property
    def done(self) -> float:
        """Kernels finished so far."""
        return self._done[-1] if self._done else 0.0

    def at(self, moment: float) -> float:
        """Kernels finished at that time, interpolated."""
        after = bisect_right(self._times, moment)
        if after == 0:
            return 0.0
        if after == len(self._times):
            return self._done[-1]
        before = after - 1
        part = (moment - self._times[before]) / (self._times[after] - self._times[before])
        return self._done[before] + part * (self._done[after] - self._done[before])

    def share(self, begin: float, end: float, kernel_us: float) -> float:
        """The share of the card in that time."""
        return (self.at(end) - self.at(begin)) * kernel_us * 1e-6 / (end - begin)

    def completed(self, begin: float, end: float, kernel_us: float) -> float:
        """The share by kernels that finished in that time, without interpolation over a pause."""
        first, last = bisect_right(self._times, begin), bisect_right(self._times, end)
        done = (self._done[last - 1] if last else 0.0) - (self._done[first - 1] if first else 0.0)
        return done * kernel_us * 1e-6 / (end - begin)

    @property
    def last(self) -> float | None:
        """When a kernel last finished."""
        return self._times[-1] if self._times else None

    def first_after(self, moment: float) -> float | None:
        """When the next kernel finished."""
        after = bisect_right(self._times, moment)
        return self._times[after] if after < len(self._times) else None


def placed(*, wanted: int, running: int, reasons: Sequence[str]) -> Promise:
    """Pods of every dialect got their cards and run."""
    return Promise(
        key="placed",
        promised=f"{wanted} Pods of {wanted} vendors find a card",
        measured=f"{running} of {wanted} run",
        held=running == wanted,
        reasons=tuple(reasons),
    )


def shares(
    policy: str, quotas: Sequence[float], measured: Sequence[float], bounds: Bounds, idle: int | None = None
) -> Promise:
    """The shares are close to what the policy promises."""
    expected = expected_shares(policy, quotas, idle)
    error = max(abs(a - b) for a, b in zip(expected, measured, strict=True))
    rest = ", one idle" if idle is not None else ""
    return Promise(
        key=policy + ("" if idle is None else "-idle"),
        promised=f"{policy}{rest}: {_shares(expected)} ±{bounds.points:g}",
        measured=_shares(measured),
        held=100 * error <= bounds.points,
    )


def whole(share: float, bounds: Bounds) -> Promise:
    """A tenant alone on the card."""
    return Promise(
        key="offline-alone",
        promised=f"offline job alone: {bounds.whole:.0%} of the card or more",
        measured=f"{share:.1%}",
        held=share >= bounds.whole,
    )


Latency = dict[str, float]  # microseconds by percentile


def added(alone: Latency, beside: Latency, bounds: Bounds, *, delay: str, requests: int) -> Promise:
    """The latency that the offline job adds to requests."""
    more = {rank: beside[rank] - alone[rank] for rank in ("p50", "p90", "p99")}
    rank = "p90" if bounds.added_rank == "p99" and requests < _TELLS_P99 else bounds.added_rank
    shown = ("p50" if rank == "p99" else rank, "p99")
    return Promise(
        key=f"added-{delay}",
        promised=f"delay {delay}: requests +{microseconds(bounds.added_us)} at most ({rank})",
        measured=", ".join(f"{name} {_added(more[name])}" for name in shown)
        if any(_costs(more[name]) for name in shown)
        else NO_COST,
        held=more[rank] <= bounds.added_us,
    )


def kept_off(share: float, bounds: Bounds) -> Promise:
    """The share of offline work while online work holds the card."""
    return Promise(
        key="offline-beside",
        promised=f"offline job during requests: at most {bounds.beside:.0%}",
        measured=f"{share:.1%}",
        held=share <= bounds.beside,
    )


def resumed(seconds: float | None, *, delay: float, bounds: Bounds) -> Promise:
    """The time from the last online request to the next finished offline kernel."""
    most = 1000 * delay + bounds.resume_ms
    return Promise(
        key="resumed",
        promised=f"job resumes within {most:.0f} ms of last request",
        measured="it did not resume" if seconds is None else f"{1000 * seconds:.0f} ms",
        held=seconds is not None and seconds * 1000 <= most,
    )


def nothing_lost(*, right: bool | None, same_process: bool, kernels: float) -> Promise:
    """The job verifies that each of its kernels ran exactly once."""
    found = f"all {kernels:,.0f} kernels once" if right else "NOT every kernel once"
    return Promise(
        key="nothing-lost",
        promised="job continues where it stopped, same process",
        measured=found if same_process else "ANOTHER process",
        held=bool(right) and same_process,
    )


def memory(*, refused: bool, asked: str, quota: str) -> Promise:
    """Memory beyond the quota is refused."""
    return Promise(
        key="memory",
        promised=f"{asked} with a quota of {quota}: refused",
        measured="refused" if refused else "GRANTED",
        held=refused,
    )


def crowded(*, size: str, card: str, parked: str, held: bool) -> Promise:
    """More memory is in use than the card has."""
    return Promise(
        key="crowded",
        promised=f"3 programs of {size} run on a card of {card}",
        measured=f"all run, {parked} parked" if held else "NOT all run",
        held=held,
    )


def woken(seconds: float | None, *, size: str, bounds: Bounds) -> Promise:
    """A parked program's next kernel."""
    return Promise(
        key="woken",
        promised=f"parked {size} and a kernel: back within {bounds.wake_s:g} s",
        measured="it did not wake" if seconds is None else f"{seconds:.2f} s",
        held=seconds is not None and seconds <= bounds.wake_s,
    )


def memory_kept(*, right: bool, kernels: float) -> Promise:
    """All three verify the results of their kernels on the card."""
    return Promise(
        key="memory-kept",
        promised="results of all three are right after moves",
        measured=f"all {kernels:,.0f} kernels once" if right else "NOT every kernel once",
        held=right,
    )


def microseconds(micros: float) -> str:
    """A time in us or ms."""
    if micros < 999.5:
        return f"{micros:.0f} us"
    return f"{micros / 1000:.{0 if micros >= 9950 else 1}f} ms".replace(".0 ", " ")


def _costs(micros: float) -> bool:
    """Less than nothing was added: the two measurements differ by chance."""
    return round(micros) > 0


def _added(micros: float) -> str:
    return f"+{microseconds(micros)}" if _costs(micros) else "no cost"


def _shares(values: Sequence[float]) -> str:
    return "/".join(f"{100 * value:.1f}".removesuffix(".0") for value in values) + "%"
