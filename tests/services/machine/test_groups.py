"""Groups that share cards in space, on paper cards with the stand-in for nvidia-cuda-mps-control: who may join, where
members go, what the group may use, and when its control starts and ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.gpu import player
from aliquot.adapters.gpu.mps import Mps
from aliquot.adapters.host.home import Home
from aliquot.adapters.host.process import processes
from aliquot.adapters.storage.store import Store
from aliquot.model.claim import AppClass
from aliquot.model.refusal import Invalid
from aliquot.model.tenancy import Tenancy, TenantEnvironment
from aliquot.services.daemon.control import Caller, RefusedError
from aliquot.services.machine.requests import RunRequest, parse_run_request
from aliquot.services.machine.tenants.machine import LocalMachine
from aliquot.services.runtime.together.groups import Groups
from kit.machines.machine import PaperArbiter, cards


class Rig:
    """A machine of two cards of 24 GiB, and runs on it."""

    def __init__(self, folder: str) -> None:
        self.home = Home(folder, folder)
        for made in (self.home.tenants, self.home.logs):
            os.makedirs(made, exist_ok=True)
        self.children: list[subprocess.Popen[bytes]] = []
        self.stand_ins: str = player.simulation()
        self.build()

    def build(self) -> None:
        """The daemon, or after a crash the next one."""
        self.arbiter = PaperArbiter()
        self.mps = Mps({"ALIQUOT_SIMGPU": self.home.run}, {}, self.stand_ins)
        self.machine = LocalMachine(
            cards(2),
            home=self.home,
            store=Store(self.home.database, self.home.tenants),
            arbiter=self.arbiter,
            watch=lambda tenancy: None,
            environment=lambda tenancy, folder: TenantEnvironment(),
            groups=Groups(Path(self.home.groups), self.mps, self.arbiter),
        )
        self.machine.restore()

    def run(self, name: str, group: str = "team", **more: Any) -> Tenancy:
        child = subprocess.Popen(["sleep", "600"])
        self.children.append(child)
        caller = Caller(child.pid, os.geteuid(), os.getegid(), processes.start_time(child.pid))
        answers: list[Any] = []
        request = RunRequest(("x",), name, **{"memory_mib": 4096, "group": group, "wait": False, **more})
        self.machine.admission.submit(request, caller, float(len(self.children)), answers.append)
        assert "ok" in answers[-1], answers
        return next(tenancy for tenancy in self.machine.tenancies.values() if tenancy.name == name)

    def end(self, tenancy: Tenancy) -> None:
        child = next(child for child in self.children if child.pid == tenancy.root)
        child.kill()
        child.wait()
        self.machine.ended(tenancy.id, 0.0)

    def control(self, tenancy: Tenancy) -> tuple[int, int] | None:
        return self.mps.running(Path(self.home.groups, tenancy.group_id))

    def close(self) -> None:
        for tenancy in list(self.machine.tenancies.values()):
            self.end(tenancy)
        for child in self.children:
            child.kill()
            child.wait()


@pytest.fixture
def rig() -> Iterator[Rig]:
    if not os.path.exists(player.shim()):
        pytest.skip("the libraries are not built")
    with tempfile.TemporaryDirectory(prefix="alq") as folder:
        made = Rig(folder)
        yield made
        made.close()


def test_group_has_the_sum_of_its_members_quotas(rig: Rig) -> None:
    first = rig.run("a", core=30)
    tenant, folder = rig.arbiter.tenants[first.group_id]
    assert (tenant.is_group, tenant.allotments[0].quota_milli, folder.parent.name) == (True, 300, "g")
    assert tenant.root == (rig.control(first) or (None,))[0]
    second = rig.run("b", core=40)
    assert rig.arbiter.tenants[first.group_id][0].allotments[0].quota_milli == 700
    rig.run("c")
    assert rig.arbiter.tenants[first.group_id][0].allotments[0].quota_milli == 700
    rig.end(second)
    assert rig.arbiter.tenants[first.group_id][0].allotments[0].quota_milli == 300
    assert {tenant.group for tenant, _ in rig.arbiter.tenants.values()} == {first.group_id}


def test_members_go_to_the_cards_of_their_group_while_these_have_room(rig: Rig) -> None:
    rig.run("alone", group="", memory_mib=10 * 1024)
    far = rig.run("a", memory_mib=20 * 1024)
    near = rig.run("b", memory_mib=4 * 1024)
    assert far.shares[0].uuid == near.shares[0].uuid != rig.run("x", group="", memory_mib=1024).shares[0].uuid
    elsewhere = rig.run("c", memory_mib=8 * 1024)
    assert elsewhere.shares[0].uuid != far.shares[0].uuid
    assert elsewhere.group_id != far.group_id, "another card has a server of its own"


def test_control_ends_with_the_last_member_and_is_found_again_after_a_restart(rig: Rig) -> None:
    members = [rig.run("a"), rig.run("b")]
    before = rig.control(members[0])
    assert before is not None
    rig.build()
    assert rig.control(members[0]) == before
    assert rig.arbiter.tenants[members[0].group_id][0].is_group
    rig.end(members[0])
    assert rig.control(members[1]) == before
    rig.end(members[1])
    assert not processes.lives(*before)
    assert not os.listdir(rig.home.groups)
    assert not rig.arbiter.tenants


def test_group_whose_members_ended_while_no_daemon_ran_is_ended_by_the_next(rig: Rig) -> None:
    member = rig.run("a")
    control = rig.control(member)
    assert control is not None
    rig.children[0].kill()
    rig.children[0].wait()
    Path(rig.home.groups, ".removed.1").mkdir()
    rig.build()
    assert not processes.lives(*control)
    assert not os.listdir(rig.home.groups)


def test_group_goes_on_if_its_oldest_member_ended_while_no_daemon_ran(rig: Rig) -> None:
    rig.run("a")
    member = rig.run("b")
    control = rig.control(member)
    assert control is not None
    rig.children[0].kill()
    rig.children[0].wait()
    rig.build()
    assert [tenancy.name for tenancy in rig.machine.tenancies.values()] == ["b"]
    assert rig.control(member) == control


@pytest.mark.parametrize(
    ("app_class", "why"),
    [(AppClass.ONLINE, "its runs have --class normal, this one has online"), (AppClass.NORMAL, None)],
)
def test_members_of_a_group_have_one_class(rig: Rig, app_class: AppClass, why: str | None) -> None:
    rig.run("a")
    if why is None:
        rig.run("b", app_class=app_class)
        return
    with pytest.raises(RefusedError) as refused:
        rig.run("b", app_class=app_class)
    assert why in str(refused.value.details)


def test_run_without_mps_installed_is_refused_with_what_to_do(rig: Rig) -> None:
    rig.stand_ins = "/nonexistent"
    rig.build()
    with pytest.raises(RefusedError) as refused:
        rig.run("a")
    assert "nvidia-cuda-mps-control is missing" in str(refused.value.details)
    assert "leave --together (in a manifest aliquot.dev/together) out" in str(refused.value.details)


def test_offline_member_is_not_parkable(rig: Rig) -> None:
    tenancy = rig.run("a", app_class=AppClass.OFFLINE)
    assert not tenancy.parkable
    assert not tenancy.tenant.parkable
    assert rig.run("b", group="", app_class=AppClass.OFFLINE).parkable


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"together": "a b", "memory_mib": 1}, "use at most 63 letters, digits, dots"),
        ({"together": "team"}, "whole cards"),
        ({"together": "team", "memory_mib": 1, "park": 3}, "not with --park"),
    ],
)
def test_invalid_group_is_refused(more: dict[str, Any], why: str) -> None:
    found = parse_run_request({"command": ["x"], **more})
    assert isinstance(found, Invalid)
    assert found.field == "together"
    assert why in found.allowed


def test_member_that_comes_again_waits_for_the_end_of_what_a_daemon_before_left(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its control is the one that is about to be ended."""
    first = rig.run("a")
    control = rig.control(first)
    assert control is not None
    stop = Mps.stop

    def slow_stop(mps: Mps, folder: Path) -> None:
        time.sleep(0.5)
        stop(mps, folder)

    async def restart() -> tuple[int, int] | None:
        arbiter = PaperArbiter()
        groups = Groups(Path(rig.home.groups), rig.mps, arbiter)
        groups.workers.start()
        groups.restore({})
        groups.left(first.group_id, [])  # the daemon finds that its last member ended
        async with asyncio.timeout(60):
            await groups.start([first])
        await asyncio.sleep(1.5)  # whatever else was to be ended
        assert first.group_id in arbiter.tenants
        found = rig.control(first)
        await asyncio.to_thread(groups.workers.stop)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Mps, "stop", slow_stop)
        again = asyncio.run(restart())
    assert again not in (None, control)
