"""Holds tenants to their memory limits by the driver's figures: reports those that are over, and ends their processes
where the node's rules say so. arbiter/overuse.py decides; this looks at the processes and sends the signals.

Called by the audit's thread, but for `rules`, `spare` and `use`, which may be called by any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from aliquot.adapters.host.process import processes
from aliquot.arbiter.overuse import Overuse, ProcessUse, TenantUse, check
from aliquot.model.tenant import Finding, FindingKind
from aliquot.wording.amounts import duration, memory

_SHOWN = 300.0  # seconds for which an ended process is a finding: shorter than its alert waits

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Owner:
    """The tenant that a process belongs to. `name` is None where that is no tenant: a Pod without a card here."""

    id: str
    name: str | None = None
    limits: Mapping[str, int | None] = field(default_factory=dict)  # bytes on the cards it has a share of; None: all
    user: int | None = None  # None: any


@dataclass(frozen=True, slots=True)
class OnCard:
    """A process that the driver lists on a card."""

    pid: int
    memory: int  # bytes
    owner: Owner
    registered: bool


class MemoryQuota:
    """See the head of the file. `owners` returns whom a process may belong to now: several, if it asked again."""

    def __init__(self, owners: Callable[[int], Iterable[Owner]], *, spares_all: bool) -> None:
        self.kill_after: float | None = None
        self._owners = owners
        self._spared: frozenset[str] | None = None if spares_all else frozenset()
        self._over: dict[str, Mapping[str, Overuse]] = {}  # by card, then by tenant
        self._uses: dict[str, dict[str, TenantUse]] = {}
        self._ended: dict[str, list[tuple[float, Finding]]] = {}  # by card

    def spare(self, tenants: frozenset[str]) -> None:
        """Never end processes of these tenants. With `spares_all` no process is ended before the first call."""
        self._spared = tenants

    def spares(self, tenant: str) -> bool:
        """Whether the tenant is left alone."""
        return self._spared is None or tenant in self._spared

    def use(self, tenant: str, uuid: str) -> tuple[int, int]:
        """Bytes that its processes have on the card by the driver's figures, and those over its limit."""
        found, over = self._uses.get(uuid, {}).get(tenant), self._over.get(uuid, {}).get(tenant)
        return 0 if found is None else found.memory, over.excess if over is not None and over.is_reported else 0

    def inspect(self, uuid: str, on_card: Iterable[OnCard], now: float) -> list[Finding]:
        """Compare what the card's tenants use with their limits, end processes if it is time, and return findings."""
        owners: dict[str, Owner] = {}
        by_tenant: dict[str, list[OnCard]] = {}
        for process in on_card:
            if process.owner.name is not None:
                owners[process.owner.id] = process.owner
                by_tenant.setdefault(process.owner.id, []).append(process)
        uses = {tenant: self._use(uuid, owners[tenant], there) for tenant, there in by_tenant.items()}
        before = self._over.get(uuid, {})
        verdict = check(before, uses.values(), now, self.kill_after)
        self._uses[uuid], self._over[uuid] = uses, verdict.over
        found = [
            self._report(uuid, owners[tenant], over, new=tenant not in before or not before[tenant].is_reported)
            for tenant, over in verdict.over.items()
            if over.is_reported
        ]
        kept = [(at, finding) for at, finding in self._ended.get(uuid, ()) if now - at < _SHOWN]
        for use, victim in (
            one for one in verdict.end if one[1].started
        ):  # others are dead, and their memory is not free
            ended = self._end(uuid, owners[use.tenant], use, victim)
            kept = [(at, finding) for at, finding in kept if finding != ended] + [(now, ended)]
        self._ended[uuid] = kept
        return found + [finding for _, finding in kept]

    def _use(self, uuid: str, owner: Owner, there: list[OnCard]) -> TenantUse:
        """A tenant without a share of the card has a limit of 0 there."""
        spared = self.spares(owner.id)
        uses = tuple(ProcessUse(process.pid, process.memory, process.registered) for process in there)
        use = TenantUse(owner.id, owner.limits.get(uuid, 0), uses, spared)
        if not use.excess:
            return use
        started = processes.identities(process.pid for process in uses)  # as of this look, for the kill
        return replace(use, processes=tuple(replace(one, started=started.get(one.pid, 0)) for one in uses))

    def _report(self, uuid: str, owner: Owner, over: Overuse, *, new: bool) -> Finding:
        used, limit = memory(over.shown >> 20), memory(over.limit >> 20)
        text = f"tenant {owner.name} uses {used} of the card's memory, its limit is {limit}"
        if self.kill_after is not None and not self.spares(owner.id):
            text += f": processes of it are ended after {duration(self.kill_after)} of this"
        if new:
            data = {"tenant": owner.name, "card": uuid, "used": used, "limit": limit, "kill_after": self.kill_after}
            log.warning("memory_limit_exceeded", extra={"data": data})
        return Finding(uuid, None, FindingKind.OVERUSE, text, owner.id, over.excess)

    def _end(self, uuid: str, owner: Owner, use: TenantUse, process: ProcessUse) -> Finding:
        why = f"its tenant {owner.name} used {memory(use.memory >> 20)}, its limit is {memory((use.limit or 0) >> 20)}"
        try:
            ended = processes.kill_proven(process.pid, process.started, lambda: self._belongs(process.pid, owner))
            text = (
                f"was ended: {why}"
                if ended
                else "should be ended, but has ended already or belongs to another tenant by now"
            )
        except PermissionError:
            ended, text = False, f"could not be ended: we may not signal it (CAP_KILL is missing); {why}"
        except OSError as error:  # no file is left to look at it: the next look tries again
            ended, text = False, f"could not be ended: {error.strerror or error}; {why}"
        data = {"tenant": owner.name, "card": uuid, "pid": process.pid, "memory": process.memory, "why": why}
        log.warning("process_ended" if ended else "process_not_ended", extra={"data": data})
        return Finding(uuid, process.pid, FindingKind.ENDED, text, owner.id)

    def _belongs(self, pid: int, owner: Owner) -> bool:
        """Whether the process may be that tenant's, as the kernel says now."""
        return any(
            found.id == owner.id and found.name is not None and found.user in (None, processes.uid_of(pid))
            for found in self._owners(pid)
        )
