"""Tenants of users who would hold up the daemon, or take all room: others are served, and nothing is given twice."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.host import users
from aliquot.adapters.host.process import processes
from aliquot.adapters.host.process.procscan import Scan, Seen
from aliquot.model.tenant import Standing
from aliquot.services.daemon.control import RefusedError
from aliquot.services.machine.tenants import recovery
from kit.machines.machine import PaperArbiter
from kit.machines.tenantrig import Rig, tenant_rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    with tenant_rig() as found:
        yield found


def _ended_run(rig: Rig, user: int) -> str:
    """A tenant of that user whose root process has ended; no look has found that yet."""
    caller = replace(rig.process(), uid=user)
    there = set(rig.machine.tenancies)
    rig.submit(caller, memory_mib=1)
    (tenant_id,) = rig.machine.tenancies.keys() - there
    rig.machine.tenant_orphaned = lambda: None
    rig.end(caller)
    rig.machine.ended(tenant_id, 2.0)
    return tenant_id


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's daemon serves several users")
def test_pages_of_one_user_have_so_much_time_in_a_look_and_those_of_others_their_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks on the pages of 250 runs took 24 s in each look. A tenant that was not asked about keeps its booking."""
    locked = [_ended_run(rig, 70001) for _ in range(4)]
    own, of_other = _ended_run(rig, 70001), _ended_run(rig, 70002)
    asked: list[str] = []

    def alive(tenant_id: str, seconds: float = 0.02) -> bool:
        asked.append(tenant_id)
        end = time.thread_time() + (0.021 if tenant_id in locked else 0)
        while time.thread_time() < end:
            pass
        return tenant_id in locked

    monkeypatch.setattr(rig.arbiter, "alive", alive)
    looks = []
    for _ in range(5):
        asked.clear()
        rig.machine.sweep_now()
        looks.append([*asked])
    assert looks == [[locked[0], of_other], *([one] for one in locked[1:]), [own, locked[0]]]
    assert [*rig.machine.tenancies] == locked, "they are not known to be dead"


