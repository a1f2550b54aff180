"""Looks at the cards from outside: who is on them that is nobody's, and what the driver takes beside allocations.

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
_GRACE = 3.0  # a process this young on a card may be about to register

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A process's line on its tenant's page, the bytes it says it has, and those that the driver took beside them."""

    page: Page
    slot: int
    card: int  # index on the page
    memory: int
    overhead: int


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a process is. `name` is a tenant's; None: that is no tenant here (a Pod that was given no card)."""

    id: str
    name: str | None = None
    uuids: frozenset[str] = frozenset()  # the cards it has a part of


@dataclass(frozen=True, slots=True)
class Register:
    """What the arbiter's daemon knows; to be asked with its lock held."""

    lock: threading.RLock
    seated: Callable[[str], dict[int, Place]]  # by process, of one card
    owner: Callable[[int], Owner | None]
    sweep: Callable[[], list[int]]  # give back what the dead held; the files, to be closed, of pages that are too long
    pods: bool  # tenants are Pods, not what `aliquot run` started


class Auditor:
    """See the head of the file."""

    def __init__(self, uuids: Iterable[str], nvml: Nvml, register: Register) -> None:
        self.findings: list[Finding] = []
        self._uuids = tuple(uuids)
        self._nvml = nvml
        self._register = register
        self._strangers: dict[tuple[str, int], float] = {}  # unknown on a card since when

    def run(self, stopping: threading.Event) -> None:
        """Until told to stop."""
        while not stopping.wait(_EVERY):
            found: list[Finding] = []
            for uuid in self._uuids:
                try:
                    found += self.look_at(uuid)
                except NvmlError as error:
                    found.append(Finding(uuid, None, FindingKind.SILENT, f"the card does not answer: {error}"))
                except Exception:
                    log.exception("looking at card %s failed", uuid)
            self.findings = found
            try:
                self._sweep()
            except Exception:  # the next look must come
                log.exception("sweeping the pages failed")

    def _sweep(self) -> None:
        with self._register.lock:
            too_long = self._register.sweep()
        for file in too_long:
            cut(file)  # without the lock: who makes it longer keeps us waiting
            with self._register.lock:
                os.close(file)  # with it: closing drops what locks we have on the page

    def look_at(self, uuid: str) -> list[Finding]:
        """Memory beside allocations goes onto the pages; processes that are nobody's are told."""
        register = self._register
        with register.lock:
            before = register.seated(uuid)
        on_card = self._nvml.processes(uuid)
        with register.lock:
            after = register.seated(uuid)
            for pid, place in after.items():
                if pid not in on_card or before.get(pid) != place:  # something was allocated while we looked
                    continue
                overhead = max(0, on_card[pid] - place.memory)
                if overhead != place.overhead:
                    place.page.set_overhead(place.slot, place.card, overhead)
            strange = on_card.keys() - after.keys() - {own_number()}
            owners = {pid: register.owner(pid) for pid in strange}
        now = time.monotonic()
        self._strangers = {
            (card, pid): since for (card, pid), since in self._strangers.items() if card != uuid or pid in strange
        }
        return [
            _stranger(uuid, pid, owners[pid], pods=register.pods)
            for pid in sorted(strange)
            if now - self._strangers.setdefault((uuid, pid), now) > _GRACE
        ]


def _stranger(uuid: str, pid: int, owner: Owner | None, *, pods: bool) -> Finding:
    """Why it has no seat."""
    if owner is None:
        advice = "it is of no Pod" if pods else "start it with `aliquot run`"
        return Finding(uuid, pid, FindingKind.STRANGER, f"uses the card without being a tenant: {advice}")
    if owner.name is None:
        text = f"uses the card without being a tenant: Pod {owner.id} was given no card here"
        return Finding(uuid, pid, FindingKind.STRANGER, text, owner.id)
    if uuid not in owner.uuids:
        text = f"is tenant {owner.name}'s, which has no part of this card"
        return Finding(uuid, pid, FindingKind.TRESPASSER, text, owner.id)
    text = (
        f"is tenant {owner.name}'s but has not registered: is it statically linked, or was ALIQUOT_TENANT "
        "taken out of its environment (env -i, su -, sshd)?"
    )
    return Finding(uuid, pid, FindingKind.UNREGISTERED, text, owner.id)
