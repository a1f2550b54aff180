"""Processes of tenants register with the arbiter, are refused, and die."""

from __future__ import annotations

import os
import struct

import pytest

from aliquot.adapters.gpu import page as pages
from aliquot.adapters.gpu.page import Page
from aliquot.adapters.host.process import processes
from aliquot.arbiter import slices
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Allotment, Level, Tenant
from kit.cards.arbiterd import UUIDS, Rig, ask, until

ONLINE, OFFLINE = AppClass.ONLINE, AppClass.OFFLINE
STOCK = 2048  # the driver's own slice
ALONE = slices.FAIR + slices.SWITCH  # the slice of one that is alone


class TestRegistration:
    def test_a_process_joins_the_card_of_its_group(self, rig: Rig) -> None:
        shim = rig.registered(rig.tenant("a"), 11)
        standing = rig.standing("a")
        assert standing.processes == (shim.pid,)
        assert standing.level is Level.HARDWARE
        assert standing.memory_limit == 10 << 30
        until(lambda: rig.driver.slices.get((11, 1)) == ALONE, "the slice")
        assert rig.driver.runs(11)

    def test_groups_for_copies_and_on_other_cards_are_closed(self, rig: Rig) -> None:
        shim = rig.shim(rig.tenant("a")).hello()
        shim.group(11, rig.rm_file).group(11, rig.rm_file, group=2, compute=0).group(11, rig.rm_file, group=3, card=1)
        shim.done(3)
        until(lambda: rig.standing("a").processes)
        until(lambda: rig.held_files() == 1, "the end of the other files")

    def test_a_group_that_is_sent_twice_counts_once(self, rig: Rig) -> None:
        shim = rig.shim(rig.tenant("a")).hello()
        shim.group(11, rig.rm_file).group(11, rig.rm_file).done(2)
        until(lambda: rig.standing("a").processes)
        until(lambda: rig.held_files() == 1)

    def test_who_registers_again_is_ordered_everything_again(self, rig: Rig) -> None:
        shim = rig.registered(rig.tenant("a"), 11)
        until(lambda: rig.driver.slices.get((11, 1)) == ALONE)
        rig.driver.slices[11, 1] = 2048  # libcuda sets its own at the end of making a context
        shim.group(11, rig.rm_file).group(11, rig.rm_file, group=2).done(2)
        until(lambda: [rig.driver.slices.get((11, group)) for group in (1, 2)] == [ALONE, ALONE], "the slices")
        until(lambda: rig.held_files() == 2, "the end of the former files")

    def test_registering_fewer_groups_drops_the_rest(self, rig: Rig) -> None:
        shim = rig.registered(rig.tenant("a"), 11)
        shim.group(11, rig.rm_file, group=2, card=1).done(1)
        until(lambda: not rig.standing("a").processes, "its leaving")
        until(lambda: rig.held_files() == 0)

    def test_registering_again_ends_no_pause(self, rig: Rig) -> None:
        """Or a process could end any pause of its own by telling of its groups all the time."""
        _, offline = rig.preempted()
        rig.driver.calls.clear()
        offline.group(22, rig.rm_file).done(1)
        until(lambda: ("get", 22, None) in rig.driver.calls, "a look at its slice")
        assert not {"pause", "resume"} & {what for what, client, _ in rig.driver.calls if client == 22}

    def test_a_process_without_groups_is_held_at_the_gate(self, rig: Rig) -> None:
        """Under MPS they are the server's."""
        rig.shim(rig.tenant("a")).hello().done(0)
        until(lambda: rig.standing("a").processes)
        assert rig.standing("a").level is Level.GATE

    @pytest.mark.parametrize("refused", ["uuid", "get", "set"])
    def test_a_process_whose_controls_the_driver_refuses_is_held_at_the_gate(self, rig: Rig, refused: str) -> None:
        rig.driver.refuses.add(refused)
        rig.registered(rig.tenant("a"), 11)
        assert rig.standing("a").level is Level.GATE

    def test_a_group_that_is_gone_already_is_no_reason_for_the_gate(self, rig: Rig) -> None:
        rig.driver.gone.add((11, 2))
        rig.shim(rig.tenant("a")).hello().group(11, rig.rm_file).group(11, rig.rm_file, group=2).done(2)
        until(lambda: rig.standing("a").processes)
        assert rig.standing("a").level is Level.HARDWARE
        until(lambda: rig.held_files() == 1)

    def test_a_second_connection_of_a_process_ends_the_first(self, rig: Rig) -> None:
        folder = rig.tenant("a")
        first = rig.registered(folder, 11)
        second = rig.shim(folder).hello().group(11, rig.rm_file).done(1)
        until(first.ended, "the end of the first")
        until(lambda: rig.standing("a").processes)
        until(lambda: rig.held_files() == 1)
        assert not second.ended()

    def test_a_process_of_another_tenant_is_refused(self, rig: Rig) -> None:
        mine, theirs = rig.tenant("a"), rig.tenant("b")
        rig.registered(mine, 11)
        rig.pids[theirs, 0] = rig.pids[mine, 0]
        intruder = rig.shim(theirs)
        until(intruder.ended, "the refusal")
        assert not rig.standing("b").processes

    def test_a_descendant_of_another_tenants_root_is_refused(self, rig: Rig) -> None:
        rig.tenant("a", root=os.getpid())
        child = rig.child(rig.tenant("b"), 22)
        assert ask(child, "ended") == "True"
        assert not rig.standing("b").processes

    def test_a_process_that_has_the_pid_of_another_tenants_ended_root_is_not_that_root(self, rig: Rig) -> None:
        now = processes.start_time(os.getpid()) or 0
        rig.daemon.add(Tenant("a", "a", AppClass.NORMAL, (), os.getuid(), os.getpid(), now - 1), rig.folder / "a")
        rig.child(rig.tenant("b"), 22)
        until(lambda: rig.standing("b").processes)

    def test_a_process_that_left_its_parents_may_register(self, rig: Rig) -> None:
        rig.tenant("a", root=2**22 - 1)
        rig.registered(rig.tenant("b", root=2**22 - 2), 22)

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
    def test_another_users_process_is_refused(self, rig: Rig) -> None:
        folder = rig.tenant("a")
        os.chmod(folder, 0o711)
        os.chmod(folder / "sock", 0o666)  # not as it is: even then
        child = rig.child(folder, 22, uid=65534)
        assert ask(child, "ended") == "True"
        assert not rig.standing("a").processes

    @pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
    def test_the_tenant_owns_its_folder_page_and_socket(self, rig: Rig) -> None:
        rig.daemon.add(Tenant("a", "a", AppClass.NORMAL, (Allotment(UUIDS[0]),), 65534), rig.folder / "a")
        for path in (rig.folder / "a", rig.folder / "a/page", rig.folder / "a/sock"):
            assert os.lstat(path).st_uid == 65534
            assert os.lstat(path).st_mode & 0o077 == 0


