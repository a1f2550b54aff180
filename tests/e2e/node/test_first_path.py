"""The thinnest path: a Pod asks, is placed, starts on its card, and is gone again."""

from __future__ import annotations

from testbed.cards import QCORE, QMEM
from testbed.programs.fleet import Fleet
from testbed.realnodes.nodes import probe

GIB = 1 << 30


def test_a_pod_starts_on_the_card_it_was_granted_and_sees_the_memory_it_asked_for(fleet: Fleet) -> None:
    fleet.create(probe("one", limits={QCORE: 30, QMEM: 5}))
    report = fleet.report("one")
    (card,) = report["cuda"]["cards"]
    assert report["env"]["NVIDIA_VISIBLE_DEVICES"] == card["uuid"]
    assert card["total"] == card["total_mem"] == 5 * GIB
    assert report["shim_loaded"]
