"""The time that online work takes from offline tenants, and who has the card then."""

from __future__ import annotations

import time

from aliquot.adapters.gpu import page as pages
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules, State
from kit.cards.arbiterd import FakeShim, Rig, until


def work(shim: FakeShim) -> None:
    """It has work from now on."""
    shim.set(pages.BUSY_SINCE, time.monotonic_ns(), size=8)
    shim.launch()


def test_a_paused_tenant_names_the_online_tenant_that_has_the_card(rig: Rig) -> None:
    online = rig.registered(rig.tenant("on", AppClass.ONLINE), 11)
    offline = rig.registered(rig.tenant("off", AppClass.OFFLINE), 22)
    work(offline)
    assert rig.standing("off").paused_by is None
    online.launch()
    until(lambda: rig.standing("off").paused_by == "the on")
    assert rig.standing("off").state is State.PAUSED
    assert rig.standing("on").paused_by is None
    until(lambda: rig.standing("off").paused_seconds > 0.05)
    online.rest()
    until(lambda: rig.standing("off").state is State.RUNNING)
    assert rig.standing("off").paused_by is None


def test_without_a_release_delay_the_time_that_online_work_has_counts(rig: Rig) -> None:
    """Nothing is paused then: the hardware takes the card."""
    rig.daemon.configure(SharingRules(release_delay=0.0))
    online = rig.registered(rig.tenant("on", AppClass.ONLINE), 11)
    offline = rig.registered(rig.tenant("off", AppClass.OFFLINE), 22)
    work(offline)
    work(online)
    until(lambda: rig.standing("off").paused_seconds > 0.2)
    assert rig.standing("off").state is State.RUNNING
    assert rig.standing("on").paused_seconds == 0


def test_waiting_for_a_turn_is_no_paused_time(rig: Rig) -> None:
    rig.daemon.configure(SharingRules(Isolation.FIXED_SHARE))
    shims = [rig.registered(rig.tenant(name, AppClass.OFFLINE), 11 + at) for at, name in enumerate(("a", "b"))]
    for shim in shims:
        work(shim)
    until(lambda: {rig.standing(name).state for name in "ab"} == {State.RUNNING, State.WAITING})
    assert [rig.standing(name).paused_seconds for name in "ab"] == [0, 0]
