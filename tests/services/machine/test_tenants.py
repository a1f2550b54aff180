"""Who runs, who waits, what is booked; and that a daemon killed between any two steps loses and keeps nothing."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot.adapters.host import processes
from aliquot.adapters.host.home import Home
from aliquot.adapters.storage.store import Store
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.status.machine import DaemonStatus
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import Level, SharingRules, Standing, State
from aliquot.services.daemon.control import Caller, RefusedError
from aliquot.services.machine import tenants as module
from aliquot.services.machine.requests import RunRequest
from aliquot.services.machine.status import status
from aliquot.services.machine.tenants import LocalMachine
from kit.machine import PaperArbiter, cards


class KilledError(BaseException):
    """The daemon was killed here."""


class House:
    """A home with a daemon's inside, which may be killed and built anew."""

    def __init__(self, folder: str, gib: int = 24, count: int = 1) -> None:
        self.home = Home(folder, folder)
        for each in (self.home.tenants, self.home.logs):
            os.makedirs(each, exist_ok=True)
        self.cards = cards(count, gib)
        self.children: list[subprocess.Popen[bytes]] = []
        self.build()

    def build(self) -> None:
        self.arbiter = PaperArbiter()
        self.watched: list[Tenancy] = []
        self.machine = LocalMachine(
            self.cards,
            home=self.home,
            store=Store(self.home.database, self.home.tenants),
            arbiter=self.arbiter,
            watch=self.watched.append,
            environment=lambda tenancy, folder: {"set": {"ALIQUOT_TENANT": folder}},
        )

    def restart(self) -> None:
        self.machine.store.close()
        self.build()
        self.machine.restore()

    def process(self, **environment: str) -> Caller:
        child = subprocess.Popen(["sleep", "600"], env={**os.environ, **environment})
        self.children.append(child)
        return Caller(child.pid, os.geteuid(), os.getegid())

    def end(self, caller: Caller) -> None:
        child = next(child for child in self.children if child.pid == caller.pid)
        child.kill()
        child.wait()

    def submit(self, caller: Caller | None = None, **more: Any) -> list[dict[str, Any]]:
        """What the run was told."""
        told: list[dict[str, Any]] = []
        self.machine.submit(RunRequest(("x",), **more), caller or self.process(), 1.0, told.append)
        return told

    def booked(self) -> int:
        return int(self.machine.ledger.board.used_memory[0].sum())

    def folders(self) -> set[str]:
        return set(os.listdir(self.home.tenants))


@pytest.fixture
def house() -> Iterator[House]:
    with tempfile.TemporaryDirectory(prefix="alq") as folder:
        found = House(folder)
        yield found
        for child in found.children:
            child.kill()
            child.wait()
        found.machine.store.close()


def test_submit_starts_fitting_run_at_once(house: House) -> None:
    (told,) = house.submit(memory_mib=4096, core=30)
    assert told["ok"]["name"] == "x-1"
    assert told["ok"]["cards"] == [{"index": 0, "uuid": "GPU-0"}]
    (tenant, folder) = next(iter(house.arbiter.tenants.values()))
    assert told["ok"]["set"] == {"ALIQUOT_TENANT": str(folder)}
    assert (tenant.allotments[0].memory_bytes, tenant.allotments[0].quota_milli) == (4 << 30, 300)
    assert [tenancy.tenant for tenancy in house.watched] == [tenant]
    assert oct(folder.stat().st_mode & 0o777) == "0o700"


def test_tenant_ends_with_its_last_process(house: House) -> None:
    caller = house.process()
    house.submit(caller, memory_mib=4096)
    (tenant_id,) = house.machine.tenancies
    straggler = house.process(ALIQUOT_TENANT=str(house.machine.directory(tenant_id)))
    house.end(caller)
    house.machine.ended(tenant_id, 2.0)
    house.machine.sweep(2.0)
    assert house.booked() == 4096  # the straggler carries its name
    house.end(straggler)
    house.arbiter.living = {tenant_id}
    house.machine.sweep(3.0)
    assert house.booked() == 4096  # the arbiter knows of one that does not
    house.arbiter.living = set()
    house.machine.sweep(4.0)
    assert (house.booked(), house.machine.has_orphans, house.folders(), house.arbiter.tenants) == (0, False, set(), {})
    assert house.machine.store.tenancies() == []


