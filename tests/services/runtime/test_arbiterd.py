"""The arbiter at work: processes register, are held to their shares, die; the daemon ends and leaves nobody paused."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from aliquot.adapters.gpu import page as pages
from aliquot.adapters.gpu import rm
from aliquot.adapters.gpu.page import Page, PageError
from aliquot.adapters.host import processes
from aliquot.adapters.storage import tenantfolder
from aliquot.arbiter import slices
from aliquot.arbiter.card import CardArbiter
from aliquot.arbiter.orders import Arm, SetSlice
from aliquot.arbiter.roster import Member
from aliquot.arbiter.timeline import Timeline
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import Allotment, Level, SharingRules, State, Tenant
from aliquot.services.runtime import audit, cardloop
from aliquot.services.runtime.cardloop import CardLoop
from aliquot.services.runtime.contexts import Context
from kit.arbiterd import UUIDS, Rig, ask, open_files, tell, until

ONLINE, OFFLINE = AppClass.ONLINE, AppClass.OFFLINE
STOCK = 2048  # the driver's own slice
ALONE = slices.FAIR + slices.SWITCH  # the slice of one that is alone


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    before = open_files()
    made = Rig(tmp_path, monkeypatch)
    yield made
    made.end()
    del made.children[:]
    assert open_files() == before, "files were left open"


class TestRegistration:
    def test_a_process_joins_the_card_of_its_group(self, rig: Rig) -> None:
        guest = rig.registered(rig.tenant("a"), 11)
        standing = rig.standing("a")
        assert standing.processes == (guest.pid,)
        assert standing.level is Level.HARDWARE
        assert standing.memory_limit == 10 << 30
        until(lambda: rig.driver.slices.get((11, 1)) == ALONE, "the slice")
        assert rig.driver.runs(11)

    def test_groups_for_copies_and_on_other_cards_are_closed(self, rig: Rig) -> None:
        guest = rig.guest(rig.tenant("a")).hello()
        guest.group(11, rig.rm_file).group(11, rig.rm_file, group=2, compute=0).group(11, rig.rm_file, group=3, card=1)
        guest.done(3)
        until(lambda: rig.standing("a").processes)
        until(lambda: rig.held_files() == 1, "the end of the other files")

    def test_a_group_that_is_sent_twice_counts_once(self, rig: Rig) -> None:
        guest = rig.guest(rig.tenant("a")).hello()
        guest.group(11, rig.rm_file).group(11, rig.rm_file).done(2)
        until(lambda: rig.standing("a").processes)
        until(lambda: rig.held_files() == 1)

    def test_who_registers_again_is_ordered_everything_again(self, rig: Rig) -> None:
        guest = rig.registered(rig.tenant("a"), 11)
        until(lambda: rig.driver.slices.get((11, 1)) == ALONE)
        rig.driver.slices[11, 1] = 2048  # libcuda sets its own at the end of making a context
        guest.group(11, rig.rm_file).group(11, rig.rm_file, group=2).done(2)
        until(lambda: [rig.driver.slices.get((11, group)) for group in (1, 2)] == [ALONE, ALONE], "the slices")
        until(lambda: rig.held_files() == 2, "the end of the former files")

    def test_registering_fewer_groups_drops_the_rest(self, rig: Rig) -> None:
        guest = rig.registered(rig.tenant("a"), 11)
        guest.group(11, rig.rm_file, group=2, card=1).done(1)
        until(lambda: not rig.standing("a").processes, "its leaving")
        until(lambda: rig.held_files() == 0)

    def test_registering_again_ends_no_pause(self, rig: Rig) -> None:
        """Or a process could end any pause of its own by telling of its groups all the time."""
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        offline = rig.registered(rig.tenant("off", OFFLINE), 22)
        offline.launch()
        online.launch()
        until(lambda: not rig.driver.runs(22), "the pause")
        rig.driver.calls.clear()
        offline.group(22, rig.rm_file).done(1)
        until(lambda: ("get", 22, None) in rig.driver.calls, "a look at its slice")
        assert not {"pause", "resume"} & {what for what, client, _ in rig.driver.calls if client == 22}

    def test_a_process_without_groups_is_held_at_the_gate(self, rig: Rig) -> None:
        """Under MPS they are the server's."""
        rig.guest(rig.tenant("a")).hello().done(0)
        until(lambda: rig.standing("a").processes)
        assert rig.standing("a").level is Level.GATE

    @pytest.mark.parametrize("refused", ["uuid", "get", "set"])
    def test_a_process_whose_controls_the_driver_refuses_is_held_at_the_gate(self, rig: Rig, refused: str) -> None:
        rig.driver.refuses.add(refused)
        rig.registered(rig.tenant("a"), 11)
        assert rig.standing("a").level is Level.GATE

    def test_a_group_that_is_gone_already_is_no_reason_for_the_gate(self, rig: Rig) -> None:
        rig.driver.gone.add((11, 2))
        rig.guest(rig.tenant("a")).hello().group(11, rig.rm_file).group(11, rig.rm_file, group=2).done(2)
        until(lambda: rig.standing("a").processes)
        assert rig.standing("a").level is Level.HARDWARE
        until(lambda: rig.held_files() == 1)

    def test_a_second_connection_of_a_process_ends_the_first(self, rig: Rig) -> None:
        folder = rig.tenant("a")
        first = rig.registered(folder, 11)
        second = rig.guest(folder).hello().group(11, rig.rm_file).done(1)
        until(first.ended, "the end of the first")
        until(lambda: rig.standing("a").processes)
        until(lambda: rig.held_files() == 1)
        assert not second.ended()

    def test_a_process_of_another_tenant_is_refused(self, rig: Rig) -> None:
        mine, theirs = rig.tenant("a"), rig.tenant("b")
        rig.registered(mine, 11)
        rig.pids[theirs, 0] = rig.pids[mine, 0]
        intruder = rig.guest(theirs)
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
        guest = rig.registered(rig.tenant("a"), 11)
        (process,) = rig.daemon._tenancies["a"].processes
        rig.daemon._registrar._died(rig.daemon._tenancies["a"], process)
        until(lambda: rig.held_files() == 0)
        until(guest.ended)

    def test_a_killed_paused_process_does_not_stop_the_others(self, rig: Rig) -> None:
        online, offline = rig.tenant("on", ONLINE), rig.tenant("off", OFFLINE)
        child = rig.child(offline, 22)
        until(lambda: rig.standing("off").processes)
        guest = rig.registered(online, 11)
        page = os.open(offline / "page", os.O_RDWR)
        os.pwrite(page, struct.pack("<I", 1), 64 + 16 * 128 + 64 + pages.WAITING)
        os.close(page)
        guest.launch()
        until(lambda: not rig.driver.runs(22), "the pause")
        child.kill()
        until(lambda: rig.held_files() == 1)
        until(lambda: not rig.standing("off").processes)

    def test_a_daemon_knows_who_lives_although_nobody_registered_with_it(self, rig: Rig) -> None:
        folder = rig.tenant("a")
        assert not rig.daemon.alive("a")
        rig.child(folder, 11)
        assert rig.daemon.alive("a")
        assert not rig.daemon.alive("nobody")


