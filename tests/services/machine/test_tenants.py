"""Tenants of one machine: start, queue, bookings; and a daemon killed between any two steps loses nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot.adapters.host.process import processes
from aliquot.adapters.host.users import user_name
from aliquot.cli.machine.top import view
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.status.machine import DaemonStatus
from aliquot.model.status.reading import CardReading
from aliquot.model.tenant import Level, SharingRules, Standing, State
from aliquot.placement.policies.waste import Waste
from aliquot.services.daemon.control import RefusedError
from aliquot.services.daemon.metrics import exposition
from aliquot.services.machine.dashboard import MachineView
from aliquot.services.machine.requests import RunRequest
from aliquot.services.machine.status import status
from aliquot.services.machine.tenants import admission, registry
from kit.machines.fakeview import EMPTY
from kit.machines.machine import cards
from kit.machines.tenantrig import Rig, tenant_rig


class KilledError(BaseException):
    """The daemon was killed here."""


@pytest.fixture
def rig() -> Iterator[Rig]:
    with tenant_rig() as found:
        yield found


def test_submit_starts_fitting_run_at_once(rig: Rig) -> None:
    (answer,) = rig.submit(memory_mib=4096, core=30)
    assert answer["ok"]["name"] == "x-1"
    assert answer["ok"]["cards"] == [{"index": 0, "uuid": "GPU-0"}]
    (tenant, folder) = next(iter(rig.arbiter.tenants.values()))
    assert answer["ok"]["set"] == {"ALIQUOT_TENANT": str(folder)}
    assert (tenant.allotments[0].memory_bytes, tenant.allotments[0].quota_milli) == (4 << 30, 300)
    assert [tenancy.tenant for tenancy in rig.watched] == [tenant]
    assert oct(folder.stat().st_mode & 0o777) == "0o700"


def test_tenant_ends_with_its_last_process(rig: Rig) -> None:
    caller = rig.process()
    rig.submit(caller, memory_mib=4096)
    (tenant_id,) = rig.machine.tenancies
    straggler = rig.process(ALIQUOT_TENANT=str(rig.machine.directory(tenant_id)))
    rig.end(caller)
    rig.machine.ended(tenant_id, 2.0)
    rig.machine.sweep_now()
    assert rig.booked() == 4096  # the straggler carries its name
    rig.end(straggler)
    rig.arbiter.living = {tenant_id}
    rig.machine.sweep_now()
    assert rig.booked() == 4096  # the arbiter knows of one that does not
    rig.arbiter.living = set()
    rig.machine.sweep_now()
    assert (rig.booked(), rig.folders(), rig.arbiter.tenants) == (0, set(), {})
    assert rig.machine.store.tenancies() == []


def test_queued_run_starts_when_tenant_ends(rig: Rig) -> None:
    caller = rig.process()
    rig.submit(caller, memory_mib=20 * 1024)
    messages = rig.submit(memory_mib=8 * 1024)
    position = messages[0]["event"]["waiting"]
    assert (position["position"], position["of"], position["kept_for"]) == (1, 1, None)
    assert position["refusals"] == [{"card": 0, "reason": "memory", "wanted": 8192, "had": 4096}]
    (first,) = rig.machine.tenancies
    rig.end(caller)
    rig.machine.ended(first, 2.0)
    assert messages[1]["ok"]["name"] == "x-2"


def test_queue_order_and_waiting_time_survive_a_step_of_the_wall_clock(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.submit(memory_mib=20 * 1024)
    rig.machine.clock = lambda: 100.0
    for at, wall in enumerate((1e9, 1e9 - 7200, 1e9 + 7200)):
        rig.machine.clock = lambda at=at: 100.0 + at  # type: ignore[misc]
        monkeypatch.setattr("time.time", lambda wall=wall: wall)
        rig.machine.admission.submit(
            RunRequest(("x",), f"run-{at}", memory_mib=8192), rig.process(), wall, lambda _message: None
        )
    assert [entry.name for entry in rig.machine.queue] == ["run-0", "run-1", "run-2"]
    rig.machine.clock = lambda: 105.0
    daemon = DaemonStatus(pid=1, uid=0, version="0", since=0.0, home="", simulated=None)
    found = status(rig.machine, {}, 0.0, daemon)
    assert [entry.waited_seconds for entry in found.queue] == [5.0, 4.0, 3.0]


def test_no_wait_run_does_not_notify_queue(rig: Rig) -> None:
    rig.submit(memory_mib=20 * 1024)
    messages = rig.submit(memory_mib=8 * 1024)
    with pytest.raises(RefusedError) as refused:
        rig.submit(memory_mib=8 * 1024, wait=False)
    assert (refused.value.details["kind"], refused.value.details["position"]) == ("busy", 2)
    assert [message["event"]["waiting"]["of"] for message in messages] == [1]
    (waiting,) = status(rig.machine, {}, 1.0, DaemonStatus(pid=1)).queue
    assert (waiting.position, waiting.of) == (1, 1)


def test_submit_again_drops_earlier_grant_of_process(rig: Rig) -> None:
    caller = rig.process()
    rig.submit(caller, memory_mib=4096)
    rig.submit(caller, memory_mib=2048)
    assert (rig.booked(), len(rig.machine.tenancies)) == (2048, 1)


def test_submit_refuses_ended_or_other_process(rig: Rig) -> None:
    caller = rig.process()
    with pytest.raises(RefusedError):
        rig.submit(replace(caller, started=None), memory_mib=1)  # as peers.py has it
    with pytest.raises(RefusedError):
        rig.submit(replace(caller, started=(caller.started or 0) - 1), memory_mib=1)
    rig.end(caller)
    with pytest.raises(RefusedError):
        rig.submit(caller, memory_mib=1)
    assert rig.booked() == 0


def test_submit_refuses_other_users_without_root(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = rig.process()
    another = os.geteuid() + 1000
    monkeypatch.setattr(os, "geteuid", lambda: another)
    with pytest.raises(RefusedError) as refused:
        rig.submit(caller, memory_mib=1)
    assert refused.value.details == {
        "kind": "denied",
        "text": f"this daemon runs as {user_name(another)} and serves only that user",
    }


def test_failed_start_is_reported_and_cleaned_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rig.arbiter, "add", broken)
    (answer,) = rig.submit(memory_mib=4096)
    assert answer["error"]["kind"] == "failed"
    assert "No space left on device" in answer["error"]["text"]
    assert (rig.booked(), rig.folders(), rig.machine.store.tenancies()) == (0, set(), [])


@pytest.mark.parametrize("kill_after", [None, 0.0, 12.5])
def test_configure_persists_sharing_rules(rig: Rig, kill_after: float | None) -> None:
    rules = SharingRules(Isolation.FIXED_SHARE, 0.0, kill_after)
    rig.machine.configure(rules)
    assert rig.arbiter.rules == rules
    rig.restart()
    assert rig.machine.rules == rules


def test_restore_after_reboot_adopts_no_process(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.machine.restore()
    rig.submit(memory_mib=4096)
    monkeypatch.setattr(processes, "boot_id", lambda: "another")
    rig.restart()
    assert (rig.booked(), rig.folders()) == (0, set())


def test_restore_finds_card_by_uuid(rig: Rig) -> None:
    rig.cards = cards(2, 24)
    rig.restart()
    rig.submit(memory_mib=4096)
    zero, one = rig.cards
    rig.cards = (
        type(zero)(0, one.memory_mib, uuid=one.uuid, model=one.model),
        type(zero)(1, zero.memory_mib, uuid=zero.uuid, model=zero.model),
    )
    rig.restart()
    assert rig.machine.ledger.board.used_memory[0].tolist() == [0, 4096]


def test_restore_keeps_tenant_of_missing_card_without_booking(rig: Rig) -> None:
    rig.cards = cards(2, 24)
    rig.restart()
    rig.submit(memory_mib=4096, gpus=2)
    rig.cards = cards(1, 24)
    rig.restart()
    assert rig.booked() == 4096
    assert len(rig.machine.tenancies) == 1


def steps() -> list[tuple[str, Callable[[Rig, Callable[..., None]], None]]]:
    """Every step of coming and going at which a daemon may be killed: before it is done."""

    def of(what: str, name: str) -> Callable[[Rig, Callable[..., None]], None]:
        def put(rig: Rig, kill: Callable[..., None]) -> None:
            targets = {
                "arbiter": rig.arbiter,
                "store": rig.machine.store,
                "admission": rig.machine.admission,
                "": {"make_folder": admission, "remove_folder": registry}.get(name),
            }
            setattr(targets[what], name, kill)

        return put

    return [
        (f"{what}.{name}", of(what, name))
        for what, name in (
            ("", "make_folder"),
            ("store", "add"),
            ("store", "_insert"),
            ("arbiter", "add"),
            ("admission", "_watch"),
            ("admission", "_environment"),
            ("arbiter", "remove"),
            ("store", "remove"),
            ("", "remove_folder"),
        )
    ]


@pytest.mark.parametrize(("step", "put"), steps(), ids=[name for name, _ in steps()])
def test_restore_after_kill_at_any_step_adopts_living_tenants(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, step: str, put: Callable[[Rig, Callable[..., None]], None]
) -> None:
    for module, name in ((admission, "make_folder"), (registry, "remove_folder")):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back afterwards
    rig.submit(memory_mib=1024)  # one that runs through it all
    ending = rig.process()
    rig.submit(ending, memory_mib=2048)
    goes = next(tenancy for tenancy in rig.machine.tenancies.values() if tenancy.tenant.root == ending.pid)

    def kill(*_: object) -> None:
        raise KilledError

    put(rig, kill)
    coming = rig.process()
    messages: list[Any] = []

    def live() -> None:
        rig.machine.admission.submit(RunRequest(("x",), memory_mib=4096), coming, 1.0, messages.append)
        rig.end(ending)
        rig.machine.ended(goes.tenant.id, 2.0)

    with pytest.raises(KilledError):
        live()
    heard = any("ok" in message for message in messages)
    rig.end(ending)
    monkeypatch.undo()
    rig.restart()
    if not heard:  # as the command does: it asks the next daemon
        rig.submit(coming, memory_mib=4096)
    assert rig.booked() == 1024 + 4096, step
    living = {tenancy.tenant.id for tenancy in rig.machine.tenancies.values()}
    assert len(living) == 2
    assert rig.folders() == living | {f"{tenant_id}.json" for tenant_id in living}
    assert {tenancy.tenant.id for tenancy in rig.machine.store.tenancies()} == living
    assert set(rig.arbiter.tenants) == living


def test_card_held_whole_is_booked_whole(rig: Rig) -> None:
    rig.submit()
    shown = status(rig.machine, {}, 11.0, DaemonStatus(pid=1))
    assert [card.core_booked for card in shown.cards] == [100]
    assert b'aliquot_card_core_booked_ratio{card="0",model="Paper 1000",uuid="GPU-0"} 1.0' in exposition(shown)
    assert "24 GiB and 100% of compute booked" in view(shown)
    totals = MachineView(lambda: shown, Waste(rig.machine.ledger.board), dict).state(11.0, EMPTY).totals
    assert totals.core_booked == totals.core == 100


def test_status_of_tenant(rig: Rig) -> None:
    rig.submit(memory_mib=4096, core=30, app_class=AppClass.OFFLINE)
    (tenant_id,) = rig.machine.tenancies
    rig.arbiter.standing = [
        Standing(tenant_id, "GPU-0", State.PAUSED, Level.HARDWARE, 0.25, 1 << 30, 4 << 30, (7,), 3, 1.5, 2, "serve")
    ]
    measured = {"GPU-0": CardReading(5, 0.5)}
    shown = msgspec.to_builtins(status(rig.machine, measured, 11.0, DaemonStatus(pid=1)))
    (tenant,) = shown["tenants"]
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
            "paused_by": "serve",
            "memory_over_bytes": 0,
            "hard_limit": False,
            "residency": None,
            "latency_missed_seconds": 0,
            "requests": 0,
            "takings": 0,
            "preemptions_per_request": None,
            "takes_turns": False,
        }
    ]
    assert shown["cards"][0]["memory_used_bytes"] == 5


def test_detached_log_belongs_to_its_owner(rig: Rig) -> None:
    (answer,) = rig.submit(memory_mib=1, detach=True)
    log = Path(answer["ok"]["log"])
    assert log.parent == Path(rig.home.logs)
    assert oct(log.stat().st_mode & 0o777) == "0o600"