def test_queued_run_starts_when_tenant_ends(house: House) -> None:
    caller = house.process()
    house.submit(caller, memory_mib=20 * 1024)
    told = house.submit(memory_mib=8 * 1024)
    standing = told[0]["event"]["waiting"]
    assert (standing["position"], standing["of"], standing["kept_for"]) == (1, 1, None)
    assert standing["refusals"] == [{"card": 0, "reason": "memory", "wanted": 8192, "had": 4096}]
    (first,) = house.machine.tenancies
    house.end(caller)
    house.machine.ended(first, 2.0)
    assert told[1]["ok"]["name"] == "x-2"


def test_no_wait_run_does_not_notify_queue(house: House) -> None:
    house.submit(memory_mib=20 * 1024)
    told = house.submit(memory_mib=8 * 1024)
    with pytest.raises(RefusedError) as refused:
        house.submit(memory_mib=8 * 1024, wait=False)
    assert (refused.value.details["kind"], refused.value.details["position"]) == ("busy", 2)
    assert [each["event"]["waiting"]["of"] for each in told] == [1]
    (waiting,) = status(house.machine, {}, 1.0, DaemonStatus(pid=1)).queue
    assert (waiting.position, waiting.of) == (1, 1)


def test_submit_again_drops_earlier_grant_of_process(house: House) -> None:
    caller = house.process()
    house.submit(caller, memory_mib=4096)
    house.submit(caller, memory_mib=2048)
    assert (house.booked(), len(house.machine.tenancies)) == (2048, 1)


def test_submit_refuses_ended_or_foreign_process(house: House) -> None:
    caller = house.process()
    with pytest.raises(RefusedError):
        house.submit(Caller(caller.pid, 12345, 12345), memory_mib=1)
    house.end(caller)
    with pytest.raises(RefusedError):
        house.submit(caller, memory_mib=1)
    assert house.booked() == 0


def test_submit_refuses_other_users_without_root(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = house.process()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RefusedError) as refused:
        house.submit(caller, memory_mib=1)
    assert refused.value.details == {
        "kind": "denied",
        "text": "this daemon runs as user 1000 and serves only that user",
    }


