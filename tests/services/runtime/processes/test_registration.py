"""How much of the listening thread's time one tenant gets: so many connections and messages in a second."""

from __future__ import annotations

import logging
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot.adapters.gpu import link, rm
from aliquot.adapters.gpu import page as pages
from aliquot.adapters.storage import tenantfolder
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Allotment, Tenant
from aliquot.services.daemon.connections import FairShare
from aliquot.services.runtime.processes import budgets, registration
from aliquot.services.runtime.processes.channelgroups import ChannelGroups
from aliquot.services.runtime.processes.registration import Registrar, Tenancy
from kit.running.logged import logged
from kit.running.scarcefiles import scarce_files


class RegistrarRig:
    """A registrar whose polls and seconds are the test's. The clock stands just before a second's end, so that waiting
    for the next one takes a moment only."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 10.999
        self.registrar = Registrar(
            threading.RLock(), {}, simulated=True, refusal=lambda *_: None, clock=lambda: self.now
        )
        self.tenancies: list[Tenancy] = []
        self.sockets: list[socket.socket] = []

    def tenant(self, name: str) -> Tenancy:
        allotments = (Allotment("GPU-0", 1 << 30, 500),)
        page, door = tenantfolder.prepare_folder(self.folder / name, allotments, os.getuid())
        tenant = Tenant(name, f"the {name}", AppClass.NORMAL, allotments, os.getuid())
        self.tenancies.append(Tenancy(tenant, self.folder / name, page, door))
        self.registrar.add(self.tenancies[-1])
        return self.tenancies[-1]

    def connect(self, tenancy: Tenancy) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.connect(str(tenancy.directory / "sock"))
        self.sockets.append(made)
        return made

    def turns(self, times: int) -> None:
        for _ in range(times):
            self.registrar.wake()  # none of them waits
            self.registrar.poll()

    def end(self) -> None:
        for tenancy in self.tenancies:
            self.registrar.remove(tenancy)
            tenancy.page.close()
        self.registrar.close()
        for connection in self.sockets:
            connection.close()


def say(shim: socket.socket, kind: int, *words: int) -> None:
    shim.send(struct.pack(f"<I2H{len(words)}I", pages.MAGIC, pages.VERSION, kind, *words))


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistrarRig]:
    monkeypatch.setattr(registration, "_MOST_ACCEPTED", 3)
    monkeypatch.setattr(registration, "_MOST_RECEIVED", 8)
    made = RegistrarRig(tmp_path)
    yield made
    made.end()


def test_a_tenant_that_connects_too_often_waits_until_the_next_second(rig: RegistrarRig) -> None:
    bad = rig.tenant("bad")
    for _ in range(5):
        rig.connect(bad)
    rig.turns(8)
    assert bad.accepted == 3
    rig.now += 1
    rig.turns(8)
    assert bad.accepted == 2, "those that waited"


def test_messages_are_counted_per_tenant_over_all_its_connections(rig: RegistrarRig) -> None:
    """Who connects anew is no other tenant."""
    bad = rig.tenant("bad")
    for _ in range(2):
        shim = rig.connect(bad)
        say(shim, link.HELLO, 1, 0)
        for _ in range(5):
            say(shim, link.WAKE, 0)
        rig.turns(7)
    assert bad.received == 8
    rig.now += 1
    rig.turns(8)
    assert bad.received == 4, "what was left unsaid"
    assert len(bad.processes) == 1


def test_connections_that_wait_for_a_free_file_hold_up_no_messages(
    rig: RegistrarRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waited for 10 ms: a user's 500 runs held up all others for five seconds in each look."""
    good = rig.tenant("good")
    shim = rig.connect(good)
    rig.turns(2)
    for at in range(20):
        rig.connect(rig.tenant(f"bad{at}"))
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    say(shim, link.HELLO, 1, 4)
    with scarce_files(0):
        rig.turns(3)
    assert [process.slot for process in good.processes] == [4]
    assert len(pauses) == 3
    rig.turns(1)
    assert all(len(tenancy.processes) == 1 for tenancy in rig.tenancies)