def test_tenant_whose_process_connects_after_the_look_keeps_its_booking(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant_id = _ended_run(rig, os.geteuid())

    def connects(tenant_id: str, seconds: float) -> bool:
        rig.arbiter.living.add(tenant_id)
        return False

    monkeypatch.setattr(rig.arbiter, "alive", connects)
    rig.machine.sweep_now()
    assert [*rig.machine.tenancies] == [tenant_id]
    rig.arbiter.living = set()
    monkeypatch.undo()
    rig.machine.sweep_now()
    assert [*rig.machine.tenancies] == []


def test_a_look_walks_processes_and_standings_once_for_all_tenants(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It walked both for each tenant: 300 runs that ended at one moment held the loop up for 1.8 s."""

    class Counted(dict[int, Seen]):
        walks = 0

        def items(self) -> Any:
            Counted.walks += 1
            return super().items()

    for _ in range(8):
        _ended_run(rig, os.geteuid())
    standings = 0

    def counted() -> list[Standing]:
        nonlocal standings
        standings += 1
        return []

    monkeypatch.setattr(rig.arbiter, "standings", counted)
    found = Scan(Counted({70000 + at: Seen(1, 1, os.geteuid(), {}) for at in range(3)}))
    suspects = rig.machine.suspects()
    assert len(suspects) == 8
    assert len([one for one in rig.machine.without_processes(found, suspects) if one]) == 8
    assert (Counted.walks, standings) == (1, 1)


def test_processes_that_have_ended_are_looked_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look read `/proc` for all that a tenant had ever had, and so many of one user at a time are enough."""
    tenant_id = _ended_run(rig, os.geteuid())
    living = rig.process()
    gone = {4_194_304 + at: 1 for at in range(700)}  # above any pid
    rig.machine._registry.orphans.set_seen(tenant_id, {**gone, living.pid: living.started or 0})
    looked: list[int | None] = []
    lives = processes.lives

    def counted(pid: int | None, started: int | None) -> bool:
        looked.append(pid)
        return lives(pid, started)

    monkeypatch.setattr(processes, "lives", counted)
    counts = []
    for _ in range(4):
        looked.clear()
        assert rig.machine.suspects() == {}
        counts.append(len(looked))
    assert counts == [500, 201, 1, 1]
    rig.end(living)
    assert rig.machine.suspects() == {tenant_id: os.geteuid()}


def test_restore_survives_broken_tenant_folder(rig: Rig) -> None:
    rig.submit(memory_mib=4096)
    rig.submit(memory_mib=2048)
    broken, _ = rig.machine.tenancies
    page = rig.machine.directory(broken) / "page"
    page.unlink()
    page.mkdir()
    rig.restart()
    assert broken in rig.machine.tenancies
    assert broken not in rig.arbiter.tenants  # beyond control, but its card is not given to others
    assert rig.booked() == 6144


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's daemon serves several users")
def test_runs_of_one_user_leave_room_for_others(rig: Rig) -> None:
    """Each takes files of the daemon, and a run can ask for 1 MiB."""
    rig.machine.admission._most_runs = 16
    root = rig.process()
    for user, most in ((70001, 4), (70002, 4), (70003, 4)):
        callers = [replace(rig.process(), uid=user) for _ in range(most + 1)]
        for caller in callers[:-1]:
            rig.submit(caller, memory_mib=1)
        with pytest.raises(RefusedError) as refused:
            rig.submit(callers[-1], memory_mib=1)
        assert "too many runs" in refused.value.details["text"]
    rig.submit(replace(rig.process(), uid=70004), memory_mib=1)
    rig.submit(root, memory_mib=1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's daemon serves several users")
def test_runs_under_numbers_that_are_lent_to_a_user_are_that_users(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "subuid").write_text("70001:200000:65536\n")
    monkeypatch.setattr(users, "_LENT", tmp_path / "subuid")
    users.account_of.cache_clear()
    rig.machine.admission._most_runs = 16
    for number in range(4):
        rig.submit(replace(rig.process(), uid=200_000 + number), memory_mib=1)
    for uid in (200_004, 70001):
        with pytest.raises(RefusedError) as refused:
            rig.submit(replace(rig.process(), uid=uid), memory_mib=1)
        assert "too many runs" in refused.value.details["text"]
    rig.submit(replace(rig.process(), uid=70002), memory_mib=1)
    users.account_of.cache_clear()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's daemon serves several users")
def test_user_with_few_runs_reads_that_the_daemon_is_full_and_why(rig: Rig) -> None:
    rig.machine.admission._most_runs = 4
    for user in range(70001, 70005):
        rig.submit(replace(rig.process(), uid=user), memory_mib=1)
    with pytest.raises(RefusedError) as refused:
        rig.submit(replace(rig.process(), uid=70005), memory_mib=1)
    assert refused.value.details["text"] == (
        "the daemon has no room for another run: 4 runs of all users are what its limit of open files allows. "
        "Wait until some end, or raise that limit (LimitNOFILE of the systemd unit)"
    )


def _spend(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_start_looks_at_pages_for_a_second_in_all_and_at_the_rest_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take its owner's 20 ms: the daemon served nobody until it had looked at all of them."""
    monkeypatch.setattr(recovery, "_LOOKS", 0.1)
    ended = {_ended_run(rig, os.geteuid()) for _ in range(12)}
    asked: list[str] = []

    def alive(_: PaperArbiter, tenant_id: str, seconds: float) -> bool:
        asked.append(tenant_id)
        _spend(0.02)
        return False

    monkeypatch.setattr(PaperArbiter, "alive", alive)
    rig.restart()
    assert len(asked) in (4, 5)  # to look at a folder takes a moment too
    assert {*rig.machine.tenancies} == {*rig.arbiter.tenants} == ended - {*asked}
    monkeypatch.setattr(PaperArbiter, "alive", lambda *_: False)
    rig.machine.sweep_now()
    assert not rig.machine.tenancies
    assert rig.folders() == set()


def test_tenants_whose_folders_could_not_be_opened_for_lack_of_files_are_kept_and_registered_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root process of one is gone, but nobody can tell who holds its page."""
    rig.submit(memory_mib=1024)
    (living,) = rig.machine.tenancies
    ended = _ended_run(rig, os.geteuid())
    add = PaperArbiter.add

    def lacks_files(*_: object) -> None:
        raise OSError(errno.ENFILE, "Too many open files in system")

    monkeypatch.setattr(PaperArbiter, "add", lacks_files)
    rig.restart()
    assert {*rig.machine.tenancies} == {living, ended}
    rig.machine.register_again()
    rig.machine.sweep_now()
    assert {*rig.machine.tenancies} == {living, ended}
    assert not rig.arbiter.tenants
    monkeypatch.setattr(PaperArbiter, "add", add)
    rig.machine.register_again()
    assert rig.arbiter.tenants.keys() == {living, ended}
    rig.machine.sweep_now()
    assert [*rig.machine.tenancies] == [living]