def test_failed_start_is_reported_and_cleaned_up(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(house.arbiter, "add", broken)
    (told,) = house.submit(memory_mib=4096)
    assert told["error"]["kind"] == "failed"
    assert "No space left on device" in told["error"]["text"]
    assert (house.booked(), house.folders(), house.machine.store.tenancies()) == (0, set(), [])


def test_configure_persists_sharing_rules(house: House) -> None:
    rules = SharingRules(Isolation.FIXED_SHARE, 0.0)
    house.machine.configure(rules)
    assert house.arbiter.rules == rules
    house.restart()
    assert house.machine.rules == rules


def test_restore_after_reboot_adopts_nobody(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.machine.restore()
    house.submit(memory_mib=4096)
    monkeypatch.setattr(processes, "boot_id", lambda: "another")
    house.restart()
    assert (house.booked(), house.folders()) == (0, set())


def test_restore_finds_card_by_uuid(house: House) -> None:
    house.cards = cards(2, 24)
    house.restart()
    house.submit(memory_mib=4096)
    zero, one = house.cards
    house.cards = (
        type(zero)(0, one.memory_mib, uuid=one.uuid, model=one.model),
        type(zero)(1, zero.memory_mib, uuid=zero.uuid, model=zero.model),
    )
    house.restart()
    assert house.machine.ledger.board.used_memory[0].tolist() == [0, 4096]


def test_restore_keeps_tenant_of_missing_card_without_booking(house: House) -> None:
    house.cards = cards(2, 24)
    house.restart()
    house.submit(memory_mib=4096, gpus=2)
    house.cards = cards(1, 24)
    house.restart()
    assert house.booked() == 4096
    assert len(house.machine.tenancies) == 1


def steps() -> list[tuple[str, Callable[[House, Callable[..., None]], None]]]:
    """Every step of coming and going at which a daemon may be killed: before it is done."""

    def of(what: str, name: str) -> Callable[[House, Callable[..., None]], None]:
        def put(house: House, kill: Callable[..., None]) -> None:
            target = {"arbiter": house.arbiter, "store": house.machine.store, "node": house.machine, "": module}[what]
            setattr(target, name, kill)

        return put

    return [
        (f"{what}.{name}", of(what, name))
        for what, name in (
            ("", "_make_folder"),
            ("store", "add"),
            ("store", "_insert"),
            ("arbiter", "add"),
            ("node", "_watch"),
            ("node", "_environment"),
            ("arbiter", "remove"),
            ("store", "remove"),
            ("", "_remove_folder"),
        )
    ]


@pytest.mark.parametrize(("step", "put"), steps(), ids=[name for name, _ in steps()])
def test_restore_after_kill_at_any_step_adopts_living_tenants(
    house: House, monkeypatch: pytest.MonkeyPatch, step: str, put: Callable[[House, Callable[..., None]], None]
) -> None:
    for name in ("_make_folder", "_remove_folder"):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back afterwards
    house.submit(memory_mib=1024)  # one that runs through it all
    ending = house.process()
    house.submit(ending, memory_mib=2048)
    goes = next(tenancy for tenancy in house.machine.tenancies.values() if tenancy.tenant.root == ending.pid)

    def kill(*_: object) -> None:
        raise KilledError

    put(house, kill)
    coming = house.process()
    told: list[dict[str, Any]] = []

    def live() -> None:
        house.machine.submit(RunRequest(("x",), memory_mib=4096), coming, 1.0, told.append)
        house.end(ending)
        house.machine.ended(goes.tenant.id, 2.0)

    with pytest.raises(KilledError):
        live()
    heard = any("ok" in each for each in told)
    house.end(ending)
    monkeypatch.undo()
    house.restart()
    if not heard:  # as the command does: it asks the next daemon
        house.submit(coming, memory_mib=4096)
    assert house.booked() == 1024 + 4096, step
    living = {tenancy.tenant.id for tenancy in house.machine.tenancies.values()}
    assert len(living) == 2
    assert house.folders() == living | {f"{each}.json" for each in living}
    assert {tenancy.tenant.id for tenancy in house.machine.store.tenancies()} == living
    assert set(house.arbiter.tenants) == living


def test_status_of_tenant(house: House) -> None:
    house.submit(memory_mib=4096, core=30, app_class=AppClass.OFFLINE)
    (tenant_id,) = house.machine.tenancies
    house.arbiter.standing = [
        Standing(tenant_id, "GPU-0", State.PAUSED, Level.HARDWARE, 0.25, 1 << 30, 4 << 30, (7,), 3, 1.5, 2)
    ]
    measured = {"GPU-0": {"memory_used_bytes": 5, "utilisation": 0.5}}
    told = msgspec.to_builtins(status(house.machine, measured, 11.0, DaemonStatus(pid=1)))
    (tenant,) = told["tenants"]
    assert tenant["age_seconds"] == 10
    assert tenant["cards"] == [
        {
            "index": 0,
            "uuid": "GPU-0",
            "exclusive": False,
            "greedy": True,
            "core": 30,
            "memory_limit_bytes": 4 << 30,
            "state": "paused",
            "level": "hardware",
            "share": 0.25,
            "memory_used_bytes": 1 << 30,
            "pids": [7],
            "preemptions": 3,
            "paused_seconds": 1.5,
            "refused_allocations": 2,
        }
    ]
    assert told["cards"][0]["memory_used_bytes"] == 5


def test_detached_log_belongs_to_its_owner(house: House) -> None:
    (told,) = house.submit(memory_mib=1, detach=True)
    log = Path(told["ok"]["log"])
    assert log.parent == Path(house.home.logs)
    assert oct(log.stat().st_mode & 0o777) == "0o600"


def test_restore_survives_broken_tenant_folder(house: House) -> None:
    house.submit(memory_mib=4096)
    house.submit(memory_mib=2048)
    broken, _ = house.machine.tenancies
    page = house.machine.directory(broken) / "page"
    page.unlink()
    page.mkdir()
    house.restart()
    assert broken in house.machine.tenancies
    assert broken not in house.arbiter.tenants  # beyond control, but its card is not given to others
    assert house.booked() == 6144
