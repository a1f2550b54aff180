"""The heartbeat on the pages, and what the arbiter does where the driver refuses or tenants undo its orders."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from aliquot.adapters.gpu import page as pages
from aliquot.adapters.gpu import rm
from aliquot.arbiter import slices
from aliquot.arbiter.card import CardArbiter
from aliquot.arbiter.orders import SetSlice
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Allotment, Level, Tenant
from aliquot.services.runtime.cards import cardloop, findings
from kit.cards.arbiterd import UUIDS, Rig, until

ONLINE, OFFLINE = AppClass.ONLINE, AppClass.OFFLINE
STOCK = 2048  # the driver's own slice
ALONE = slices.FAIR + slices.SWITCH  # the slice of one that is alone


def _passes(number: Callable[[], int], mark: int) -> bool:
    return number() > mark


class TestHeartbeat:
    def beat(self, folder: Path, card: int = 0) -> int:
        found: int = struct.unpack_from("<Q", (folder / "page").read_bytes(), 64 + card * 128 + 56)[0]
        return found

    def test_heartbeat_is_on_every_page_of_every_card_all_the_time(self, rig: Rig) -> None:
        both = Tenant("both", "both", AppClass.NORMAL, tuple(map(Allotment, UUIDS)), os.getuid())
        rig.daemon.add(both, rig.folder / "both")
        for card in (0, 1):
            beat = partial(self.beat, rig.folder / "both", card)
            first = until(beat)
            until(partial(_passes, beat, first), "the next beat")
            assert time.monotonic_ns() - beat() < 600_000_000

    def test_heartbeat_goes_on_when_a_round_fails(self, rig: Rig) -> None:
        folder = rig.tenant("a")
        first = until(lambda: self.beat(folder))
        rig.daemon._loops[UUIDS[0]]._inbox.put(lambda now: 1 / 0)  # type: ignore[arg-type]
        until(lambda: self.beat(folder) > first)
        rig.registered(folder, 11)

    def test_heartbeat_stops_while_every_round_fails(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        """A heartbeat promises that pauses will be ended: who cannot keep that lets tenants end them themselves."""
        folder = rig.tenant("a")
        until(lambda: self.beat(folder))

        def fails(*_: object) -> None:
            raise ArithmeticError

        with monkeypatch.context() as broken:
            broken.setattr(CardArbiter, "tick", fails)
            until(lambda: time.monotonic_ns() - self.beat(folder) > 600_000_000, "the silence")
        until(lambda: time.monotonic_ns() - self.beat(folder) < 600_000_000, "the heartbeat")

    def test_heartbeat_goes_on_during_many_slow_orders(self, rig: Rig) -> None:
        """Each may take 20 ms; a page whose last beat is old means to a tenant that we are gone."""
        folder = rig.tenant("z", OFFLINE)
        beats: list[int] = []
        loop = rig.daemon._loops[UUIDS[0]]
        rig.registered(folder, 22)
        real = rig.driver.set_slice

        def slow(group: rm.Group, microseconds: int) -> None:
            time.sleep(0.03)
            beats.append(self.beat(folder))
            real(group, microseconds)

        rig.patch.setattr(rm, "set_slice", slow)
        (name,) = loop._occupants.contexts
        orders = [SetSlice(name, 5000 + at) for at in range(8)]
        loop._inbox.put(lambda now: (loop._performer.perform(orders), None)[1])
        until(lambda: len(beats) >= 8)
        assert len(set(beats)) >= 2

    def test_after_a_stall_undone_pauses_are_ordered_again(self, rig: Rig) -> None:
        rig.patch.setattr(findings, "_CHECK_EVERY", 3600.0)  # else the check of slices would find out too
        rig.preempted()
        loop = rig.daemon._loops[UUIDS[0]]
        until(lambda: not any(context.checks for context in loop._occupants.contexts.values()), "the first checks")
        rig.driver.paused.clear()  # the tenants' own doing
        rig.driver.slices[11, 1] = rig.driver.slices[22, 1] = STOCK
        loop._inbox.put(lambda now: setattr(loop._heartbeat, "_last", now - 10.0))
        until(lambda: not rig.driver.runs(22), "the pause again")
        until(lambda: [rig.driver.slices[client, 1] for client in (11, 22)] == [slices.LONG, slices.TINY], "the slices")

    def test_a_context_that_resumed_itself_is_paused_again_but_seldom(self, rig: Rig) -> None:
        _, offline = rig.preempted()
        rig.driver.calls.clear()
        until(lambda: offline.use().paused)
        offline.set(pages.PAUSED, 0)
        until(lambda: ("pause", 22, None) in rig.driver.calls, "the pause again")
        until(lambda: offline.use().paused)
        rig.driver.calls.clear()
        for _ in range(20):
            offline.set(pages.PAUSED, 0)
            time.sleep(0.01)
        assert rig.driver.calls.count(("pause", 22, None)) <= 1


class TestRefusal:
    def test_a_context_that_the_driver_refuses_later_is_held_at_the_gate(self, rig: Rig) -> None:
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        offline = rig.registered(rig.tenant("off", OFFLINE), 22)
        offline.launch()
        rig.driver.refuses.add("pause")
        online.launch()
        until(lambda: offline.use().gate == 1, "the closed gate")
        assert offline.use().paused == 0
        assert rig.driver.runs(22)
        until(lambda: rig.standing("off").level is Level.GATE)
        assert [finding.text for finding in rig.daemon.findings() if "held at the gate" in finding.text]

    def test_a_group_that_is_gone_does_not_keep_the_others_paused(self, rig: Rig) -> None:
        online = rig.registered(rig.tenant("on", ONLINE), 11)
        offline = rig.shim(rig.tenant("off", OFFLINE)).hello()
        offline.group(22, rig.rm_file).group(22, rig.rm_file, group=2).done(2)
        until(lambda: rig.standing("off").processes)
        offline.launch()
        online.launch()
        until(lambda: rig.driver.paused == {(22, 1), (22, 2)}, "the pause of both")
        rig.driver.gone.add((22, 1))
        online.rest()
        until(lambda: rig.driver.paused == {(22, 1)}, "the release of the other")
        until(lambda: offline.use().paused == 0)
        assert rig.standing("off").level is Level.HARDWARE
        online.launch()
        until(lambda: (22, 2) in rig.driver.paused, "the next pause of the other")

    def test_an_expelled_process_is_not_left_paused(self, rig: Rig) -> None:
        _, offline = rig.preempted()
        offline.hello()  # a second time
        until(offline.ended)
        until(lambda: rig.driver.runs(22), "its resume")
        assert offline.use().paused == 0
        assert rig.driver.slices[22, 1] == STOCK

    def test_a_slice_changed_behind_our_back_is_set_again_and_reported(self, rig: Rig) -> None:
        rig.patch.setattr(cardloop, "_FIRST_CHECKS", (0.02, 0.04, 0.3))
        rig.patch.setattr(findings, "_SETTLED", 0.1)
        rig.registered(rig.tenant("a"), 11)
        until(lambda: rig.driver.slices.get((11, 1)) == ALONE)
        time.sleep(0.1)
        rig.driver.slices[11, 1] = 1_000_000
        until(lambda: rig.driver.slices[11, 1] == ALONE, "the slice again")
        until(lambda: any("another program set its time slice" in finding.text for finding in rig.daemon.findings()))
        rig.shims[0].close()
        until(lambda: not rig.daemon.findings(), "nothing to tell of one that is gone")