class TestSharing:
    def test_online_work_takes_the_card_and_gives_it_back(self, rig: Rig) -> None:
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        offline = rig.registered(rig.tenant("off", OFFLINE), 22)
        offline.launch()
        until(lambda: rig.driver.slices.get((22, 1)) == 1, "the tiny slice")
        until(lambda: online.use().wake, "the question")
        online.launch()
        until(lambda: not rig.driver.runs(22), "the pause")
        assert offline.use().paused == 1
        until(lambda: rig.standing("off").state is State.PAUSED)
        assert rig.standing("off").preemptions == 1
        online.rest()
        until(lambda: rig.driver.runs(22), "the release")
        until(lambda: offline.use().paused == 0)
        until(lambda: rig.standing("off").paused_seconds > 0.05)

    def test_online_work_closes_the_gate_on_the_page(self, rig: Rig) -> None:
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        offline = rig.guest(rig.tenant("off", OFFLINE)).hello().done(0)
        until(lambda: rig.standing("off").processes)
        offline.launch()
        online.launch()
        until(lambda: offline.use().gate == 1, "the closed gate")
        assert offline.use().paused == 0
        online.rest()
        until(lambda: offline.use().gate == 0, "the open gate")

    def test_rules_can_be_changed(self, rig: Rig) -> None:
        guest = rig.registered(rig.tenant("a"), 11)
        guest.launch()
        rig.daemon.configure(SharingRules(Isolation.FIXED_SHARE))
        until(lambda: not rig.driver.runs(11), "the end of its window")
        rig.daemon.configure(SharingRules(Isolation.BURST_SHARE))
        until(lambda: rig.driver.runs(11))
        time.sleep(0.15)
        assert rig.driver.runs(11)

    def test_standings_have_the_measured_share(self, rig: Rig) -> None:
        guest = rig.registered(rig.tenant("a"), 11)
        guest.set(pages.BUSY_SINCE, time.monotonic_ns(), size=8)
        until(lambda: (rig.standing("a").share or 0.0) > 0.2, "a share")

    def test_trace_records_who_held_the_card(self, rig: Rig) -> None:
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        offline = rig.registered(rig.tenant("off", OFFLINE), 22)  # both were there before it was wanted
        rig.daemon.keep_trace(True)
        offline.launch()
        until(lambda: rig.driver.slices.get((22, 1)) == 1, "the tiny slice")
        until(lambda: online.use().wake, "the question")
        online.launch()
        online.set(pages.BUSY_SINCE, time.monotonic_ns(), size=8)
        timeline = Timeline()

        def drawn() -> bool:
            timeline.add(rig.daemon.records()[UUIDS[0]])
            window = timeline.window(None, time.monotonic())
            tracks = window.tracks
            return (
                bool(window.marks)
                and max(tracks["on"].shares) > 50
                and max(tracks["off"].paused) == 1
                and (window.marks[0].by, window.marks[0].of) == ("on", ("off",))
            )

        until(drawn, "the picture")

    def test_trace_is_empty_while_nobody_draws(self, rig: Rig) -> None:
        guest = rig.registered(rig.tenant("a"), 11)
        rig.daemon.keep_trace(True)
        guest.launch()
        until(lambda: rig.daemon.records()[UUIDS[0]], "records")
        rig.daemon.keep_trace(False)
        until(lambda: rig.daemon._loops[UUIDS[0]]._trace.active is False, "the end of it")
        assert rig.daemon.records()[UUIDS[0]] == []

    def test_refused_allocations_are_counted_on_when_the_process_has_ended(self, rig: Rig) -> None:
        """Most programs end when they get no memory: their number goes with them."""
        folder = rig.tenant("a")
        first = rig.registered(folder, 11)
        first.set(pages.REFUSED, 2)
        until(lambda: rig.standing("a").refused == 2, "the first one's")
        first.set(pages.REFUSED, 0)
        first.close()
        until(lambda: not rig.standing("a").processes, "its end")
        second = rig.registered(folder, 12, 1)
        second.set(pages.REFUSED, 1)
        until(lambda: rig.standing("a").refused == 3, "those of both")

    def test_a_launch_between_reading_and_arming_is_not_lost(self, tmp_path: Path) -> None:
        """The word is set too late for it to ring: so the count is looked at again after that."""
        loop = CardLoop(UUIDS[0], SharingRules())  # its thread is not started
        page = Page(tmp_path / "page", (Allotment(UUIDS[0]),))
        loop._admit(Member("a", AppClass.NORMAL, None), page, 0, None, 0.0)
        loop._join(Context("a/1", "a", 1, page, 0, 0, (), Level.HARDWARE), 0.0)
        loop._round(1.0)
        os.pwrite(page.fileno(), struct.pack("<Q", 1), Page._at(0, 0) + pages.LAUNCHES)
        loop._perform([Arm("a/1")])
        assert loop.arbiter.deadline == 0.0
        assert not loop.arbiter.roster.contexts["a/1"].quiet
        page.close()