class TestDeath:
    def test_a_killed_process_is_gone_at_once_with_all_its_files(self, rig: Rig) -> None:
        """As long as we hold them, the driver keeps the dead process's memory."""
        folder = rig.tenant("a")
        child = rig.child(folder, 11)
        until(lambda: rig.standing("a").processes == (child.pid,))
        assert rig.standing("a").memory_used == 1 << 30
        child.kill()
        until(lambda: rig.held_files() == 0, "the end of its files")
        child.wait()
        until(lambda: not rig.standing("a").processes)
        until(lambda: not rig.daemon.alive("a"))
        until(lambda: rig.standing("a").memory_used == 0, "its memory given back")

    def test_a_full_sweep_frees_slots_of_dead_processes_that_never_registered(self, rig: Rig) -> None:
        page = os.open(rig.tenant("a") / "page", os.O_RDWR)
        os.pwrite(page, struct.pack("<Q", 1 << 30), Page._at(200, 0) + pages.MEMORY)
        os.pwrite(page, struct.pack("<I", 4711), Page._at(200, 0) - 64)
        os.close(page)
        until(lambda: rig.standing("a").memory_used == 1 << 30, "what it says it has")
        for _ in range(8):  # seconds
            with rig.daemon._lock:
                rig.daemon._sweep()
        until(lambda: rig.standing("a").memory_used == 0, "its memory given back")

    def test_a_killed_process_is_gone_although_its_child_holds_the_connection(self, rig: Rig) -> None:
        """The end of the connection does not come: the kernel tells of the death."""
        shim = rig.registered(rig.tenant("a"), 11)
        (process,) = rig.daemon._tenancies["a"].processes
        rig.daemon._registrar._died(rig.daemon._tenancies["a"], process)
        until(lambda: rig.held_files() == 0)
        until(shim.ended)

    def test_a_killed_paused_process_does_not_stop_the_others(self, rig: Rig) -> None:
        online, offline = rig.tenant("on", ONLINE), rig.tenant("off", OFFLINE)
        child = rig.child(offline, 22)
        until(lambda: rig.standing("off").processes)
        shim = rig.registered(online, 11)
        page = os.open(offline / "page", os.O_RDWR)
        os.pwrite(page, struct.pack("<I", 1), 64 + 16 * 128 + 64 + pages.WAITING)
        os.close(page)
        shim.launch()
        until(lambda: not rig.driver.runs(22), "the pause")
        child.kill()
        until(lambda: rig.held_files() == 1)
        until(lambda: not rig.standing("off").processes)

    def test_a_daemon_knows_who_lives_without_a_registration(self, rig: Rig) -> None:
        folder = rig.tenant("a")
        assert not rig.daemon.alive("a")
        rig.child(folder, 11)
        assert rig.daemon.alive("a")
        assert not rig.daemon.alive("nobody")