def test_other_tenants_are_served_while_one_is_muted(rig: RegistrarRig) -> None:
    bad, good = rig.tenant("bad"), rig.tenant("good")
    for _ in range(5):
        rig.connect(bad)
    rig.turns(5)
    say(rig.connect(good), link.HELLO, 1, 4)
    rig.turns(3)
    assert [process.slot for process in good.processes] == [4]


def test_other_users_are_served_while_all_runs_of_one_are_muted(
    rig: RegistrarRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A user has hundreds of runs, each with a budget of its own."""
    monkeypatch.setattr(budgets, "_MOST_ACCEPTED", 5)
    monkeypatch.setattr(registration, "owner_of", lambda tenancy: tenancy.tenant.id[0])
    bad, good = [rig.tenant(f"b{number}") for number in range(6)], rig.tenant("good")
    for run in bad * 2:
        rig.connect(run)
    with caplog.at_level(logging.WARNING):
        rig.turns(6)
    assert sum(run.accepted for run in bad) == 5
    assert [key for key, _ in logged(caplog)] == ["user_muted"]
    say(rig.connect(good), link.HELLO, 1, 4)
    rig.turns(3)
    assert [process.slot for process in good.processes] == [4]
    rig.registrar.wake()
    assert [key.data for key, _ in rig.registrar._selector.select(0)] == [rig.registrar._drain], "they cost no poll"
    for _ in range(2):
        rig.now += 1
        rig.turns(8)
    assert [len(run.processes) for run in bad] == [1] * 6, "they were late, and none was refused"


def test_pending_groups_of_one_user_leave_files_for_others(rig: RegistrarRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is an open file, and a user has hundreds of runs."""
    monkeypatch.setattr(registration, "_MOST_RECEIVED", 100)
    monkeypatch.setattr(registration, "owner_of", lambda tenancy: tenancy.tenant.id[0])
    rig.registrar._unchecked = FairShare(20, 5)

    def send(run: Tenancy) -> socket.socket:
        shim = rig.connect(run)
        say(shim, link.HELLO, 1, 0)
        for number in range(3):
            words = (1, number, 0, 0, 0, 1, 1, 0, 7)
            packet = struct.pack("<I2H9I", pages.MAGIC, pages.VERSION, link.GROUP, *words)
            socket.send_fds(shim, [packet], [0])
        rig.turns(6)
        return shim

    bad, good = [rig.tenant(f"b{number}") for number in range(4)], rig.tenant("good")
    shims = [send(run) for run in bad]
    assert [len(run.processes) for run in bad] == [1, 0, 0, 0]
    assert rig.registrar._unchecked.held("b") <= 5
    say(shims[0], link.DONE, 3)
    rig.turns(3)
    shims[1] = send(bad[1])
    assert bad[1].processes, "the first is complete"
    send(good)
    assert good.pending == 3
    for run in bad:
        for process in list(run.processes):
            rig.registrar._disconnect(run, process)
    assert rig.registrar._unchecked.held("b") == 0


def test_a_muted_tenant_costs_no_poll(rig: RegistrarRig) -> None:
    bad = rig.tenant("bad")
    for _ in range(5):
        rig.connect(bad)
    rig.turns(4)
    rig.registrar.wake()
    assert [key.data for key, _ in rig.registrar._selector.select(0)] == [rig.registrar._drain]


def test_a_tenant_can_be_removed_while_it_is_muted(rig: RegistrarRig) -> None:
    bad = rig.tenant("bad")
    for _ in range(3):
        rig.connect(bad)
    rig.turns(4)
    rig.tenancies.remove(bad)
    rig.registrar.remove(bad)
    bad.page.close()
    rig.now += 1
    rig.turns(2)
    assert not bad.processes


def test_a_process_that_dies_while_its_tenant_is_muted_is_released(
    rig: RegistrarRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = rig.tenant("bad")
    with subprocess.Popen(["sleep", "60"]) as child:
        monkeypatch.setattr(link, "peer", lambda connection: (child.pid, os.getuid()))
        monkeypatch.setattr(link, "watch", lambda connection: os.pidfd_open(child.pid))
        for _ in range(3):
            rig.connect(bad)
        rig.turns(4)
        assert len(bad.processes) == 1
        child.kill()
    rig.registrar.poll()
    assert not bad.processes
    rig.now += 1
    rig.turns(2)
    assert rig.connect(bad).fileno() >= 0


def test_tenant_whose_files_hang_is_not_read_until_they_are_closed(
    rig: RegistrarRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = rig.tenant("bad"), rig.tenant("good")
    behind: set[int | str] = set()
    monkeypatch.setattr(registration, "is_behind", behind.__contains__)
    monkeypatch.setattr(registration, "owner_of", lambda tenancy: tenancy.tenant.id)  # else both are of one user
    shim = rig.connect(bad)
    rig.turns(2)
    behind.add("bad")
    for _ in range(5):
        say(shim, link.HELLO, 1, 0)
    rig.turns(2)
    rig.now += 1
    rig.connect(bad)
    say(rig.connect(good), link.HELLO, 1, 4)
    rig.turns(8)
    assert (bad.received, [process.slot for process in good.processes]) == (1, [4])
    behind.clear()
    rig.now += 1
    rig.turns(3)
    assert bad.accepted == 1, "it is read again"


def test_tenant_muted_is_logged_once_a_second_at_most(rig: RegistrarRig, caplog: pytest.LogCaptureFixture) -> None:
    bad = rig.tenant("bad")
    for _ in range(3):
        for _ in range(3):
            rig.connect(bad)
        rig.turns(6)
        rig.now += 1
    fields = {"tenant": "the bad", "connections": 3, "messages": 0, "until": "next second"}
    assert logged(caplog) == [("tenant_muted", fields)]


def test_groups_that_the_driver_refuses_are_logged_once_a_second_per_tenant(
    rig: RegistrarRig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may tell of as many as it likes, under ever other numbers."""

    def refuse(group: rm.Group) -> str:
        raise rm.RmError("NVC36C", 0x1B)

    monkeypatch.setattr(rm, "uuid_of", refuse)
    monkeypatch.setattr(rm, "is_rm_file", lambda fd, simulated: True)
    bad = rig.tenant("bad")
    rig.connect(bad)
    rig.turns(2)
    (process,) = bad.processes
    assert isinstance(process.groups, ChannelGroups)
    with caplog.at_level(logging.WARNING):
        for client in range(1000):
            seen = link.GroupSeen(os.open("/dev/null", os.O_RDONLY), client, 1, 0, 1, 1, True, (7,))
            process.groups.place([seen], {"GPU-0"})
    ((key, fields),) = logged(caplog)
    assert (key, fields["tenant"], fields["card"]) == ("channel_group_not_controllable", "the bad", "unknown")
    assert len(process.groups._probed) <= 256, "what the driver said of them fills no memory"


def test_processes_of_a_tenant_and_of_a_user_leave_files_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a connection and a pidfd; a tenant can fork as often as its user may."""
    monkeypatch.setattr(registration, "most_files", lambda: 16 * 20)
    monkeypatch.setattr(registration, "_MOST_PROCESSES", 15)
    pids = iter(range(1, 1000))
    monkeypatch.setattr(link, "peer", lambda connection: (next(pids), 70001))
    rig = RegistrarRig(tmp_path)
    try:
        bad, worse, good = rig.tenant("bad"), rig.tenant("worse"), rig.tenant("good")
        for tenancy, user in ((bad, 70001), (worse, 70001), (good, 70002)):
            tenancy.tenant = replace(tenancy.tenant, uid=user)
            for _ in range(30):
                rig.connect(tenancy)
        rig.turns(200)
        assert len(bad.processes) + len(worse.processes) == 20
        assert len(good.processes) == 15
        kept = len(worse.processes)
        for process in list(bad.processes):
            rig.registrar._disconnect(bad, process)
        rig.connect(worse)
        rig.turns(10)
        assert len(worse.processes) == kept + 1
    finally:
        rig.end()
