"""A hostile tenant: whatever it says, the daemon lives, keeps nothing, and serves the others."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.adapters.gpu import link
from aliquot.adapters.gpu import page as pages
from aliquot.model.tenant import FindingKind, Level, SharingRules
from aliquot.services.runtime.cards.cardloop import CardLoop
from aliquot.services.runtime.limits import audit, owners
from aliquot.services.runtime.processes import budgets, registration
from kit.cards.arbiterd import SUBDEVICE, UUIDS, FakeShim, until
from kit.cards.hostiletenant import HostileTenant, quick, send, was_thrown_out

_head = st.builds(
    lambda kind, body: struct.pack("<I2H", pages.MAGIC, pages.VERSION, kind) + body,
    st.integers(0, 6),
    st.binary(max_size=60),
)
_group = st.builds(
    lambda words, channels: struct.pack(
        f"<I2H{8 + channels}I", pages.MAGIC, pages.VERSION, 2, *words, *range(channels)
    ),
    st.lists(st.sampled_from([0, 1, 2, SUBDEVICE, 2**32 - 1]), min_size=8, max_size=8),
    st.integers(0, 130),
)
_said = st.tuples(st.binary(max_size=900) | _head | _group, st.integers(0, 10))


@quick
@given(hello=st.booleans(), messages=st.lists(_said, max_size=12))
def test_registrar_survives_any_message(hostile: HostileTenant, hello: bool, messages: list[tuple[bytes, int]]) -> None:
    shim = hostile.attack()
    if hello:
        shim.hello()
    for data, files in messages:
        send(shim, data, [0] * files)
    shim.close()
    hostile.is_in_order()


def test_the_drivers_file_with_foreign_handles_is_refused(hostile: HostileTenant) -> None:
    """The driver knows whose they are: it answers that there is no such client."""
    hostile.rig.driver.gone |= {(66, 1)}
    shim = hostile.attack().hello().group(66, hostile.rig.rm_file).done(1)
    until(lambda: any(call[1] == 66 for call in hostile.rig.driver.calls))
    shim.close()
    hostile.is_in_order()


@pytest.mark.parametrize("sends", ["nothing", "a copy group", "unknown handles", "another file", "no group at all"])
def test_half_a_registration_is_held_at_the_gate_and_reported(hostile: HostileTenant, sends: str) -> None:
    """It speaks with us and keeps its context to itself: it had the driver's own slice, no cap, and no finding."""
    rig = hostile.rig
    rig.patch.setattr(audit, "_GRACE", -1.0)
    if sends == "no group at all":  # but some other object: the driver refuses, as where it lets nobody control
        rig.driver.refuses |= {"get"}
    else:
        rig.driver.gone |= {(66, 1)}
    shim = hostile.attack().hello()
    if sends != "nothing":
        file = hostile.folder / "page" if sends == "another file" else rig.rm_file
        shim.group(66, file, compute=sends != "a copy group")
    shim.done(sends != "nothing")
    until(lambda: rig.standing("bad").level is Level.GATE, "the gate")
    rig.nvml.on_card[UUIDS[0]] = {shim.pid: 1 << 30, hostile.good.pid: 1 << 30}

    def found() -> list[tuple[int | None, FindingKind, str | None]]:
        return [(finding.pid, finding.kind, finding.owner) for finding in rig.daemon._auditor.inspect(UUIDS[0])]

    assert found() == [(shim.pid, FindingKind.UNREGISTERED, "bad")]
    assert shim.use().overhead == 1 << 30, "its memory counts all the same"
    rig.nvml.mps = {shim.pid}
    assert found() == [], "under MPS no process has a context of its own"
    rig.nvml.mps = set()
    rig.driver.gone.clear()
    rig.driver.refuses.clear()
    shim.group(66, rig.rm_file, group=2).done(1)
    until(lambda: rig.standing("bad").level is Level.HARDWARE, "the whole registration")
    assert found() == []
    shim.close()
    hostile.is_in_order()


def test_too_many_groups_expel_the_process(hostile: HostileTenant) -> None:
    shim = hostile.attack().hello()
    assert was_thrown_out(lambda: shim.group(66, hostile.rig.rm_file), 10 * registration._MOST_GROUPS)
    shim.close()
    hostile.is_in_order()


def test_a_registration_with_lost_groups_expels_the_process(hostile: HostileTenant) -> None:
    shim = hostile.attack().hello().group(66, hostile.rig.rm_file).done(2)
    until(shim.ended)
    shim.close()
    hostile.is_in_order()


def test_a_flood_of_messages(hostile: HostileTenant) -> None:
    shim = hostile.attack().hello()
    assert was_thrown_out(lambda: shim.say(link.WAKE, 0), 20 * registration._MOST_MESSAGES)
    shim.close()
    hostile.is_in_order()


def test_thousands_of_connections(hostile: HostileTenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one process the newest counts, so nothing piles up."""
    for module in (registration, budgets):
        monkeypatch.setattr(module, "_MOST_ACCEPTED", 10**6)  # else it takes its time
    kept: list[FakeShim] = []
    for at in range(1500):
        kept.append(hostile.attack())
        if at % 3 == 0:
            kept[-1].hello()
        if len(kept) > 50:
            kept.pop(0).close()
    for shim in kept:
        shim.close()
    hostile.is_in_order()


def test_more_processes_than_a_tenant_may_have(hostile: HostileTenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "SLOTS", 3)
    shims = [FakeShim(hostile.folder, hostile.rig.pid(("bad", at)), at) for at in range(4)]
    for shim in shims:
        with contextlib.suppress(BrokenPipeError):  # it may be refused before it says a word
            shim.hello()
    until(lambda: sum(shim.ended() for shim in shims) == 1, "the refusal of one")
    for shim in shims:
        shim.close()
    hostile.is_in_order()


def test_waking_a_card_that_is_not_its_own(hostile: HostileTenant) -> None:
    shim = hostile.attack().hello()
    for card in range(pages.CARDS):
        shim.say(link.WAKE, card)
    shim.done(0)
    until(lambda: hostile.rig.standing("bad").processes)
    for card in range(pages.CARDS):
        shim.say(link.WAKE, card)
    shim.close()
    until(lambda: not hostile.rig.standing("bad").processes)
    hostile.is_in_order()


def test_endless_wakes_while_the_driver_hangs_fill_no_memory() -> None:
    loop = CardLoop(UUIDS[0], SharingRules())  # its thread is not started: so does one look that hangs
    for _ in range(1000):
        loop.wake("bad/1")
        loop.wake("good/1")
    assert loop._inbox.qsize() == 2
    assert loop._drain_inbox(0.0)
    loop.wake("bad/1")  # for something new
    assert loop._inbox.qsize() == 1
