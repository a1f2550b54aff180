"""Compares NVML's processes with the registered ones: finds unknown processes, measures the driver's own overhead, and
charges a tenant for the memory of its processes that are not registered (memoryquota.py compares it with the limits).

A thread of its own, since NVML may hang.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from aliquot.adapters.gpu.nvml import Nvml, NvmlError
from aliquot.adapters.gpu.page import Page, cut
from aliquot.adapters.host.process.processes import own_number
from aliquot.model.tenant import Finding, FindingKind
from aliquot.services.runtime.cards.trace import STEPS
from aliquot.services.runtime.limits.memoryquota import MemoryQuota, OnCard, Owner

_EVERY = 1.0
_GRACE = 3.0  # seconds; a process this young on a card may be about to register

log = logging.getLogger(__name__)


class PageSlot(NamedTuple):
    """A process's slot on its tenant's page, the bytes it reports, and those that the driver takes in addition.

    `proven`: the driver knows the context on this card that the process registered."""

    page: Page
    slot: int
    card: int  # index on the page
    memory: int
    overhead: int
    proven: bool
    owner: Owner


@dataclass(frozen=True, slots=True)
class Registry:
    """What arbiterd knows. Call `registered` with the lock held, and the others without."""

    lock: threading.RLock
    registered: Callable[[str], dict[int, PageSlot]]  # the processes of one card, by pid
    owner: Callable[[int], Owner | None]
    sweep: Callable[[], list[int]]  # free the slots of dead processes; returns files, to be closed, of oversized pages
    pods: bool  # tenants are Pods, not commands of `aliquot run`


class Auditor:
    """See the head of the file."""

    def __init__(
        self,
        uuids: Iterable[str],
        nvml: Nvml,
        registry: Registry,
        quota: MemoryQuota,
        refresh_limits: Callable[[], None] = lambda: None,
    ) -> None:
        self.findings: list[Finding] = []
        self._quota, self._refresh_limits = quota, refresh_limits
        self._uuids = tuple(uuids)
        self.own: Callable[[], Set[int]] = frozenset  # processes of ours, besides this one
        self._nvml = nvml
        self._register = registry
        self._unknown: dict[tuple[str, int], float] = {}  # (card, pid): first seen

    def run(self, stopping: threading.Event) -> None:
        """Inspect all cards again and again, until `stopping` is set."""
        while not stopping.wait(_EVERY):
            found: list[Finding] = []
            for uuid in self._uuids:
                try:
                    found += self.inspect(uuid)
                except NvmlError as error:
                    found.append(Finding(uuid, None, FindingKind.SILENT, f"the card does not answer: {error}"))
                except Exception:
                    log.exception("card_inspection_failed", extra={"data": {"card": uuid}})
            self.findings = found
            try:
                self._sweep()
            except Exception:  # the next round must come
                log.exception("page_sweep_failed")
            try:
                self._refresh_limits()
            except Exception:
                log.exception("hard_limits_failed")

    def _sweep(self) -> None:
        for file in self._register.sweep():
            cut(file)  # without the lock: the tenant that makes it longer keeps us waiting
            with self._register.lock:
                os.close(file)  # with it: closing drops our locks on the page

    def inspect(self, uuid: str) -> list[Finding]:
        """Write the driver's overhead to the pages; return findings about processes that are not registered, and about
        tenants that use more memory than their limits."""
        registry = self._register
        with registry.lock:
            before = registry.registered(uuid)
        began = time.monotonic()
        on_card = self._nvml.processes(uuid)
        STEPS.add("audit", began, time.monotonic())
        with registry.lock:
            # Who connects and sends no context of this card has registered by half: it would run free, and unseen.
            after = {pid: slot for pid, slot in registry.registered(uuid).items() if pid in on_card}
        half = {pid for pid, slot in after.items() if not slot.proven}
        if half:
            half -= self._nvml.mps_clients(uuid)  # their contexts are the server's
        unknown = (on_card.keys() - after.keys() - {own_number()} - self.own()) | half
        owners: dict[int, Owner | None] = {}
        for pid in unknown:
            with contextlib.suppress(OSError):  # no file is left: the next round finds it again
                owners[pid] = registry.owner(pid)
        unknown, half = unknown & owners.keys(), half & owners.keys()
        now = time.monotonic()
        with registry.lock:
            if unknown:  # that took a while
                after = {pid: slot for pid, slot in registry.registered(uuid).items() if pid in on_card}
            half &= after.keys()
            unknown = half | (unknown - after.keys())
            settled = self._settled(uuid, unknown, now)
            unregistered = Counter[str]()  # bytes by tenant; a page has what those have that registered by half
            for pid in settled:
                owner = owners[pid]
                if owner is not None and pid not in half:
                    unregistered[owner.id] += on_card[pid]
            _charge(after, before, on_card, unregistered)
        there = [OnCard(pid, on_card[pid], slot.owner, registered=pid not in half) for pid, slot in after.items()]
        there += [
            OnCard(pid, on_card[pid], owner, registered=False)
            for pid in unknown - half
            if (owner := owners[pid]) is not None
        ]
        found = [
            _unknown_finding(uuid, pid, owners[pid], on_card[pid], pods=registry.pods, half=pid in half)
            for pid in sorted(settled)
        ]
        return found + self._quota.inspect(uuid, there, now)

    def _settled(self, uuid: str, unknown: Set[int], now: float) -> list[int]:
        """Those that have been on the card for longer than it takes to register."""
        self._unknown = {
            (card, pid): since for (card, pid), since in self._unknown.items() if card != uuid or pid in unknown
        }
        return [pid for pid in unknown if now - self._unknown.setdefault((uuid, pid), now) > _GRACE]


def _charge(
    after: Mapping[int, PageSlot], before: Mapping[int, PageSlot], on_card: Mapping[int, int], more: Mapping[str, int]
) -> None:
    """Write to the pages what the driver takes in addition to allocations. The first process of a tenant also bears
    what its unregistered ones have: then the tenant's shims refuse that much sooner."""
    bearers: set[str] = set()
    for pid, slot in sorted(after.items()):
        extra = 0 if slot.owner.id in bearers else more.get(slot.owner.id, 0)
        bearers.add(slot.owner.id)
        if before.get(pid) != slot:  # it allocated meanwhile
            continue
        overhead = max(0, on_card[pid] - slot.memory) + extra
        if overhead != slot.overhead:
            slot.page.set_overhead(slot.slot, slot.card, overhead)


