"""What `aliquot burn` measured, as it prints it with `-o json`."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType


class ProcessShare(Struct):
    """What one of several processes got."""

    kernels: float
    share: float
    longest_gap_ms: float


class SlowRequest(Struct):
    """One of the slowest. If the thread computed for less than it waited, it did not have a processor, or did not ask
    for one; `displaced` counts how often another thread took it."""

    begin: float  # seconds of CLOCK_MONOTONIC
    us: float
    launch_us: float
    processor_us: float
    displaced: int


class BurnResult(Struct):
    """The figures of the measured window."""

    device: str
    iterations_per_us: float
    kernel_us: float = 0.0
    begin: float = 0.0  # seconds of CLOCK_MONOTONIC
    seconds: float = 0.0
    kernels: float = 0.0
    share: float = 0.0  # of the card
    series: list[float] = []  # the share in each second
    longest_gap_ms: float = 0.0  # between two finished kernels
    queued: int | UnsetType = UNSET  # of `load`: kernels in the card's queue
    processes: list[ProcessShare] | UnsetType = UNSET  # where there are several
    requests: int | UnsetType = UNSET  # of `serve`, as what follows
    late: int | UnsetType = UNSET  # that began late, because the one before took longer than the period
    latency_us: dict[str, float] | UnsetType | None = UNSET  # by percentile; null: no request ended
    slowest: list[SlowRequest] | UnsetType = UNSET
    right: bool | UnsetType = UNSET  # with --check: every kernel ran exactly once, and counted correctly


class BurnTimeline(Struct):
    """Start and end of kernels in the card's nanoseconds, and when they were preempted in between."""

    kernel_us: float
    traced: bool
    spans: list[tuple[int, int]]
    stops: list[tuple[int, int]]
