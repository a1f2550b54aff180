"""Who uses more memory than its limit, since when, and which processes are ended for it. Figures in, a verdict out.

The figures are NVML's, which no tenant can forge. They include what no program allocates: a CUDA context with its code,
0.5 to 0.9 GB on an H200. The shim counts that only after the audit has seen it, and then a program may have filled its
limit already. So each process has a margin, and no more than a few of a tenant's processes have one: otherwise a tenant
would get memory by starting processes.

Time counts while a tenant is over, up to the last check. A tenant that goes back for a moment starts where it was: only
after a while within its limit all is forgotten. A process that becomes another tenant's takes its time along: a process
may ask for a grant again, and would begin anew each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

MARGIN = 1 << 30  # bytes of a process
MARGINS = 4  # processes of a tenant on one card that have a margin
REPORT_AFTER = 2.0  # seconds over its limit; a process that ends may be counted for a moment after another came
FORGET_AFTER = 60.0  # seconds within its limit
_LONGEST_STEP = 2.0  # seconds between two checks that count as over; the daemon may have been stopped meanwhile
_GROWN = 1.25  # factor by which its use must grow before another figure is reported: each is an event


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process on the card. `started` makes its pid unique; 0: unknown."""

    pid: int
    memory: int  # bytes
    registered: bool = True
    started: int = 0


@dataclass(frozen=True, slots=True)
class TenantUse:
    """A tenant on the card, with all its processes there."""

    tenant: str
    limit: int | None  # bytes; None: the card is its own
    processes: tuple[ProcessUse, ...]
    spared: bool = False  # its processes are never ended

    @property
    def pids(self) -> frozenset[int]:
        """The pids of its processes."""
        return frozenset(process.pid for process in self.processes)

    @property
    def memory(self) -> int:
        """Bytes of all its processes."""
        return sum(process.memory for process in self.processes)

    @property
    def excess(self) -> int:
        """Bytes over the limit; 0 within the margin."""
        if self.limit is None or self.memory <= self.limit + margin(len(self.processes)):
            return 0
        return self.memory - self.limit


@dataclass(frozen=True, slots=True)
class Overuse:
    """A tenant that is over its limit, or was lately."""

    limit: int
    shown: int  # bytes that it used, as reported: changes seldom
    excess: int  # bytes over its limit at the last check; 0: it is within it again
    since: float  # when it was first seen over
    last: float  # when it was last seen over
    spent: float = 0.0  # seconds over, since the last process was ended for it
    pids: frozenset[int] = frozenset()  # of its processes at the last check

    @property
    def is_reported(self) -> bool:
        """Whether it is a finding now."""
        return self.excess > 0 and self.spent >= REPORT_AFTER


@dataclass(frozen=True, slots=True)
class Verdict:
    """`over` by tenant is what the next check needs; `end` are the processes to end now."""

    over: Mapping[str, Overuse]
    end: tuple[tuple[TenantUse, ProcessUse], ...] = ()


def margin(processes: int) -> int:
    """Bytes over its limit that a tenant with so many processes on a card may use."""
    return MARGIN * min(MARGINS, processes)


def check(before: Mapping[str, Overuse], uses: Iterable[TenantUse], now: float, kill_after: float | None) -> Verdict:
    """The verdict on one card. `kill_after`: seconds over its limit after which a tenant's processes are ended; None:
    never."""
    over: dict[str, Overuse] = {}
    end: list[tuple[TenantUse, ProcessUse]] = []
    for use in uses:
        found = _next(_history(before, use), use, now)
        if found is None:
            continue
        if kill_after is not None and not use.spared and found.is_reported and found.spent >= kill_after:
            end += [(use, process) for process in chosen(use)]
            found = replace(found, spent=0.0)  # a dead process's memory takes a moment to be free
        over[use.tenant] = found
    return Verdict(over, tuple(end))


def _history(before: Mapping[str, Overuse], use: TenantUse) -> Overuse | None:
    """Its own, or that of a tenant which one of its processes had been of, whichever has been over for longer."""
    own, pids = before.get(use.tenant), use.pids
    brought = (over for tenant, over in before.items() if tenant != use.tenant and use.excess and over.pids & pids)
    return max(brought if own is None else (own, *brought), key=lambda over: over.spent, default=None)


def _next(before: Overuse | None, use: TenantUse, now: float) -> Overuse | None:
    excess = use.excess
    if use.limit is None or (before is None and not excess):
        return None
    if before is None:
        return Overuse(use.limit, use.memory, excess, since=now, last=now, pids=use.pids)
    if not excess:
        return replace(before, excess=0, pids=use.pids) if now - before.last < FORGET_AFTER else None
    shown = use.memory if use.memory > _GROWN * before.shown else before.shown
    step = min(_LONGEST_STEP, max(0.0, now - before.last)) if before.excess else 0.0
    spent = before.spent + step
    return replace(before, limit=use.limit, shown=shown, excess=excess, last=now, spent=spent, pids=use.pids)


def chosen(use: TenantUse) -> tuple[ProcessUse, ...]:
    """The processes to end so that the tenant is within its limit: unregistered ones first, large ones first."""
    left, ended = list(use.processes), []
    while replace(use, processes=tuple(left)).excess:
        worst = min(left, key=lambda process: (process.registered, -process.memory, process.pid))
        left.remove(worst)
        ended.append(worst)
    return tuple(ended)
