"""Compares NVML's processes with the registered ones: finds unknown processes, measures the driver's own overhead.

A thread of its own, since NVML may hang.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aliquot.adapters.gpu.nvml import Nvml, NvmlError
from aliquot.adapters.gpu.page import Page, cut
from aliquot.adapters.host.processes import own_number
from aliquot.model.tenant import Finding, FindingKind

_EVERY = 1.0
_GRACE = 3.0  # seconds; a process this young on a card may be about to register

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PageSlot:
    """A process's slot on its tenant's page, the bytes it reports, and those that the driver takes in addition.

    `proven`: the driver knows the context on this card that the process registered."""

    page: Page
    slot: int
    card: int  # index on the page
    memory: int
    overhead: int
    proven: bool


@dataclass(frozen=True, slots=True)
class Owner:
    """The tenant that a process belongs to. `name` is None where that is no tenant: a Pod without a card here."""

    id: str
    name: str | None = None
    uuids: frozenset[str] = frozenset()  # the cards it has a share of


@dataclass(frozen=True, slots=True)
class Registry:
    """What arbiterd knows. Call these with the lock held."""

    lock: threading.RLock
    registered: Callable[[str], dict[int, PageSlot]]  # the processes of one card, by pid
    owner: Callable[[int], Owner | None]
    sweep: Callable[[], list[int]]  # free the slots of dead processes; returns files, to be closed, of oversized pages
    pods: bool  # tenants are Pods, not commands of `aliquot run`


class Auditor:
    """See the head of the file."""

    def __init__(self, uuids: Iterable[str], nvml: Nvml, registry: Registry) -> None:
        self.findings: list[Finding] = []
        self._uuids = tuple(uuids)
        self._nvml = nvml
        self._register = registry
        self._unknown: dict[tuple[str, int], float] = {}  # (card, pid): first seen

    def run(self, stopping: threading.Event) -> None:
        """Until `stopping` is set."""
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

    def _sweep(self) -> None:
        with self._register.lock:
            too_long = self._register.sweep()
        for file in too_long:
            cut(file)  # without the lock: the tenant that makes it longer keeps us waiting
            with self._register.lock:
                os.close(file)  # with it: closing drops our locks on the page

    def inspect(self, uuid: str) -> list[Finding]:
        """Write the driver's overhead to the pages; return findings about processes that are not registered."""
        registry = self._register
        with registry.lock:
            before = registry.registered(uuid)
        on_card = self._nvml.processes(uuid)
        with registry.lock:
            after = registry.registered(uuid)
            for pid, slot in after.items():
                if pid not in on_card or before.get(pid) != slot:  # it allocated meanwhile
                    continue
                overhead = max(0, on_card[pid] - slot.memory)
                if overhead != slot.overhead:
                    slot.page.set_overhead(slot.slot, slot.card, overhead)
            # Who connects and sends no context of this card has registered by half: it would run free, and unseen.
            half = {pid for pid in on_card if pid in after and not after[pid].proven}
            unknown = (on_card.keys() - after.keys() - {own_number()}) | half
            owners = {pid: registry.owner(pid) for pid in unknown}
        if half:
            unknown -= half & self._nvml.mps_clients(uuid)  # their contexts are the server's
            half &= unknown
        now = time.monotonic()
        self._unknown = {
            (card, pid): since for (card, pid), since in self._unknown.items() if card != uuid or pid in unknown
        }
        return [
            _unknown_finding(uuid, pid, owners[pid], pods=registry.pods, half=pid in half)
            for pid in sorted(unknown)
            if now - self._unknown.setdefault((uuid, pid), now) > _GRACE
        ]


def _unknown_finding(uuid: str, pid: int, owner: Owner | None, *, pods: bool, half: bool) -> Finding:
    """Why it is not registered."""
    if owner is None:
        advice = "it is of no Pod" if pods else "start it with `aliquot run`"
        return Finding(uuid, pid, FindingKind.STRANGER, f"uses the card without being a tenant: {advice}")
    if owner.name is None:
        text = f"uses the card without being a tenant: Pod {owner.id} was given no card here"
        return Finding(uuid, pid, FindingKind.STRANGER, text, owner.id)
    if uuid not in owner.uuids:
        text = f"is tenant {owner.name}'s, which has no part of this card"
        return Finding(uuid, pid, FindingKind.TRESPASSER, text, owner.id)
    if half:
        text = (
            f"is tenant {owner.name}'s and has registered, but without its context on this card: its share is not "
            "enforced; does the program keep libaliquot.so from seeing its calls, or speak with the daemon itself?"
        )
        return Finding(uuid, pid, FindingKind.UNREGISTERED, text, owner.id)
    text = (
        f"is tenant {owner.name}'s but has not registered: is it statically linked, or was ALIQUOT_TENANT "
        "taken out of its environment (env -i, su -, sshd)?"
    )
    return Finding(uuid, pid, FindingKind.UNREGISTERED, text, owner.id)