def _unknown_finding(uuid: str, pid: int, owner: Owner | None, memory: int, *, pods: bool, half: bool) -> Finding:
    """Why it is not registered."""
    if owner is None:
        advice = "it belongs to no Pod" if pods else "start it with `aliquot run`"
        return Finding(uuid, pid, FindingKind.STRANGER, f"uses the card without being a tenant: {advice}", None, memory)
    if owner.name is None:
        text = f"uses the card without being a tenant: Pod {owner.id} was given no card here"
        return Finding(uuid, pid, FindingKind.STRANGER, text, owner.id, memory)
    if uuid not in owner.limits:
        text = f"belongs to tenant {owner.name}, which has no share of this card"
        return Finding(uuid, pid, FindingKind.TRESPASSER, text, owner.id, memory)
    if half:
        text = (
            f"belongs to tenant {owner.name} and has registered, but not its context on this card: its share is not "
            "enforced; does the program hide its calls from libaliquot.so, or talk to the daemon itself?"
        )
        return Finding(uuid, pid, FindingKind.UNREGISTERED, text, owner.id, memory)
    text = (
        f"belongs to tenant {owner.name}, but has not registered: is it statically linked, or was ALIQUOT_TENANT "
        "taken out of its environment (env -i, su -, sshd)?"
    )
    return Finding(uuid, pid, FindingKind.UNREGISTERED, text, owner.id, memory)
