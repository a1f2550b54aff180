"""Who is the MPS server of a group, and what becomes of members whose server is not there."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.gpu import page as pages
from aliquot.adapters.host.process import processes
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Allotment, Finding, Tenant
from aliquot.services.runtime.cards import cardloop, findings
from kit.cards.arbiterd import UUIDS, FakeShim, Rig, until


class Group:
    """A control with a server below it, the group's tenant, and one member."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.control = subprocess.Popen(
            ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        rig.children.append(self.control)
        assert self.control.stdout is not None
        self.server_pid = int(self.control.stdout.readline())
        self.folder = self._add("team", self.control.pid)
        self.member_folder = self._add("a", None)

    def _add(self, name: str, root: int | None) -> Path:
        limit = None if root else 1 << 30
        started = processes.start_time(root) if root else None
        allotments = (Allotment(UUIDS[0], limit, 500),)
        tenant = Tenant(name, name, AppClass.NORMAL, allotments, os.getuid(), root, started, group="team")
        self.rig.daemon.add(tenant, self.rig.folder / name)
        return self.rig.folder / name

    def connect(self, pid: int, slot: int = 0) -> FakeShim:
        """That process, as the server of the group."""
        shim = FakeShim(self.folder, pid, slot)
        self.rig.shims.append(shim)
        return shim

    def server(self) -> FakeShim:
        """The server, registered and controlled."""
        self.rig.driver.calls.clear()
        shim = self.connect(self.server_pid).hello().group(77, self.rig.rm_file).done(1)
        until(lambda: ("set", 77) in {call[:2] for call in self.rig.driver.calls}, "slices of the server")
        return shim

    def member(self, slot: int = 0) -> FakeShim:
        """A process that works through the server: it has no channel group."""
        return self.rig.shim(self.member_folder, slot).hello().done(0)

    def abandoned(self, count: int) -> list[FakeShim]:
        """Members whose server has closed its connection, and lives: their gates are closed."""
        server, members = self.server(), [self.member(slot) for slot in range(count)]
        until(lambda: {member.pid for member in members} <= {*self.rig.standing("a").processes}, "their registration")
        server.close()
        until(lambda: all(member.use().gate == 1 for member in members), "the gates are closed: the server lives")
        return members

    def findings(self, pid: int) -> list[Finding]:
        return [finding for finding in self.rig.daemon.findings() if finding.pid == pid]


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    monkeypatch.setattr(findings, "_SERVER_COMES", 0.0)
    rig = Rig(tmp_path, monkeypatch)
    made = Group(rig)
    yield made
    os.killpg(made.control.pid, signal.SIGKILL)
    rig.end()


def test_only_the_server_that_the_control_has_started_registers_for_a_group(group: Group) -> None:
    rig = group.rig
    impostor = group.connect(rig.pid("impostor"))
    until(impostor.ended, "the refusal")
    (finding,) = group.findings(impostor.pid)
    assert "has tried to register as the MPS server of team" in finding.text
    assert f"not started by the group's control, process {group.control.pid}" in finding.text
    assert finding.owner == "team"
    assert not group.server().ended()
    rig.daemon.remove("team")
    assert not group.findings(impostor.pid)


def test_a_group_whose_control_is_gone_has_no_server(group: Group) -> None:
    group.control.kill()
    group.control.wait()
    orphan = group.connect(group.server_pid)
    until(orphan.ended, "the refusal")
    assert "control does not run" in group.findings(orphan.pid)[0].text


def test_member_launches_nothing_while_its_server_is_not_registered(group: Group) -> None:
    member = group.member()
    until(lambda: member.use().gate == 1, "the member's gate is closed")
    finding = until(lambda: group.findings(member.pid), "a finding")[0]
    assert "stop all members and start them again" in finding.text
    server = group.server()
    until(lambda: member.use().gate == 0, "the gate is opened with the server")
    until(lambda: not group.findings(member.pid), "the finding goes")
    server.close()
    until(lambda: member.use().gate == 1, "the gate is closed when the server leaves, and lives")
    group.server()
    until(lambda: member.use().gate == 0, "the gate is opened again")
    os.kill(group.server_pid, signal.SIGKILL)
    until(lambda: not group.rig.held_files(), "the server's end")
    assert member.use().gate == 0, "of a dead server no context is left: its members run into errors"
    member.done(0)
    until(lambda: member.use().gate == 1, "a new context waits for the next server")


def test_gate_opens_when_the_server_is_dead_whose_connection_closed_before(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cardloop, "_ROUND", 0.02)
    (member,) = group.abandoned(1)
    os.kill(group.server_pid, signal.SIGKILL)
    until(lambda: member.use().gate == 0, "the gate is opened: its members run into errors")
    member.done(0)
    until(lambda: member.use().gate == 1, "a new context waits for the next server")


def test_context_that_came_after_its_server_left_waits_also_when_that_one_is_dead(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cardloop, "_ROUND", 0.02)
    member, other = group.abandoned(2)
    member.set(pages.GATE, 0)
    member.done(0)
    until(lambda: member.use().gate == 1, "its new context waits")
    os.kill(group.server_pid, signal.SIGKILL)
    until(lambda: other.use().gate == 0, "the gate of the other is opened")
    assert member.use().gate == 1
