"""Tenants that use more memory than their limits by the driver's figures: reported, charged and, if wanted, ended."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot.adapters.host.process import processes
from aliquot.arbiter import overuse
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Allotment, Finding, FindingKind, SharingRules, Tenant
from aliquot.services.runtime.limits import audit
from kit.cards.arbiterd import UUIDS, Rig, open_files, until
from kit.running.logged import logged

GIB = 1 << 30
KILLS = SharingRules(kill_after=0.1)
POD, OTHER = "3f2a9c1e-8d47", "77777777-8d47"
NOBODY = 65534

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    yield from _rig(Rig(tmp_path, _quick(monkeypatch)))


@pytest.fixture
def pod_rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: dict[int, str]) -> Iterator[Rig]:
    yield from _rig(Rig(tmp_path, _quick(monkeypatch), whose=lambda pid: pods.get(pid)))


def _quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(audit, "_EVERY", 0.01)
    monkeypatch.setattr(audit, "_GRACE", 0.02)
    monkeypatch.setattr(overuse, "REPORT_AFTER", 0.05)
    return monkeypatch


def _rig(made: Rig) -> Iterator[Rig]:
    before = open_files()
    yield made
    made.end()
    del made.children[:]
    assert open_files() <= before, "files were left open"


def add_pod(rig: Rig, uid: str = POD, *, limit: int | None = 4 * GIB) -> Path:
    tenant = Tenant(uid, f"default/{uid[:4]}", AppClass.NORMAL, (Allotment(UUIDS[0], limit, 500),), None)
    rig.daemon.add(tenant, rig.folder / "t" / uid)
    return rig.folder / "t" / uid


def on_card(rig: Rig, **memory: int) -> None:
    """Processes of these names are on the first card with so many bytes."""
    rig.nvml.on_card[UUIDS[0]] = {rig.pid(name): used for name, used in memory.items()}


def lives(rig: Rig, name: str) -> bool:
    return processes.start_time(rig.pid(name)) is not None


def found(rig: Rig, kind: FindingKind) -> list[Finding]:
    return [finding for finding in rig.daemon.findings() if finding.kind is kind]


def looks(rig: Rig, count: int = 30) -> None:
    """Wait for so many rounds of the audit."""
    asked = [0]
    ask = rig.nvml.processes

    def counted(uuid: str) -> dict[int, int]:
        asked[0] += 1
        return ask(uuid)

    rig.patch.setattr(rig.nvml, "processes", counted)
    until(lambda: asked[0] > count * len(UUIDS), "the audit's rounds")


def test_registered_process_over_the_limit_is_a_finding_and_logged(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    shim = rig.registered(rig.tenant("greedy"), 11)
    with caplog.at_level(logging.WARNING):
        rig.nvml.on_card[UUIDS[0]] = {shim.pid: 13 * GIB}
        (finding,) = until(lambda: found(rig, FindingKind.OVERUSE), "the finding")
    assert (finding.owner, finding.pid, finding.memory) == ("greedy", None, 3 * GIB)
    assert finding.text == "tenant the greedy uses 13 GiB of the card's memory, its limit is 10 GiB"
    standing = rig.standing("greedy")
    assert (standing.memory_used, standing.memory_over) == (13 * GIB, 3 * GIB)
    until(lambda: "memory_limit_exceeded" in [key for key, _ in logged(caplog)], "the line in the log")
    rig.nvml.on_card[UUIDS[0]] = {shim.pid: 9 * GIB}
    until(lambda: not found(rig, FindingKind.OVERUSE), "its end")
    assert rig.standing("greedy").memory_over == 0


def test_nothing_is_ended_unless_the_rules_say_so(rig: Rig) -> None:
    rig.tenant("greedy", root=rig.pid("a"))
    on_card(rig, a=30 * GIB)
    until(lambda: found(rig, FindingKind.OVERUSE), "the finding")
    looks(rig)
    assert lives(rig, "a")


def test_memory_of_an_unregistered_process_is_charged_to_its_tenant(rig: Rig) -> None:
    folder = rig.tenant("a", root=rig.pid("escaped"))
    shim = rig.registered(folder, 11)
    shim.set(0, 1 * GIB, size=8)
    rig.nvml.on_card[UUIDS[0]] = {shim.pid: 1 * GIB + (300 << 20), rig.pid("escaped"): 3 * GIB}
    until(lambda: shim.use().overhead == (300 << 20) + 3 * GIB, "the charge")
    until(lambda: rig.standing("a").memory_used == 4 * GIB + (300 << 20), "the standing")
    (finding,) = until(lambda: found(rig, FindingKind.UNREGISTERED), "the finding")
    assert (finding.pid, finding.memory) == (rig.pid("escaped"), 3 * GIB)
    rig.nvml.on_card[UUIDS[0]] = {shim.pid: 1 * GIB + (300 << 20)}
    until(lambda: shim.use().overhead == 300 << 20, "the end of the charge")


def test_tenant_without_a_registered_process_is_shown_with_the_drivers_figure(rig: Rig) -> None:
    rig.tenant("a", root=rig.pid("escaped"))
    on_card(rig, escaped=3 * GIB)
    until(lambda: rig.standing("a").memory_used == 3 * GIB, "the standing")


def test_process_is_ended_after_the_grace_and_no_other(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.daemon.configure(SharingRules(kill_after=600))
    rig.tenant("greedy", root=rig.pid("large"))
    rig.tenant("good", root=rig.pid("good"))
    with caplog.at_level(logging.WARNING):
        on_card(rig, large=20 * GIB, good=10 * GIB, stranger=30 * GIB)
        until(lambda: found(rig, FindingKind.OVERUSE), "the finding")
        assert lives(rig, "large")
        rig.daemon.configure(
            KILLS
        )  # by a busy machine's clock both may be due in one round, and the kill alone is said
        finding = until(lambda: found(rig, FindingKind.ENDED), "the kill")[0]
    assert (finding.pid, finding.owner) == (rig.pid("large"), "greedy")
    assert finding.text == "was ended: its tenant the greedy used 20 GiB, its limit is 10 GiB"
    until(lambda: not lives(rig, "large"), "the end of the process")
    looks(rig)  # it is dead, and still listed
    assert len(found(rig, FindingKind.ENDED)) == 1
    keys = [key for key, _ in logged(caplog)]
    assert keys.index("memory_limit_exceeded") < keys.index("process_ended")
    on_card(rig, good=10 * GIB, stranger=30 * GIB)
    looks(rig)
    assert lives(rig, "good")
    assert lives(rig, "stranger")


@pytest.mark.parametrize("registered", [True, False])
def test_process_that_asks_for_more_grants_is_ended_all_the_same(rig: Rig, registered: bool) -> None:
    """Once over the limit of its first grant, it is the root of a second tenant, too, and of a third..."""
    rig.daemon.configure(SharingRules(kill_after=0.3))
    pid = rig.pid((rig.folder / "first", 0))
    folder = rig.tenant("first", root=pid)
    if registered:
        rig.registered(folder, 11)
    rig.nvml.on_card[UUIDS[0]] = {pid: 20 * GIB}
    names = iter(range(1_000_000))

    def ended() -> bool:
        rig.tenant(f"again-{next(names)}", root=pid)
        looks(rig, 10)  # less than the grace
        return processes.start_time(pid) is None

    until(ended, "the end of the process")


def test_finding_announces_the_kill(rig: Rig) -> None:
    rig.daemon.configure(SharingRules(kill_after=600))
    rig.tenant("greedy", root=rig.pid("a"))
    on_card(rig, a=20 * GIB)
    (finding,) = until(lambda: found(rig, FindingKind.OVERUSE), "the finding")
    assert finding.text.endswith("its limit is 10 GiB: processes of it are ended after 10m00s of this")


@as_root
def test_process_of_another_user_is_never_ended(rig: Rig) -> None:
    rig.daemon.configure(KILLS)
    other = subprocess.Popen(["sleep", "600"], user=NOBODY)
    rig.pids["sudo"] = other.pid
    rig.tenant("greedy", root=other.pid)
    try:
        on_card(rig, sudo=20 * GIB)
        (finding,) = until(lambda: found(rig, FindingKind.ENDED), "the attempt")
        assert finding.text.startswith("should be ended, but")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


class TestPods:
    def test_pod_is_not_ended_before_the_agent_says_whom_to_spare(self, pod_rig: Rig, pods: dict[int, str]) -> None:
        rig = pod_rig
        rig.daemon.configure(KILLS)
        add_pod(rig)
        add_pod(rig, OTHER)
        pods.update({rig.pid("mine"): POD, rig.pid("foreign"): OTHER})
        on_card(rig, mine=6 * GIB, foreign=6 * GIB)
        until(lambda: len(found(rig, FindingKind.OVERUSE)) == 2, "the findings")
        looks(rig)
        assert lives(rig, "mine")
        rig.daemon.spare(frozenset({OTHER}))
        until(lambda: not lives(rig, "mine"), "the end of the process")
        looks(rig)
        assert lives(rig, "foreign")

    def test_process_on_a_card_without_a_share_has_a_limit_of_nothing(self, pod_rig: Rig, pods: dict[int, str]) -> None:
        rig = pod_rig
        add_pod(rig)
        pods[rig.pid("x")] = POD
        rig.nvml.on_card[UUIDS[1]] = {rig.pid("x"): 2 * GIB}
        (finding,) = until(lambda: found(rig, FindingKind.OVERUSE), "the finding")
        assert (finding.uuid, finding.memory) == (UUIDS[1], 2 * GIB)

    def test_card_held_whole_has_no_limit(self, pod_rig: Rig, pods: dict[int, str]) -> None:
        rig = pod_rig
        rig.daemon.configure(KILLS)
        rig.daemon.spare(frozenset())
        add_pod(rig, limit=None)
        pods[rig.pid("x")] = POD
        on_card(rig, x=79 * GIB)
        looks(rig)
        assert lives(rig, "x")
        assert not found(rig, FindingKind.OVERUSE)

    def test_pod_without_a_card_here_is_never_ended(self, pod_rig: Rig, pods: dict[int, str]) -> None:
        rig = pod_rig
        rig.daemon.configure(KILLS)
        rig.daemon.spare(frozenset())
        pods[rig.pid("x")] = POD
        on_card(rig, x=79 * GIB)
        looks(rig)
        assert lives(rig, "x")


class TestKillProven:
    @pytest.fixture
    def child(self) -> Iterator[subprocess.Popen[bytes]]:
        child = subprocess.Popen(["sleep", "600"])
        yield child
        child.kill()
        child.wait()

    def test_kill_needs_the_start_time_and_the_proof(self, child: subprocess.Popen[bytes]) -> None:
        started = processes.start_time(child.pid)
        assert started is not None
        assert not processes.kill_proven(child.pid, started + 1, lambda: True), "another process has its number"
        assert not processes.kill_proven(child.pid, started, lambda: False)
        assert child.poll() is None
        assert processes.kill_proven(child.pid, started, lambda: True)
        assert child.wait() == -9
        assert not processes.kill_proven(child.pid, started, lambda: True)


def test_rules_that_change_end_the_enforcement(rig: Rig) -> None:
    rig.daemon.configure(KILLS)
    rig.daemon.configure(replace(KILLS, kill_after=None))
    rig.tenant("greedy", root=rig.pid("a"))
    on_card(rig, a=20 * GIB)
    until(lambda: found(rig, FindingKind.OVERUSE), "the finding")
    looks(rig)
    assert lives(rig, "a")
