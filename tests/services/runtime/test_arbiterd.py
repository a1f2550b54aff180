"""The arbiter at work: shares of processes, tenants that come and go, an end that leaves no process paused."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import time
from pathlib import Path

import pytest

from aliquot.adapters.gpu import page as pages
from aliquot.adapters.gpu.page import Page, PageError
from aliquot.adapters.storage import tenantfolder
from aliquot.arbiter import slices
from aliquot.arbiter.orders import Arm
from aliquot.arbiter.roster import Member
from aliquot.arbiter.timeline import Timeline
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import Allotment, Level, SharingRules, State, Tenant
from aliquot.services.runtime.cards.cardloop import CardLoop
from aliquot.services.runtime.limits import audit
from aliquot.services.runtime.processes.contexts import Context
from kit.cards.arbiterd import UUIDS, Rig, open_files, tell, until

ONLINE, OFFLINE = AppClass.ONLINE, AppClass.OFFLINE
STOCK = 2048  # the driver's own slice
ALONE = slices.FAIR + slices.SWITCH  # the slice of one that is alone


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
        offline = rig.shim(rig.tenant("off", OFFLINE)).hello().done(0)
        until(lambda: rig.standing("off").processes)
        offline.launch()
        online.launch()
        until(lambda: offline.use().gate == 1, "the closed gate")
        assert offline.use().paused == 0
        online.rest()
        until(lambda: offline.use().gate == 0, "the open gate")

    def test_rules_can_be_changed(self, rig: Rig) -> None:
        shim = rig.registered(rig.tenant("a"), 11)
        shim.launch()
        rig.daemon.configure(SharingRules(Isolation.FIXED_SHARE))
        until(lambda: not rig.driver.runs(11), "the end of its window")
        rig.daemon.configure(SharingRules(Isolation.BURST_SHARE))
        until(lambda: rig.driver.runs(11))
        time.sleep(0.15)
        assert rig.driver.runs(11)

    def test_standings_have_the_measured_share(self, rig: Rig) -> None:
        shim = rig.registered(rig.tenant("a"), 11)
        shim.set(pages.BUSY_SINCE, time.monotonic_ns(), size=8)
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

    def test_trace_is_empty_while_no_viewer_draws(self, rig: Rig) -> None:
        shim = rig.registered(rig.tenant("a"), 11)
        rig.daemon.keep_trace(True)
        shim.launch()
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
        loop._performer.perform([Arm("a/1")])
        assert loop.arbiter.deadline == 0.0
        assert not loop.arbiter.roster.contexts["a/1"].quiet
        page.close()


class TestComingAndGoing:
    def test_adding_twice_changes_nothing(self, rig: Rig) -> None:
        shim = rig.registered(rig.tenant("a"), 11)
        files = open_files()
        rig.tenant("a")
        assert open_files() == files
        assert not shim.ended()

    def test_a_removed_tenant_leaves_nothing(self, rig: Rig) -> None:
        before = open_files()
        folder = rig.tenant("a")
        shim = rig.registered(folder, 11)
        rig.daemon.remove("a")
        rig.daemon.remove("a")
        until(shim.ended)
        shim.close()
        until(lambda: open_files() == before, "the end of all files")
        assert not folder.exists()
        until(lambda: not rig.daemon.standings())

    def test_a_tenant_that_was_removed_while_paused_is_resumed(self, rig: Rig) -> None:
        rig.preempted()
        rig.daemon.remove("off")
        until(lambda: rig.driver.runs(22))

    def test_a_tenant_that_is_added_again_starts_anew(self, rig: Rig) -> None:
        for client in (11, 12):
            shim = rig.registered(rig.tenant("a"), client)
            rig.daemon.remove("a")
            until(shim.ended)

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

    def test_a_daemon_that_ends_leaves_no_tenant_paused_and_no_gate_closed(self, rig: Rig) -> None:
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        hardware = rig.registered(rig.tenant("off", OFFLINE), 22)
        gated = rig.shim(rig.tenant("mps", OFFLINE), 1).hello().done(0)
        until(lambda: rig.standing("mps").processes)
        for shim in (hardware, gated, online):
            shim.launch()
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

    def test_folder_of_a_group_keeps_its_owner(self, rig: Rig) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root")
        for name, group in (("g", "g"), ("member", "g")):
            tenant = Tenant(name, name, ONLINE, (Allotment(UUIDS[0]),), uid=65533, group=group)
            rig.daemon.add(tenant, rig.folder / name)
        assert [(rig.folder / name).stat().st_uid for name in ("g", "member")] == [0, 65533]

    def test_a_link_in_the_place_of_the_socket_is_not_chowned(self, tmp_path: Path) -> None:
        """The folder is the tenant's: it may put a link to a file of root's where the daemon just made a socket."""
        folder = os.open(tmp_path, os.O_RDONLY)
        (tmp_path / "precious").touch()
        (tmp_path / ".sock.1").symlink_to("precious")
        with pytest.raises(OSError, match=r"sock\.1"):
            tenantfolder._give(folder, ".sock.1", 65534)
        os.link(tmp_path / "precious", tmp_path / ".sock.2")
        with pytest.raises(FileExistsError):
            tenantfolder._give(folder, ".sock.2", 65534)
        with socket.socket(socket.AF_UNIX) as of_another:
            of_another.bind(str(tmp_path / "docker.sock"))
        os.link(tmp_path / "docker.sock", tmp_path / ".sock.3")
        with pytest.raises(FileExistsError):
            tenantfolder._give(folder, ".sock.3", 65534)
        os.close(folder)
        assert {os.stat(tmp_path / name).st_uid for name in ("precious", "docker.sock")} == {os.getuid()}


class TestAudit:
    def test_audit_writes_the_drivers_overhead_to_the_page(self, rig: Rig) -> None:
        shim = rig.registered(rig.tenant("a"), 11)
        shim.set(pages.MEMORY, 1 << 30, size=8)
        rig.nvml.on_card[UUIDS[0]] = {shim.pid: (1 << 30) + (500 << 20)}
        rig.daemon._auditor.inspect(UUIDS[0])
        assert shim.use().overhead == 500 << 20

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

    def test_audit_judges_no_process_whose_owner_cannot_be_read_for_lack_of_files(self, rig: Rig) -> None:
        def lacks_files(pid: int) -> list[str]:
            raise OSError(errno.EMFILE, "Too many open files")

        rig.patch.setattr(audit, "_GRACE", -1.0)
        rig.nvml.on_card[UUIDS[0]] = {2**22 - 5: 1 << 30}
        assert len(rig.daemon._auditor.inspect(UUIDS[0])) == 1
        with pytest.MonkeyPatch.context() as scarce:
            scarce.setattr(rig.daemon._owners, "_ids", lacks_files)
            assert rig.daemon._auditor.inspect(UUIDS[0]) == []
        assert len(rig.daemon._auditor.inspect(UUIDS[0])) == 1

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
    shim = rig.shim(folder).hello()
    until(lambda: shim.pid in rig.daemon.work(UUIDS[0]).pids, "its connection counts")
    connected = rig.daemon.work(UUIDS[0])
    shim.group(11, rig.rm_file)
    until(lambda: rig.daemon.work(UUIDS[0]).seen == 1, "its context counts before it is complete")
    registered = rig.daemon.work(UUIDS[0])
    shim.set(0, 1 << 20, size=8)
    allocated = rig.daemon.work(UUIDS[0])
    assert allocated.memory == 1 << 20
    shim.launch()
    assert len({nothing, connected, registered, allocated, rig.daemon.work(UUIDS[0])}) == 5
    assert rig.daemon.work(UUIDS[1]) == nothing


def test_threads_that_compute_do_not_keep_a_cards_loop_waiting(rig: Rig) -> None:
    """With Python's own 5 ms each order waited that long for the interpreter."""
    assert rig.daemon.controls()  # it was started
    assert sys.getswitchinterval() <= 0.001
