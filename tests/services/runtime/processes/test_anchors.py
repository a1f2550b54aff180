"""Whose descendant a process is."""

from __future__ import annotations

import os
import threading

import pytest

from aliquot.adapters.host.process import processes
from aliquot.services.runtime.processes.anchors import Anchors
from kit.cards.arbiterd import Rig, until

OWN = os.getpid()
STARTED = processes.start_time(OWN)


@pytest.fixture
def anchors() -> Anchors:
    made = Anchors()
    for tenant in ("old", "new"):
        made.admit(tenant)
    return made


def test_tenant_that_came_last_is_last(anchors: Anchors) -> None:
    """Also where a process of the older one registers later."""
    anchors.put("root", "new", OWN, STARTED)
    anchors.put("process", "old", OWN, STARTED)
    assert anchors.tenants([4711, OWN, 1]) == ["old", "new"]
    anchors.drop("root", OWN)
    assert anchors.tenants([OWN]) == ["old"]
    anchors.drop("process", OWN)
    anchors.drop("process", OWN)
    assert anchors.tenants([OWN]) == []
    assert not anchors._by_pid


def test_nearest_ancestor_counts(anchors: Anchors) -> None:
    parent = os.getppid()
    anchors.put("a", "old", OWN, STARTED)
    anchors.put("b", "new", parent, processes.start_time(parent))
    assert anchors.tenants([OWN, parent]) == ["old"]


def test_process_with_the_pid_of_one_that_has_ended_is_no_anchor(anchors: Anchors) -> None:
    anchors.put("a", "old", OWN, (STARTED or 0) - 1)
    anchors.put("b", "new", OWN, None)
    assert anchors.tenants([OWN]) == []


def test_connection_reads_no_processes_of_others(rig: Rig) -> None:
    """Each took a file of /proc, for each connection of anybody: thousands of processes held up all registrations."""
    looked: list[int] = []
    start_time = processes.start_time

    def counted(pid: int) -> int | None:
        looked.append(pid)
        return start_time(pid)

    folder = rig.tenant("many")
    others = [rig.registered(folder, 100 + slot, slot) for slot in range(20)]
    rig.patch.setattr(processes, "start_time", counted)
    rig.registered(rig.tenant("own"), 11)
    assert not {shim.pid for shim in others} & set(looked)
    assert len(looked) < 20


def test_ancestors_are_read_without_the_lock(rig: Rig) -> None:
    """Of a connection, and of a process on a card: its user decides how many it has."""
    asked: dict[int, bool] = {}
    ancestors = processes.ancestors

    def counted(pid: int) -> list[int]:
        asked[pid] = asked.get(pid, False) or rig.daemon._lock._is_owned()  # type: ignore[attr-defined]
        return ancestors(pid)

    rig.patch.setattr(processes, "ancestors", counted)
    shim = rig.registered(rig.tenant("a"), 11)
    stranger = rig.pid("stranger")
    rig.nvml.on_card["GPU-0"] = {shim.pid: 1 << 20, stranger: 1 << 20}
    until(lambda: {shim.pid, stranger} <= asked.keys(), "the looks")
    assert not any(asked.values())


def test_tenant_that_ends_during_the_look_gets_no_process(rig: Rig) -> None:
    folder, looks, ended = rig.tenant("a"), threading.Event(), threading.Event()

    def slow(pid: int) -> list[int]:
        looks.set()
        ended.wait(60)
        return []

    rig.patch.setattr(processes, "ancestors", slow)
    tenancy = rig.daemon._tenancies["a"]
    shim = rig.shim(folder).hello()
    assert looks.wait(60)
    rig.daemon.remove("a")
    rig.tenant("a")  # another of that name
    ended.set()
    until(shim.ended, "the refusal")
    assert not tenancy.processes


def test_anchors_leave_with_their_processes_and_tenants(rig: Rig) -> None:
    shim = rig.registered(rig.tenant("a", root=2**22 - 1), 11)
    anchors = rig.daemon._owners._anchors
    assert {2**22 - 1, shim.pid} <= set(anchors._by_pid)
    shim.close()
    until(lambda: shim.pid not in anchors._by_pid)
    rig.daemon.remove("a")
    assert not anchors._by_pid
    assert not anchors._orders
