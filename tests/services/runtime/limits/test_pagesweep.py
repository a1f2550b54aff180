"""The sweep of the pages: a tenant decides how long a look at its page takes, but not how long others wait."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aliquot.adapters.gpu.page import LOOK, SLOTS
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Tenant
from aliquot.services.runtime.limits.pagesweep import PageSweep
from aliquot.services.runtime.processes.registration import Tenancy

MALLORY, ALICE = 70001, 70002


@dataclass
class SlowPage:
    """Each of its looks takes as long as it may, as with thousands of locks, or none."""

    slow: bool
    looks: list[int] = field(default_factory=list)  # slots that were asked for

    def sweep(self, *, slots: int = SLOTS, seconds: float = LOOK) -> list[int]:
        self.looks.append(slots)
        end = time.thread_time() + (LOOK + 0.001 if self.slow else 0.0)
        while time.thread_time() < end:
            pass
        return []

    def is_longer(self) -> bool:
        return False


def a_tenancy(name: str, user: int, *, slow: bool) -> Tenancy:
    listener: Any = None
    page: Any = SlowPage(slow)
    return Tenancy(Tenant(name, name, AppClass.NORMAL, (), user), Path("/"), page, listener)


def looks(tenancies: dict[str, Tenancy]) -> dict[str, int]:
    pages: dict[str, Any] = {name: tenancy.page for name, tenancy in tenancies.items()}
    return {name: len(page.looks) for name, page in pages.items()}


def test_pages_of_one_user_take_as_long_as_one_of_them_and_each_has_its_turn() -> None:
    """With locks on the pages of 250 runs each sweep took seconds."""
    tenancies = {f"m-{at}": a_tenancy(f"m-{at}", MALLORY, slow=True) for at in range(20)}
    tenancies["a"] = a_tenancy("a", ALICE, slow=False)
    sweep = PageSweep(threading.RLock(), tenancies)
    for _ in range(20):
        began = time.thread_time()
        sweep.run()
        assert time.thread_time() - began < 5 * LOOK
    assert looks(tenancies) == {**{f"m-{at}": 1 for at in range(20)}, "a": 20}


def test_each_page_is_swept_as_a_whole_now_and_then() -> None:
    tenancies = {"a": a_tenancy("a", ALICE, slow=False)}
    sweep = PageSweep(threading.RLock(), tenancies)
    for _ in range(16):
        sweep.run()
    page: Any = tenancies["a"].page
    assert page.looks == [4, 4, 4, 4, 4, 4, 4, SLOTS] * 2


def test_who_needs_the_lock_waits_for_one_page_and_not_for_all() -> None:
    """The event loop does, to start and end tenants."""
    tenancies = {f"u-{at}": a_tenancy(f"u-{at}", 70000 + at, slow=True) for at in range(20)}
    lock, over = threading.RLock(), threading.Event()
    sweep = PageSweep(lock, tenancies)

    def sweeps() -> None:
        sweep.run()
        over.set()

    thread = threading.Thread(target=sweeps)
    thread.start()
    had_it_after = list[int]()
    while not over.is_set():
        with lock:
            had_it_after.append(sum(looks(tenancies).values()))
        time.sleep(0.001)
    thread.join()
    assert len({count for count in had_it_after if 0 < count < 20}) >= 5
