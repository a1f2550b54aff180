"""A hostile tenant that writes on its page, or whose driver hangs: the others are served."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.adapters.gpu import link, rm
from aliquot.adapters.gpu import page as pages
from aliquot.model.claim import AppClass
from aliquot.services.runtime.cards.cardloop import CardLoop
from kit.cards.arbiterd import UUIDS, Rig, until
from kit.cards.hostiletenant import HostileTenant, quick


@settings(quick, max_examples=6)
@given(garbage=st.binary(min_size=1, max_size=2000))
def test_a_page_full_of_garbage_harms_no_tenant(hostile: HostileTenant, garbage: bytes) -> None:
    """Rounds go on, limits are the daemon's own, and the status has only possible figures."""
    shim = hostile.rig.registered(hostile.folder, 66)
    with open(hostile.folder / "page", "r+b") as page:
        page.write((garbage * (pages.SIZE // len(garbage) + 1))[: pages.SIZE])
    loop = hostile.rig.daemon._loops[UUIDS[0]]
    before = loop._published
    until(lambda: loop._published > before, "another round")
    standing = hostile.rig.standing("bad")
    assert standing.memory_limit == 10 << 30
    assert 0 <= standing.memory_used < 2**63
    assert 0.0 <= (standing.share or 0.0) <= 1.0
    assert hostile.rig.standing("good").share is not None
    shim.close()
    until(lambda: shim.pid not in hostile.rig.standing("bad").processes)
    hostile.rig.driver.calls.clear()


def _has_published(loop: CardLoop, before: float) -> bool:
    return loop._published > before


def test_a_truncated_page_harms_no_tenant(hostile: HostileTenant) -> None:
    shim = hostile.rig.registered(hostile.folder, 66)
    loop = hostile.rig.daemon._loops[UUIDS[0]]
    for left in (pages.SIZE - 1, 70, 0):
        os.truncate(hostile.folder / "page", left)
        before = loop._published
        until(partial(_has_published, loop, before), "a round")
    shim.close()
    hostile.is_in_order()


def test_a_page_made_longer_is_cut_before_it_fills_the_host(hostile: HostileTenant) -> None:
    shim = hostile.rig.registered(hostile.folder, 66)
    os.truncate(hostile.folder / "page", 1 << 40)
    until(lambda: os.stat(hostile.folder / "page").st_size == pages.SIZE, "the cut")
    assert hostile.rig.standing("bad").processes == (shim.pid,)
    shim.close()
    hostile.is_in_order()


def test_a_driver_that_hangs_on_one_group_holds_up_no_other_tenant(hostile: HostileTenant) -> None:
    """A card that fell off: who adds tenants and asks for findings is the agent's loop, which serves all the cards."""
    asked, over = threading.Event(), threading.Event()
    plain = hostile.rig.driver.uuid_of

    def hangs(group: rm.Group) -> str:
        if group.client == 66:
            asked.set()
            assert over.wait(10)
        return plain(group)

    hostile.rig.patch.setattr(rm, "uuid_of", hangs)
    shim = hostile.attack().hello().group(66, hostile.rig.rm_file).done(1)
    assert asked.wait(10)
    try:
        done = threading.Thread(target=hostile.rig.daemon.remove, args=("bad",), daemon=True)
        done.start()
        done.join(5)
        assert not done.is_alive(), "the lock is held while the driver is asked"
        hostile.rig.daemon.findings()
    finally:
        over.set()
    until(shim.ended, "the end of one whose tenant is gone")
    shim.close()
    until(lambda: hostile.rig.held_files() == 1, "the end of the file it had handed over")  # the good one's


def test_an_offline_tenant_that_claims_to_resume_by_itself_disturbs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes everything it can into its line all the time; online work keeps the card."""
    rig = Rig(tmp_path, monkeypatch)
    try:
        online = rig.registered(rig.tenant("on", AppClass.ONLINE), 11)
        offline = rig.registered(rig.tenant("off", AppClass.OFFLINE), 22)
        offline.launch()
        online.launch()
        until(lambda: not rig.driver.runs(22))
        before = len(rig.driver.calls)
        for at in range(150):
            offline.set(pages.GATE, at % 3)
            offline.set(pages.PAUSED, at % 2)
            offline.set(pages.WAKE, at % 2)
            offline.set(pages.LAUNCHES, at * 2**50, size=8)
            offline.set(pages.RESCUED, at)
            offline.say(link.WAKE, 0)
        assert not rig.driver.runs(22)
        assert len(rig.driver.calls) - before <= 6
        assert online.use().paused == online.use().gate == 0
    finally:
        rig.end()