def _passes(number: Callable[[], int], mark: int) -> bool:
    return number() > mark


class TestHeartbeat:
    def beat(self, folder: Path, card: int = 0) -> int:
        found: int = struct.unpack_from("<Q", (folder / "page").read_bytes(), 64 + card * 128 + 56)[0]
        return found

    def test_heartbeat_is_on_every_page_of_every_card_all_the_time(self, rig: Rig) -> None:
        both = Tenant("both", "both", AppClass.NORMAL, tuple(map(Allotment, UUIDS)), os.getuid())
        rig.daemon.add(both, rig.folder / "both")
        for card in (0, 1):
            beat = partial(self.beat, rig.folder / "both", card)
            first = until(beat)
            until(partial(_passes, beat, first), "the next beat")
            assert time.monotonic_ns() - beat() < 600_000_000

    def test_heartbeat_goes_on_when_a_round_fails(self, rig: Rig) -> None:
        folder = rig.tenant("a")
        first = until(lambda: self.beat(folder))
        rig.daemon._loops[UUIDS[0]]._inbox.put(lambda now: 1 / 0)  # type: ignore[arg-type]
        until(lambda: self.beat(folder) > first)
        rig.registered(folder, 11)

    def test_heartbeat_stops_while_every_round_fails(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        """A heartbeat promises that pauses will be ended: who cannot keep that lets tenants end them themselves."""
        folder = rig.tenant("a")
        until(lambda: self.beat(folder))

        def fails(*_: object) -> None:
            raise ArithmeticError

        with monkeypatch.context() as broken:
            broken.setattr(CardArbiter, "tick", fails)
            until(lambda: time.monotonic_ns() - self.beat(folder) > 600_000_000, "the silence")
        until(lambda: time.monotonic_ns() - self.beat(folder) < 600_000_000, "the heartbeat")

    def test_heartbeat_goes_on_during_many_slow_orders(self, rig: Rig) -> None:
        """Each may take 20 ms; a page whose last beat is old means to a tenant that we are gone."""
        folder = rig.tenant("z", OFFLINE)
        beats: list[int] = []
        loop = rig.daemon._loops[UUIDS[0]]
        rig.registered(folder, 22)
        real = rig.driver.set_slice

        def slow(group: rm.Group, microseconds: int) -> None:
            time.sleep(0.03)
            beats.append(self.beat(folder))
            real(group, microseconds)

        rig.patch.setattr(rm, "set_slice", slow)
        (name,) = loop._contexts
        orders = [SetSlice(name, 5000 + at) for at in range(8)]
        loop._inbox.put(lambda now: (loop._perform(orders), None)[1])
        until(lambda: len(beats) >= 8)
        assert len(set(beats)) >= 2

    def test_after_a_stall_undone_pauses_are_ordered_again(self, rig: Rig) -> None:
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        offline = rig.registered(rig.tenant("off", OFFLINE), 22)
        offline.launch()
        online.launch()
        until(lambda: not rig.driver.runs(22))
        loop = rig.daemon._loops[UUIDS[0]]
        rig.driver.paused.clear()  # the tenants' own doing
        rig.driver.slices[11, 1] = rig.driver.slices[22, 1] = STOCK
        loop._inbox.put(lambda now: setattr(loop, "_beaten", now - 10.0))
        until(lambda: not rig.driver.runs(22), "the pause again")
        until(lambda: [rig.driver.slices[client, 1] for client in (11, 22)] == [slices.LONG, slices.TINY], "the slices")

    def test_a_context_that_resumed_itself_is_paused_again_but_seldom(self, rig: Rig) -> None:
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        offline = rig.registered(rig.tenant("off", OFFLINE), 22)
        offline.launch()
        online.launch()
        until(lambda: not rig.driver.runs(22))
        rig.driver.calls.clear()
        until(lambda: offline.use().paused)
        offline.set(pages.PAUSED, 0)
        until(lambda: ("pause", 22, None) in rig.driver.calls, "the pause again")
        until(lambda: offline.use().paused)
        rig.driver.calls.clear()
        for _ in range(20):
            offline.set(pages.PAUSED, 0)
            time.sleep(0.01)
        assert rig.driver.calls.count(("pause", 22, None)) <= 1


class TestRefusal:
    def test_a_context_that_the_driver_refuses_later_is_held_at_the_gate(self, rig: Rig) -> None:
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        offline = rig.registered(rig.tenant("off", OFFLINE), 22)
        offline.launch()
        rig.driver.refuses.add("pause")
        online.launch()
        until(lambda: offline.use().gate == 1, "the closed gate")
        assert offline.use().paused == 0
        assert rig.driver.runs(22)
        until(lambda: rig.standing("off").level is Level.GATE)
        assert [finding.text for finding in rig.daemon.findings() if "held at the gate" in finding.text]

    def test_a_group_that_is_gone_does_not_keep_the_others_paused(self, rig: Rig) -> None:
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        offline = rig.guest(rig.tenant("off", OFFLINE)).hello()
        offline.group(22, rig.rm_file).group(22, rig.rm_file, group=2).done(2)
        until(lambda: rig.standing("off").processes)
        offline.launch()
        online.launch()
        until(lambda: rig.driver.paused == {(22, 1), (22, 2)}, "the pause of both")
        rig.driver.gone.add((22, 1))
        online.rest()
        until(lambda: rig.driver.paused == {(22, 1)}, "the release of the other")
        until(lambda: offline.use().paused == 0)
        assert rig.standing("off").level is Level.HARDWARE
        online.launch()
        until(lambda: (22, 2) in rig.driver.paused, "the next pause of the other")

    def test_an_expelled_process_is_not_left_paused(self, rig: Rig) -> None:
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        offline = rig.registered(rig.tenant("off", OFFLINE), 22)
        offline.launch()
        online.launch()
        until(lambda: not rig.driver.runs(22))
        offline.hello()  # a second time
        until(offline.ended)
        until(lambda: rig.driver.runs(22), "its resume")
        assert offline.use().paused == 0
        assert rig.driver.slices[22, 1] == STOCK

    def test_a_slice_changed_behind_our_back_is_set_again_and_reported(self, rig: Rig) -> None:
        rig.patch.setattr(cardloop, "_FIRST_CHECKS", (0.02, 0.04, 0.3))
        rig.patch.setattr(cardloop, "_SETTLED", 0.1)
        rig.registered(rig.tenant("a"), 11)
        until(lambda: rig.driver.slices.get((11, 1)) == ALONE)
        time.sleep(0.1)
        rig.driver.slices[11, 1] = 1_000_000
        until(lambda: rig.driver.slices[11, 1] == ALONE, "the slice again")
        until(lambda: any("behind our back" in finding.text for finding in rig.daemon.findings()))
        rig.guests[0].close()
        until(lambda: not rig.daemon.findings(), "nothing to tell of one that is gone")


class TestComingAndGoing:
    def test_adding_twice_changes_nothing(self, rig: Rig) -> None:
        guest = rig.registered(rig.tenant("a"), 11)
        files = open_files()
        rig.tenant("a")
        assert open_files() == files
        assert not guest.ended()

    def test_a_removed_tenant_leaves_nothing(self, rig: Rig) -> None:
        before = open_files()
        folder = rig.tenant("a")
        guest = rig.registered(folder, 11)
        rig.daemon.remove("a")
        rig.daemon.remove("a")
        until(guest.ended)
        guest.close()
        until(lambda: open_files() == before, "the end of all files")
        assert not folder.exists()
        until(lambda: not rig.daemon.standings())

    def test_a_tenant_that_was_removed_while_paused_is_resumed(self, rig: Rig) -> None:
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        offline = rig.registered(rig.tenant("off", OFFLINE), 22)
        offline.launch()
        online.launch()
        until(lambda: not rig.driver.runs(22))
        rig.daemon.remove("off")
        until(lambda: rig.driver.runs(22))

    def test_a_tenant_that_is_added_again_starts_anew(self, rig: Rig) -> None:
        for client in (11, 12):
            guest = rig.registered(rig.tenant("a"), client)
            rig.daemon.remove("a")
            until(guest.ended)

    def test_the_next_daemon_adopts_running_tenants(self, rig: Rig) -> None:
        folder = rig.tenant("a")
        child = rig.child(folder, 11)
        until(lambda: rig.standing("a").processes)
        page = os.stat(folder / "page")
        rig.daemon.stop()
        rig.daemon = rig.another()
        rig.tenant("a")
        assert os.path.samestat(page, os.stat(folder / "page"))
        assert rig.daemon.alive("a")
        tell(child, "anew")
        until(lambda: rig.standing("a").processes == (child.pid,), "its coming back")
        assert rig.standing("a").memory_used == 1 << 30

    def test_a_daemon_that_ends_leaves_shares_as_they_are(self, rig: Rig) -> None:
        for name, process in (("a", 11), ("b", 22)):
            rig.registered(rig.tenant(name), process).launch()
        equal = slices.FAIR + slices.SWITCH
        until(lambda: [rig.driver.slices[client, 1] for client in (11, 22)] == [equal, equal], "the slices")
        rig.daemon.stop()
        assert [rig.driver.slices[client, 1] for client in (11, 22)] == [equal, equal]

    def test_a_daemon_that_ends_leaves_nobody_paused_and_no_gate_closed(self, rig: Rig) -> None:
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        hardware = rig.registered(rig.tenant("off", OFFLINE), 22)
        gated = rig.guest(rig.tenant("mps", OFFLINE), 1).hello().done(0)
        until(lambda: rig.standing("mps").processes)
        for guest in (hardware, gated, online):
            guest.launch()
        until(lambda: not rig.driver.runs(22))
        until(lambda: gated.use().gate == 1)
        assert rig.driver.slices[22, 1] == slices.TINY
        rig.daemon.stop()
        assert rig.driver.runs(22)
        assert rig.driver.slices[22, 1] == STOCK, "two that are left with tiny slices would stop each other for good"
        assert hardware.use().paused == 0
        assert gated.use().gate == 0
        assert (rig.folder / "off/page").exists()

    def test_a_page_that_cannot_be_made_leaves_nothing_open(self, rig: Rig) -> None:
        before = open_files()
        (rig.folder / "a").mkdir()
        (rig.folder / "a/page").mkdir()
        with pytest.raises(PageError):
            rig.tenant("a")
        (rig.folder / "b").mkdir()
        (rig.folder / "b/sock").mkdir()
        with pytest.raises(OSError, match="sock"):
            rig.tenant("b")
        assert open_files() == before
        assert not rig.daemon.standings()

    def test_a_link_in_the_place_of_the_socket_is_not_chowned(self, tmp_path: Path) -> None:
        """The folder is the tenant's: it may put a link to a file of root's where the daemon just made a socket."""
        (tmp_path / "precious").touch()
        (tmp_path / ".sock.1").symlink_to("precious")
        with pytest.raises(OSError, match=r"sock\.1"):
            tenantfolder._give(tmp_path / ".sock.1", 65534)
        os.link(tmp_path / "precious", tmp_path / ".sock.2")
        with pytest.raises(FileExistsError):
            tenantfolder._give(tmp_path / ".sock.2", 65534)
        with socket.socket(socket.AF_UNIX) as of_another:
            of_another.bind(str(tmp_path / "docker.sock"))
        os.link(tmp_path / "docker.sock", tmp_path / ".sock.3")
        with pytest.raises(FileExistsError):
            tenantfolder._give(tmp_path / ".sock.3", 65534)
        assert {os.stat(tmp_path / name).st_uid for name in ("precious", "docker.sock")} == {os.getuid()}


class TestAudit:
    def test_audit_writes_the_drivers_overhead_to_the_page(self, rig: Rig) -> None:
        guest = rig.registered(rig.tenant("a"), 11)
        guest.set(pages.MEMORY, 1 << 30, size=8)
        rig.nvml.on_card[UUIDS[0]] = {guest.pid: (1 << 30) + (500 << 20)}
        rig.daemon._auditor.inspect(UUIDS[0])
        assert guest.use().overhead == 500 << 20

    def test_audit_reports_a_process_of_no_tenant_after_a_grace_period(self, rig: Rig) -> None:
        rig.nvml.on_card[UUIDS[0]] = {2**22 - 5: 1 << 30}
        assert rig.daemon._auditor.inspect(UUIDS[0]) == []
        rig.patch.setattr(audit, "_GRACE", -1.0)
        (finding,) = rig.daemon._auditor.inspect(UUIDS[0])
        assert finding.pid == 2**22 - 5
        assert "aliquot run" in finding.text

    def test_audit_reports_a_tenants_process_that_has_not_registered(self, rig: Rig) -> None:
        folder = rig.tenant("a")
        rig.patch.setattr(audit, "_GRACE", -1.0)
        child = rig.child(folder, 11)
        until(lambda: rig.standing("a").processes)
        rig.nvml.on_card[UUIDS[0]] = {child.pid: 1}
        assert rig.daemon._auditor.inspect(UUIDS[0]) == []
        tenant = rig.daemon._tenancies["a"].tenant
        rig.patch.setattr(rig.daemon._owners, "_ids", lambda pid: [tenant.id])
        rig.nvml.on_card[UUIDS[0]] = {2**22 - 5: 1}
        (finding,) = rig.daemon._auditor.inspect(UUIDS[0])
        assert "has not registered" in finding.text

    def test_findings_have_a_page_that_cannot_be_written_while_it_is_so(self, rig: Rig) -> None:
        rig.tenant("a")
        page = rig.daemon._tenancies["a"].page

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with pytest.MonkeyPatch.context() as disk:
            disk.setattr(os, "pwrite", full)
            until(lambda: any("cannot be written" in finding.text for finding in rig.daemon.findings()), "the finding")
        until(lambda: page.trouble is None and not rig.daemon.findings(), "its end")


def test_work_on_a_card_counts_whatever_a_process_does_there(rig: Rig) -> None:
    """A trial of ours on an idle card ends at each of these."""
    folder = rig.tenant("a")
    nothing = rig.daemon.work(UUIDS[0])
    guest = rig.guest(folder).hello()
    until(lambda: guest.pid in rig.daemon.work(UUIDS[0]).pids, "its connection counts")
    connected = rig.daemon.work(UUIDS[0])
    guest.group(11, rig.rm_file)
    until(lambda: rig.daemon.work(UUIDS[0]).seen == 1, "its context counts before it is complete")
    registered = rig.daemon.work(UUIDS[0])
    guest.set(0, 1 << 20, size=8)
    allocated = rig.daemon.work(UUIDS[0])
    assert allocated.memory == 1 << 20
    guest.launch()
    assert len({nothing, connected, registered, allocated, rig.daemon.work(UUIDS[0])}) == 5
    assert rig.daemon.work(UUIDS[1]) == nothing


def test_threads_that_compute_do_not_keep_a_cards_loop_waiting(rig: Rig) -> None:
    """With Python's own 5 ms each order waited that long for the interpreter."""
    assert rig.daemon.controls()  # it was started
    assert sys.getswitchinterval() <= 0.001
