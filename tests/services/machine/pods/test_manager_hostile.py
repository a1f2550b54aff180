"""Users who attack or get in each other's way: Pods of one do not harm Pods of another. Supervisors here do nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot.adapters.host.home import Home
from aliquot.adapters.host.process import processes
from aliquot.adapters.host.users import user_name
from aliquot.adapters.storage.store import Store
from aliquot.model.containers.localpod import Applier
from aliquot.model.status.requests import SupervisorRequest
from aliquot.model.tenancy import TenantEnvironment
from aliquot.services.daemon.control import Caller, RefusedError
from aliquot.services.machine.control import ControlServer
from aliquot.services.machine.pods.api import PodApi
from aliquot.services.machine.pods.cron import CronJobs
from aliquot.services.machine.pods.manager import PodManager
from aliquot.services.machine.tenants.machine import LocalMachine
from kit.machines.machine import PATIENCE, PaperArbiter, cards
from kit.machines.machinepods import Json, container, pod, workload

ANNA, BERT = 1001, 1002

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root's daemon serves several users")


class SilentSupervisors:
    """Supervisors that never say anything, and end when they are killed."""

    def __init__(self) -> None:
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.owners: list[int] = []

    def start(self, uid: str, owner: Applier, log: str, environment: dict[str, str]) -> tuple[int, int]:
        child = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 60; done"], start_new_session=True)
        self.children[uid] = child
        self.owners.append(owner.user)
        return child.pid, processes.start_time(child.pid) or 0

    def reap(self, pid: int) -> None: ...

    def end(self) -> None:
        for child in self.children.values():
            os.killpg(child.pid, 9)
            child.wait()
        self.children.clear()


class Rig:
    """A PodManager with several users."""

    def __init__(self, folder: str) -> None:
        home = Home(folder, folder)
        for path in (home.tenants, home.logs, home.pod_logs):
            os.makedirs(path)
        self.store = Store(home.database, home.tenants)
        node = LocalMachine(
            cards(2),
            home=home,
            store=self.store,
            arbiter=PaperArbiter(),
            watch=lambda _: None,
            environment=lambda *_: TenantEnvironment(),
        )
        self.supervisors = SilentSupervisors()
        self.pods = PodManager(node, self.store.objects, self.supervisors, lambda *_: TenantEnvironment())  # type: ignore[arg-type] # a double
        self.api = PodApi(self.pods, CronJobs(self.pods))

    async def apply(self, user: int, *objects: Json, **env: str) -> list[Json]:
        request = {"objects": list(objects), "cwd": "/", "env": env}
        caller = Caller(os.getpid(), user, user)
        answer = await self.api.operations["apply"](request, caller, lambda _: None)
        results: list[Json] = msgspec.to_builtins(answer)["results"]
        return results


@pytest.fixture
def rig() -> Iterator[Rig]:
    with tempfile.TemporaryDirectory() as folder:
        found = Rig(folder)
        yield found
        found.supervisors.end()
        found.store.close()


def acted(act: Callable[[], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        return await act()

    return asyncio.run(whole())


def test_silent_supervisors_do_not_block_other_users(rig: Rig) -> None:
    async def act() -> None:
        await rig.apply(ANNA, workload("Deployment", "web", 20))
        await rig.apply(BERT, pod("p"))

    acted(act)
    assert rig.supervisors.owners == [ANNA] * 8 + [BERT]


def test_apply_refuses_object_changed_by_other_user_meanwhile(rig: Rig) -> None:
    async def act() -> None:
        await rig.apply(ANNA, pod("p"))
        waiting = asyncio.create_task(rig.apply(ANNA, pod("p", container(gib=5)), workload("Deployment", "web", 1)))
        async with asyncio.timeout(PATIENCE):
            while all(found.ending is None for found in rig.pods.pods.values()):
                await asyncio.sleep(0.01)
        await rig.apply(BERT, workload("Deployment", "web", 2))
        rig.supervisors.end()
        with pytest.raises(RefusedError) as refused:
            await waiting
        assert refused.value.details["text"].startswith("another user changed Deployment default/web meanwhile")

    acted(act)
    (found,) = rig.pods.workloads.values()
    assert found.applier.user == BERT


def test_applies_at_the_same_time_are_counted_together(rig: Rig) -> None:
    async def act() -> list[Any]:
        rig.pods._writer.start()  # as in the daemon: each waits for the disk
        try:
            asked = [rig.apply(ANNA, workload("StatefulSet", f"s{at}", 200)) for at in range(3)]
            return await asyncio.gather(*asked, return_exceptions=True)
        finally:
            await asyncio.to_thread(rig.pods._writer.stop)

    refused = [answer for answer in acted(act) if isinstance(answer, RefusedError)]
    assert [answer.details["allowed"] for answer in refused] == ["at most 256 Pods per user: delete some"] * 2


def test_apply_by_other_user_keeps_owner_and_environment(rig: Rig) -> None:
    async def act() -> list[Json]:
        await rig.apply(ANNA, workload("Deployment", "web", 1), HOME="/home/anna")
        return await rig.apply(0, workload("Deployment", "web", 0), HOME="/root")

    (result,) = acted(act)
    (found,) = rig.pods.workloads.values()
    assert (found.applier.user, found.applier.environment) == (ANNA, {"HOME": "/home/anna"})
    assert result["notes"][-1].startswith(f"{user_name(ANNA)} stays its owner")


def test_apply_by_root_keeps_pod_user(rig: Rig) -> None:
    async def act() -> None:
        await rig.apply(ANNA, pod("p"))
        rig.supervisors.end()
        await rig.apply(0, pod("p", container(gib=5)))

    acted(act)
    (found,) = rig.pods.pods.values()
    assert found.applier.user == ANNA


def test_pod_limit_per_user(rig: Rig) -> None:
    async def act() -> None:
        await rig.apply(ANNA, *(workload("Deployment", f"web-{at}", 0) for at in range(256)))
        with pytest.raises(RefusedError) as refused:
            await rig.apply(ANNA, pod("p"))
        assert refused.value.details["allowed"] == "at most 256 Pods per user: delete some"
        await rig.apply(BERT, pod("p"))

    acted(act)


def test_pods_of_other_users_workload_are_not_adopted(rig: Rig) -> None:
    async def act() -> None:
        await rig.apply(ANNA, workload("Deployment", "web", 1))
        (web,) = rig.pods.workloads.values()
        await rig.pods.delete(workload=web, pods=rig.pods.owned(web), grace=30.0)
        await rig.apply(BERT, workload("Deployment", "web", 1))

    acted(act)
    (web,) = rig.pods.workloads.values()
    assert [pod.applier.user for pod in rig.pods.owned(web)] == [BERT]
    assert len(rig.pods.pods) == 2


def test_pods_keep_their_place_in_the_queue_when_the_clock_is_set_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act() -> None:
        for name, wall in (("first", 1e9 + 7200), ("second", 1e9), ("third", 1e9 + 60)):
            monkeypatch.setattr("time.time", lambda wall=wall: wall)
            await rig.apply(ANNA, pod(name))
        later = PodManager(rig.pods.machine, rig.store.objects, rig.supervisors, lambda *_: TenantEnvironment())  # type: ignore[arg-type]
        later.restore(rebooted=False)
        for pods in (rig.pods, later):
            assert [found.name for found in pods.pods.values()] == ["first", "second", "third"]
            since = [pods._since[uid] for uid in pods.pods]
            assert since == sorted(since)

    acted(act)


def test_sweep_continues_after_failure(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    enough = asyncio.Event()

    def tick(now: float) -> None:
        looks.append(now)
        if len(looks) > 1:
            enough.set()
        raise ValueError("nobody has thought of this")

    async def act() -> None:
        monkeypatch.setattr(rig.pods, "tick", tick)
        monkeypatch.setattr("aliquot.services.machine.control._SWEEP", 0.0)
        control = ControlServer(rig.pods.machine, None, {}, rig.pods)  # type: ignore[arg-type] # it sees no cards
        sweeping = asyncio.create_task(control._sweep())
        await asyncio.wait_for(enough.wait(), PATIENCE)
        sweeping.cancel()

    acted(act)


def test_log_folders_belong_to_pod_owners(rig: Rig) -> None:
    acted(lambda: rig.apply(ANNA, pod("p")))
    (found,) = rig.pods.pods.values()
    folder = Path(rig.pods.logs(found)).stat()
    assert (folder.st_uid, folder.st_mode & 0o777) == (ANNA, 0o700)


class _Connection:
    """A client that says nothing."""

    def __init__(self) -> None:
        self.closed, self.counted = asyncio.Event(), True

    def send(self, answer: Json) -> None: ...

    def uncount(self) -> None:
        self.counted = False

    def drop(self) -> None:
        self.closed.set()

    async def readline(self) -> bytes:
        await self.closed.wait()
        return b""


def test_supervisor_has_one_connection_however_often_it_connects(rig: Rig) -> None:
    """It runs as its Pod's user, who can take it over with a debugger: its connections are not counted."""

    async def connect_often() -> None:
        await rig.apply(ANNA, pod("p", container(command=["true"])))
        ((uid, child),) = rig.supervisors.children.items()
        caller = Caller(child.pid, ANNA, ANNA, processes.start_time(child.pid))
        request = SupervisorRequest(uid, granted=True)
        connections = [_Connection() for _ in range(20)]
        served = []
        for connection in connections:
            served.append(asyncio.create_task(rig.api.serve_supervisor(request, caller, connection)))  # type: ignore[arg-type]
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*served[:-1])
        assert [connection.closed.is_set() for connection in connections] == [True] * 19 + [False]
        assert not any(connection.counted for connection in connections)
        assert uid in rig.pods._connections
        connections[-1].drop()
        await served[-1]
        assert not rig.api._supervising
        assert uid not in rig.pods._connections

        stranger = _Connection()
        with pytest.raises(RefusedError):
            await rig.api.serve_supervisor(request, Caller(1, BERT, BERT, 1), stranger)  # type: ignore[arg-type]
        assert stranger.counted

    asyncio.run(connect_often())


def test_clients_that_wait_for_pods_to_end_share_one_look_at_all_pods(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """250 connections that delete such Pods: the daemon answered others after a second."""
    looks = 0

    async def act() -> None:
        await rig.apply(ANNA, *(pod(f"p{at}") for at in range(20)))
        tick = rig.pods.tick

        def counted(now: float) -> None:
            nonlocal looks
            looks += 1
            tick(now)

        monkeypatch.setattr(rig.pods, "tick", counted)
        uids = [found.uid for found in rig.pods.pods.values()]
        waiting = [asyncio.create_task(rig.api._until_gone([uids[at % 20]])) for at in range(200)]
        await asyncio.sleep(0.5)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(act())
    assert 0 < looks <= 30, "one every 20 ms"
