"""Booking beyond the cards of one machine, and `aliquot park` and `wake`, on paper cards."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from aliquot.adapters.host.home import Home
from aliquot.adapters.host.process import processes
from aliquot.adapters.storage.store import Store
from aliquot.model.residency import ParkReason, Residency, Where
from aliquot.model.status.machine import DaemonStatus
from aliquot.model.tenancy import TenantEnvironment
from aliquot.model.tenant import Level, Standing, State
from aliquot.services.daemon.control import Caller, RefusedError
from aliquot.services.machine.parking import Parking
from aliquot.services.machine.requests import RunRequest, parse_run_request
from aliquot.services.machine.status import status
from aliquot.services.machine.tenants.machine import LocalMachine
from aliquot.wording.parking import left_parked_words
from kit.machines.machine import GIB, PaperArbiter, cards

ME = Caller(os.getpid(), os.geteuid(), os.getegid(), processes.start_time(os.getpid()))


class Rig:
    """A machine of two cards of 24 GiB, and the operations of its socket."""

    def __init__(self, folder: str) -> None:
        self.home = Home(folder, folder)
        for made in (self.home.tenants, self.home.logs):
            os.makedirs(made, exist_ok=True)
        self.pool = 100 * 1024
        self.processes: list[subprocess.Popen[bytes]] = []
        self.build()

    def build(self) -> None:
        """As a daemon that starts."""
        self.store = Store(self.home.database, self.home.tenants)
        self.arbiter = PaperArbiter()
        self.machine = LocalMachine(
            cards(2, 24), home=self.home, store=self.store, arbiter=self.arbiter, watch=lambda _: None,
            environment=lambda *_: TenantEnvironment(), pool_mib=self.pool,
        )  # fmt: skip
        self.denied: list[str] = []
        self.parking = Parking(self.machine, lambda _caller, what, *_users: self.denied.append(what))
        self.machine.configure(self.machine.rules)

    def factor(self, factor: object, card: object = None) -> dict[str, Any]:
        """`aliquot policy oversubscribe`; the answer."""
        asyncio.run(self.parking.set_factor(factor, card, ME))
        return {"oversubscribe": self.parking.factors(), "notes": self.parking.notes()}

    def run(self, gib: int, name: str, **more: Any) -> list[dict[str, Any]]:
        """A run of a process of its own; what it was answered."""
        self.processes.append(subprocess.Popen(["sleep", "600"]))
        pid = self.processes[-1].pid
        caller = Caller(pid, ME.uid, ME.gid, processes.start_time(pid))
        heard: list[Any] = []
        request = parse_run_request({"command": ["x"], "name": name, "memory_mib": gib * 1024, **more})
        assert isinstance(request, RunRequest)
        self.machine.admission.submit(request, caller, 0.0, heard.append)
        return heard

    def move(self, verb: str, name: str, **more: Any) -> dict[str, Any]:
        """`aliquot park` or `wake`."""
        answer = asyncio.run(self.parking.operations[verb]({"name": name, **more}, ME, lambda _: None))
        plain: dict[str, Any] = msgspec.to_builtins(answer)
        return plain

    def booked(self) -> list[int]:
        """GiB of each card."""
        return [int(mib) // 1024 for mib in self.machine.ledger.board.used_memory[0]]

    def stands(self, name: str, where: Where, why: ParkReason | None = None) -> None:
        """The runtime reports that."""
        tenancy = next(found for found in self.machine.tenancies.values() if found.name == name)
        gone = where is Where.PARKED
        residency = Residency(where, 0 if gone else GIB, GIB if gone else 0, 3, 3 * GIB, 0.5, 0.25, why)
        self.arbiter.standing = [
            Standing(tenancy.id, "GPU-0", State.IDLE, Level.GATE, 0.0, GIB, 4 * GIB, (), 0, 0.0, 0, residency=residency)
        ]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="alq") as folder:
        made = Rig(folder)
        yield made
        for process in made.processes:
            process.kill()
            process.wait()
        made.store.writer.stop()
        made.store.close()


def refusal_of(act: Callable[[], object]) -> dict[str, Any]:
    with pytest.raises(RefusedError) as refused:
        act()
    return refused.value.details


def test_offline_runs_are_booked_up_to_the_factor_and_the_next_waits(rig: Rig) -> None:
    rig.factor(2.0)
    for at in range(4):
        assert "ok" in rig.run(20, f"train-{at}", **{"class": "offline"})[0]
    assert rig.booked() == [40, 40]
    assert "event" in rig.run(20, "train-5", **{"class": "offline"})[0]
    assert "event" in rig.run(20, "serve", **{"class": "online"})[0]  # twice the card is booked already


def test_online_run_is_booked_beside_offline_runs_and_never_beyond_the_card(rig: Rig) -> None:
    rig.factor(2.0, "0")
    offline, online = {"class": "offline"}, {"class": "online"}
    for gib, name, kind in ((12, "a", offline), (24, "big", online), (12, "b", offline), (10, "serve", online)):
        assert "ok" in rig.run(gib, name, **kind)[0]
    assert rig.booked() == [34, 24]
    assert (
        "event" in rig.run(1, "serve-2", **online)[0]
    )  # beside it each offline run would not fit on the card any more


def test_raised_factor_starts_runs_that_wait(rig: Rig) -> None:
    for at in range(2):
        rig.run(20, f"train-{at}", **{"class": "offline"})
    heard = rig.run(20, "train-3", park=30)
    assert "ok" not in heard[-1]
    rig.factor(1.9)
    assert "ok" in heard[-1]


def test_factor_is_kept_over_a_restart_and_reaches_the_arbiter(rig: Rig) -> None:
    assert rig.factor(2.0, "GPU-1") == {"oversubscribe": [1.0, 2.0], "notes": []}
    assert rig.arbiter.rules is not None
    assert (rig.arbiter.rules.oversubscribe, rig.arbiter.rules.host_pool) == (2.0, 100 * GIB)
    rig.build()
    assert rig.parking.factors() == [1.0, 2.0]
    assert rig.machine.rules.oversubscribe == 2.0
    assert rig.denied == []


def test_lower_factor_is_for_new_runs_only_and_says_so(rig: Rig) -> None:
    rig.factor(2.0)
    for at in range(4):
        rig.run(20, f"train-{at}", **{"class": "offline"})
    answer = rig.factor(1.0)
    stays = "what runs there stays, new work waits until there is room"
    assert answer["notes"] == [f"card {card} has 40 GiB booked, more than 24 GiB: {stays}" for card in (0, 1)]
    assert len(rig.machine.tenancies) == 4
    assert "event" in rig.run(1, "next", **{"class": "offline"})[0]


@pytest.mark.parametrize("factor", [0.99, 8.01, 0, -1, float("nan"), float("inf"), 10**400, "two", True, [2.0]])
def test_bad_factor_is_refused_and_changes_nothing(rig: Rig, factor: object) -> None:
    refused = refusal_of(lambda: rig.factor(factor))
    assert (refused["field"], refused["allowed"]) == ("oversubscribe", "1.0 to 8.0, for example 1.5")
    assert rig.parking.factors() == [1.0, 1.0]


def test_factor_of_a_card_that_is_not_there_is_refused(rig: Rig) -> None:
    refused = refusal_of(lambda: rig.factor(2.0, "7"))
    assert (refused["field"], refused["allowed"]) == ("--card", "use the number or the UUID of a card; there are 0, 1")


def test_factor_without_a_pool_is_refused(rig: Rig) -> None:
    rig.pool = 0
    rig.build()
    refused = refusal_of(lambda: rig.factor(2.0))
    assert refused["allowed"].startswith("1.0 without a host pool: start the daemon with --host-pool")
    rig.factor(1.0)


@pytest.mark.parametrize("park", ["soon", -1, 86401, True, float("nan")])
def test_bad_time_of_parking_is_refused(park: object) -> None:
    refused = parse_run_request({"command": ["x"], "memory_mib": 1, "park": park})
    assert (refused.field, refused.allowed) == ("park", "0 to 24h, for example 30s")  # type: ignore[union-attr]


def test_whole_cards_are_not_parked() -> None:
    refused = parse_run_request({"command": ["x"], "park": 30})
    assert refused.sentence().startswith('park: "30s" is not allowed: whole cards are shared')  # type: ignore[union-attr]
    refused = parse_run_request({"command": ["x"], "memory_mib": 1, "gpus": 2, "park": 30})
    assert refused.sentence().startswith('park: "30s" is not allowed: only the memory of runs on one card')  # type: ignore[union-attr]


# --- by hand -------------------------------------------------------------------------------------------------------


def test_park_and_wake_ask_the_runtime_and_wait_for_it(rig: Rig) -> None:
    rig.run(4, "train", park=30)
    (tenant,) = rig.machine.tenancies
    rig.stands("train", Where.PARKED)
    assert rig.move("park", "train") == {"name": "train", "resident_bytes": 0, "parked_bytes": GIB}
    rig.stands("train", Where.RESIDENT)
    assert rig.move("wake", "train") == {"name": "train", "resident_bytes": GIB, "parked_bytes": 0}
    assert rig.arbiter.moves == [(tenant, True), (tenant, False)]
    assert rig.denied == ["park train", "wake train"]  # asked whether the caller may


def test_park_of_a_run_that_called_its_memory_back_between_two_looks_ends_and_says_so(rig: Rig) -> None:
    rig.run(4, "busy", park=30)
    rig.stands("busy", Where.RESIDENT)

    def moved() -> None:
        (standing,) = rig.arbiter.standing
        rig.arbiter.standing = [replace(standing, residency=replace(cast("Residency", standing.residency), moves=8))]

    later = threading.Timer(0.2, moved)
    later.start()
    answer = rig.move("park", "busy", timeout=60)
    later.join()
    assert answer == {"name": "busy", "resident_bytes": GIB, "parked_bytes": 0, "returned": True}


def test_park_waits_for_memory_that_was_just_allocated_to_be_seen(rig: Rig) -> None:
    rig.run(4, "serve", park=30.0)
    rig.arbiter.why_not = "none of its memory can leave the card"

    def see() -> None:
        rig.arbiter.why_not = None
        rig.stands("serve", Where.PARKED)

    later = threading.Timer(0.2, see)
    later.start()
    assert rig.move("park", "serve")["parked_bytes"] == GIB
    later.join()


def test_down_names_runs_whose_memory_is_parked(rig: Rig) -> None:
    rig.run(4, "train", park=30)
    rig.run(4, "serve", park=30)
    assert rig.parking.away() == []
    rig.stands("train", Where.PARKED)
    assert rig.parking.away() == ["train"]
    assert left_parked_words(["train"]).startswith("train: parked, and kept in the host pool until the next daemon")


def test_wake_says_that_a_run_is_not_parked(rig: Rig) -> None:
    rig.run(4, "serve", **{"class": "online"})
    text = refusal_of(lambda: rig.move("wake", "serve"))["text"]
    assert text == "serve is not parked, and cannot be: its class is online, and it was started without --park"
    rig.run(4, "train", **{"class": "offline"})
    rig.arbiter.why_not = "none of its memory can leave the card"
    text = refusal_of(lambda: rig.move("wake", "train"))["text"]
    assert text == "train is not parked: none of its memory can leave the card"


def test_park_says_why_a_run_cannot_leave(rig: Rig) -> None:
    rig.run(4, "serve", **{"class": "online"})
    text = refusal_of(lambda: rig.move("park", "serve"))["text"]
    assert text == "serve cannot be parked: its class is online, and it was started without --park"
    rig.run(4, "train", **{"class": "offline"})
    rig.arbiter.why_not = "it shares memory with other processes"
    text = refusal_of(lambda: rig.move("park", "train"))["text"]
    assert text == "train cannot leave: it shares memory with other processes"
    rig.arbiter.why_not = None
    rig.stands("train", Where.RESIDENT, ParkReason.POOL_FULL)
    text = refusal_of(lambda: rig.move("park", "train", timeout=0))["text"]
    assert text == "train has not left the card yet: the host pool is full"


def test_park_of_a_run_that_waits_or_does_not_exist_is_refused(rig: Rig) -> None:
    rig.run(24, "one")
    rig.run(24, "two")
    rig.run(24, "three")
    assert "waits for room" in refusal_of(lambda: rig.move("park", "three"))["text"]
    assert refusal_of(lambda: rig.move("park", "nobody"))["kind"] == "unknown-name"
    assert refusal_of(lambda: rig.move("park", "one", timeout=-1))["field"] == "timeout"


def test_status_shows_where_memory_is_and_what_the_pool_holds(rig: Rig) -> None:
    rig.factor(2.0)
    for name in ("train", "other", "third"):
        rig.run(20, name, park=30)
    rig.stands("train", Where.PARKED, ParkReason.IDLE)
    shown = status(rig.machine, {}, 0.0, DaemonStatus(1))
    assert (shown.pool.bytes, shown.pool.booked_bytes, shown.pool.used_bytes) == (100 * GIB, 16 * GIB, GIB)  # type: ignore[union-attr]
    train = shown.tenants[0]
    assert (train.parkable, train.park_after_seconds) == (True, 30.0)
    residency = train.cards[0].residency
    assert residency is not None
    assert (residency.where, residency.parked_bytes, residency.moves, residency.why) == ("parked", GIB, 3, "idle")
    assert {card.oversubscribe for card in shown.cards} == {2.0}
