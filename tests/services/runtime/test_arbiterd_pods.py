"""Tenants that are Pods: any user's processes, told apart by what the kernel says of them and not by who runs them."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aliquot.adapters.gpu import link
from aliquot.adapters.host.process import processes
from aliquot.adapters.storage import tenantfolder
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Allotment, FindingKind, Tenant
from aliquot.services.runtime.limits import audit
from kit.cards.arbiterd import UUIDS, FakeShim, Rig, ask, running, until
from kit.running.logged import logged
from kit.running.privileges import needs_mounts

POD, OTHER, UNKNOWN = "3f2a9c1e-8d47", "77777777-8d47", "99999999-8d47"
NOBODY = 65534

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: dict[int, str]) -> Iterator[Rig]:
    yield from running(lambda: Rig(tmp_path, monkeypatch, whose=_by_ancestors(pods)))


def _by_ancestors(pods: dict[int, str]) -> Callable[[int], str | None]:
    """A cgroup is inherited."""
    return lambda pid: next((pods[ancestor] for ancestor in processes.ancestors(pid) if ancestor in pods), None)


def add(rig: Rig, uid: str = POD, *, cards: int = 1) -> Path:
    allotments = tuple(Allotment(uuid, 10 << 30, 500) for uuid in UUIDS[:cards])
    rig.daemon.add(Tenant(uid, f"default/{uid[:4]}", AppClass.NORMAL, allotments, None), rig.folder / "t" / uid)
    return rig.folder / "t" / uid


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


class TestPodFolder:
    def test_all_users_may_use_a_pods_page_and_socket_and_only_we_change_the_folder(self, rig: Rig) -> None:
        former = os.umask(0o077)
        try:
            folder = add(rig)
        finally:
            os.umask(former)
        assert (mode(folder), mode(folder / "page"), mode(folder / "sock")) == (0o755, 0o666, 0o666)
        assert {os.lstat(path).st_uid for path in (folder, folder / "page", folder / "sock")} == {os.getuid()}

    def test_a_pods_folder_is_not_reachable_without_its_mount(self, rig: Rig) -> None:
        assert mode(add(rig).parent) == 0o700

    @as_root
    def test_a_folder_of_an_older_version_gets_the_right_modes(self, rig: Rig) -> None:
        folder = rig.folder / "t" / POD
        folder.mkdir(parents=True, mode=0o700)
        (folder / "page").touch(0o600)
        (folder / "sock").touch(0o600)
        (folder / f".sock.{os.getpid()}").touch(0o600)
        for path in (folder, folder / "page"):
            os.chown(path, NOBODY, -1)
        page = os.stat(folder / "page").st_ino
        add(rig)
        assert (mode(folder), mode(folder / "page"), mode(folder / "sock")) == (0o755, 0o666, 0o666)
        assert os.stat(folder).st_uid == 0
        assert os.stat(folder / "page").st_ino == page, "containers have that very file mounted"

    def test_adding_a_pod_twice_changes_nothing(self, rig: Rig, pods: dict[int, str]) -> None:
        folder = add(rig)
        pods[rig.pid((folder, 0))] = POD
        shim = seated(rig, folder, 11)
        inodes = [os.stat(folder / name).st_ino for name in ("page", "sock")]
        add(rig)
        assert [os.stat(folder / name).st_ino for name in ("page", "sock")] == inodes
        assert not shim.ended()

    @pytest.mark.parametrize("taken", ["page", "sock", "all"])
    def test_a_removed_pod_folder_is_made_anew(self, rig: Rig, pods: dict[int, str], taken: str) -> None:
        folder = add(rig)
        pods[rig.pid((folder, 0))] = POD
        shim = seated(rig, folder, 11)
        if taken == "all":
            shutil.rmtree(folder)
        else:
            (folder / taken).unlink()
        add(rig)
        until(shim.ended, "the end of the former connection")
        until(lambda: rig.held_files() == 0, "the end of its files")
        again = seated(rig, folder, 11)
        again.launch()
        assert rig.standing(POD).memory_limit == 10 << 30

    def test_pod_whose_folder_cannot_be_made_anew_stays_as_it_was(
        self, rig: Rig, pods: dict[int, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its processes would run without limits until somebody adds it again."""

        def refused(*_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        folder = add(rig)
        pods[rig.pid((folder, 0))] = POD
        shim = seated(rig, folder, 11)
        (folder / "page").unlink()
        with monkeypatch.context() as patch:
            patch.setattr(tenantfolder, "prepare_folder", refused)
            with pytest.raises(OSError, match="Too many open files"):
                add(rig)
        assert rig.standing(POD).processes == (shim.pid,)
        assert not shim.ended()
        add(rig)
        until(shim.ended, "the end of the former connection")


def seated(rig: Rig, folder: Path, client: int, slot: int = 0) -> FakeShim:
    shim = rig.shim(folder, slot).hello().group(client, rig.rm_file).done(1)
    until(lambda: shim.pid in rig.standing(folder.name).processes, "the registration")
    return shim


class TestPodRegistration:
    @as_root
    def test_any_user_of_the_pod_may_register(self, rig: Rig, pods: dict[int, str]) -> None:
        pods[os.getpid()] = POD
        child = rig.child(add(rig), 11, uid=NOBODY)
        until(lambda: rig.standing(POD).processes == (child.pid,), "the registration")

    def refused(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> str:
        folder = add(rig)
        with caplog.at_level(logging.WARNING):
            until(rig.shim(folder).ended, "the refusal")
        assert not rig.standing(POD).processes
        key, fields = logged(caplog)[-1]
        assert key == "process_refused"
        return str(fields["why"])

    def test_a_process_of_another_pod_tenant_is_refused(
        self, rig: Rig, pods: dict[int, str], caplog: pytest.LogCaptureFixture
    ) -> None:
        pods[os.getpid()] = OTHER
        add(rig, OTHER)
        assert "belongs to tenant default/7777" in self.refused(rig, caplog)

    def test_a_process_of_a_pod_without_a_card_is_refused(
        self, rig: Rig, pods: dict[int, str], caplog: pytest.LogCaptureFixture
    ) -> None:
        pods[os.getpid()] = UNKNOWN
        assert f"belongs to Pod {UNKNOWN}" in self.refused(rig, caplog)

    def test_a_process_of_no_pod_is_refused(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        assert "is in no Pod's cgroup" in self.refused(rig, caplog)

    def test_a_process_without_a_visible_pid_is_refused_with_the_fix(
        self, rig: Rig, pods: dict[int, str], caplog: pytest.LogCaptureFixture
    ) -> None:
        pods[os.getpid()] = POD
        rig.patch.setattr(link, "peer", lambda connection: (0, 0))
        assert "hostPID: true" in self.refused(rig, caplog)


class TestPodAlive:
    """After a Pod's end its place is kept for its last process, which has a slot of its page."""

    def test_a_pod_is_alive_while_a_process_of_it_is(self, rig: Rig, pods: dict[int, str]) -> None:
        pods[os.getpid()] = POD
        child = rig.child(add(rig), 11)
        until(lambda: rig.standing(POD).processes)
        rig.daemon.stop()
        rig.daemon = rig.another()  # which it has not come to yet
        add(rig)
        assert rig.daemon.alive(POD)
        child.kill()
        child.wait()
        assert not rig.daemon.alive(POD)

    def test_another_pods_process_with_the_page_does_not_keep_a_pod_alive(self, rig: Rig, pods: dict[int, str]) -> None:
        pods[os.getpid()] = OTHER
        folder = add(rig)
        child = rig.child(folder, 11)
        assert (child.poll(), rig.daemon._tenancies[POD].page.sweep()) == (None, [0])
        assert not rig.daemon.alive(POD)

    def test_pod_counts_as_alive_while_no_file_is_left_to_see_whose_its_processes_are(
        self, rig: Rig, pods: dict[int, str]
    ) -> None:
        pods[os.getpid()] = POD
        child = rig.child(add(rig), 11)
        until(lambda: rig.standing(POD).processes)
        rig.daemon.stop()
        rig.daemon = rig.another()
        folder = add(rig)

        def lacks_files(pid: int) -> str | None:
            raise OSError(errno.EMFILE, "Too many open files")

        with pytest.MonkeyPatch.context() as scarce:
            scarce.setattr(rig.daemon._owners, "_whose", lacks_files)
            assert rig.daemon.alive(POD)
            shim = rig.shim(folder, 1)
            until(shim.ended, "the refusal")
        child.kill()
        child.wait()
        assert not rig.daemon.alive(POD)


@needs_mounts
class TestContainers:
    def test_a_process_in_a_pid_namespace_below_ours_has_the_number_we_know_it_by(
        self, rig: Rig, pods: dict[int, str]
    ) -> None:
        pods[os.getpid()] = POD
        outer = rig.child(add(rig), 11, wrapper=("unshare", "--pid", "--fork", "--kill-child"))
        (pid,) = until(lambda: rig.standing(POD).processes, "the registration")
        assert pid != 1
        assert outer.pid in processes.ancestors(pid)

    @pytest.mark.parametrize("proc", ["its own", "the host's"])
    def test_a_process_beside_our_pid_namespace_has_the_number_that_proc_has_for_it(
        self, tmp_path: Path, proc: str
    ) -> None:
        """As an agent without hostPID sees every container: not at all, unless it has fetched the host's /proc."""
        path = tmp_path / "sock"
        listen = (
            "import os, socket, sys\n"
            "from aliquot.adapters.gpu import link; from aliquot.adapters.host.process import processes\n"
            "door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); door.bind(sys.argv[1]); door.listen()\n"
            "print('ready', flush=True); container = door.accept()[0]; pid, uid = link.peer(container)\n"
            "watched = processes.number_of(link.watch(container)); print(pid, uid, watched, flush=True)\n"
        )
        alone = ["--mount-proc"] if proc == "its own" else []
        command = ["unshare", "--pid", *alone, "--fork", "--kill-child", sys.executable, "-c", listen, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
            assert agent.stdout is not None
            assert agent.stdout.readline() == "ready\n"
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as container:
                container.connect(str(path))
                number = 0 if alone else os.getpid()
                assert agent.stdout.readline() == f"{number} 0 {number}\n"

    def test_the_folder_read_only_and_the_page_writable_is_all_a_container_needs(
        self, rig: Rig, pods: dict[int, str], tmp_path: Path
    ) -> None:
        pods[os.getpid()] = POD
        folder, inside = add(rig), tmp_path / "inside"
        inside.mkdir()
        script = (
            f"mount --bind {folder} {inside} && mount -o remount,bind,ro {inside} && "
            f'mount --bind {folder}/page {inside}/page && ! touch {inside}/new 2>/dev/null && exec "$@"'
        )
        child = rig.child(inside, 11, uid=NOBODY, wrapper=("unshare", "--mount", "sh", "-c", script, "container"))
        until(lambda: rig.standing(POD).processes == (child.pid,), "the registration")
        assert rig.standing(POD).memory_used == 1 << 30, "what it wrote on the page"

    def test_the_next_daemon_is_found_through_the_same_mounts(
        self, rig: Rig, pods: dict[int, str], tmp_path: Path
    ) -> None:
        pods[os.getpid()] = POD
        folder, inside = add(rig), tmp_path / "inside"
        inside.mkdir()
        script = f'mount --bind {folder} {inside} && mount --bind {folder}/page {inside}/page && exec "$@"'
        child = rig.child(inside, 11, wrapper=("unshare", "--mount", "sh", "-c", script, "container"))
        until(lambda: rig.standing(POD).processes == (child.pid,))
        rig.daemon.stop()
        assert ask(child, "ended") == "True"
        rig.daemon = rig.another()
        add(rig)
        assert child.stdin is not None
        child.stdin.write("anew\n")
        child.stdin.flush()
        until(lambda: rig.standing(POD).processes == (child.pid,), "the registration with the next")
        assert rig.standing(POD).memory_used == 1 << 30


class TestAuditOfPods:
    def look(self, rig: Rig, pid: int) -> tuple[FindingKind, str | None, str]:
        rig.patch.setattr(audit, "_GRACE", -1.0)
        rig.nvml.on_card[UUIDS[0]] = {pid: 1 << 30}
        (found,) = rig.daemon._auditor.inspect(UUIDS[0])
        assert found.pid == pid
        return found.kind, found.owner, found.text

    def test_audit_reports_a_process_of_no_pod(self, rig: Rig) -> None:
        kind, owner, text = self.look(rig, rig.pid("x"))
        assert (kind, owner) == (FindingKind.STRANGER, None)
        assert "belongs to no Pod" in text
        assert "aliquot run" not in text

    def test_audit_does_not_report_the_daemon_itself(self, rig: Rig) -> None:
        rig.patch.setattr(audit, "_GRACE", -1.0)
        rig.nvml.on_card[UUIDS[0]] = {os.getpid(): 1 << 20}
        assert rig.daemon._auditor.inspect(UUIDS[0]) == []

    def test_audit_reports_a_process_of_a_pod_without_a_card(self, rig: Rig, pods: dict[int, str]) -> None:
        pods[rig.pid("x")] = UNKNOWN
        kind, owner, text = self.look(rig, rig.pid("x"))
        assert (kind, owner) == (FindingKind.STRANGER, UNKNOWN)
        assert UNKNOWN in text

    def test_audit_reports_a_tenants_process_on_a_card_that_is_not_its(self, rig: Rig, pods: dict[int, str]) -> None:
        pods[rig.pid("x")] = POD
        allotments = (Allotment(UUIDS[1]),)
        rig.daemon.add(Tenant(POD, "default/a", AppClass.NORMAL, allotments, None), rig.folder / "t" / POD)
        assert self.look(rig, rig.pid("x"))[:2] == (FindingKind.TRESPASSER, POD)

    def test_audit_reports_an_unregistered_process_with_its_pod(self, rig: Rig, pods: dict[int, str]) -> None:
        pods[rig.pid("x")] = POD
        add(rig)
        assert self.look(rig, rig.pid("x"))[:2] == (FindingKind.UNREGISTERED, POD)
