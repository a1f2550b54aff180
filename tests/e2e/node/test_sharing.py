"""Pods beside each other on one card: how its time is shared under each policy of the node, and online before offline.

Kernels of the simulated card have a fixed duration, so that the number of its kernels is the share of a program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from testbed.cards import MEM, QCORE, QMEM
from testbed.judges.inside import granted
from testbed.objects import get_pod
from testbed.processes import wait_until
from testbed.programs.fleet import GPUSHARE, MIXED, POLICY, Fleet
from testbed.realnodes.nodes import RealNode, probe

GREEDY = "tke.cloud.tencent.com/qgpu-core-greedy"
CLASS = "tke.cloud.tencent.com/app-class"
GIB = 1 << 30
HERE = {"kubernetes.io/hostname": "n1"}
LOOK = 2.0  # seconds over which a share is taken; windows of fixed-share come every 100 ms
LOOKS = 10


@pytest.fixture
def node(fleet: Fleet) -> RealNode:
    """The one on which all of it happens."""
    return fleet.nodes[0]


def _share_by(fleet: Fleet, policy: str) -> None:
    fleet.label("n1", {**MIXED, **GPUSHARE, POLICY: policy})
    agent = fleet.agents["n1"]
    wait_until(
        lambda: agent.status()["rules"]["policy"] == policy, 5, f"{policy} holds", saw=lambda: agent.status()["rules"]
    )


def _burning(fleet: Fleet, **cores: int) -> None:
    """Pods of these names that ask for that much of a card and use all they get; on one card."""
    for name, core in cores.items():
        fleet.create(probe(name, "burn", "0", "5", limits={QCORE: core, QMEM: 4}, nodeSelector=HERE))
        fleet.report(name)
    _assert_on_one_card(fleet, *cores)


def _assert_on_one_card(fleet: Fleet, *names: str) -> None:
    cards = {name: granted(get_pod(fleet.plane, name))["main"] for name in names}
    assert len({uuid for uuids in cards.values() for uuid in uuids}) == 1, cards


def _shares(node: RealNode, *names: str) -> list[float]:
    """Of the card's time from now on, in percent."""
    before = {name: len(_burned(node, name)) for name in names}
    # The second that was begun before now does not count.
    wait_until(lambda: all(len(_burned(node, name)) > before[name] for name in names), 60, "the next second begins")
    first = {name: _burned(node, name)[-1] for name in names}

    def over() -> bool:
        return all(_burned(node, name)[-1]["elapsed_s"] - first[name]["elapsed_s"] >= LOOK for name in names)

    wait_until(over, LOOK + 60, f"{LOOK} s are over")
    return [_share(first[name], _burned(node, name)[-1]) for name in names]


Holds = Callable[[Sequence[float]], bool]


def _come_to(node: RealNode, holds: Holds, *names: str) -> None:
    """Other users of this machine may spoil a look. A share that is wrong is so in each of them."""
    seen = []
    for _ in range(LOOKS):
        seen.append(_shares(node, *names))
        if holds(seen[-1]):
            return
    pytest.fail(f"shares of {names}, in percent: {seen}", pytrace=False)


def _near(*wanted: float) -> Holds:
    """Of the card's time."""
    return lambda shares: list(shares) == pytest.approx(list(wanted), abs=3)


def _divided(*wanted: float) -> Holds:
    """Of what they got together: on a busy machine the simulated card is not always at work."""
    return lambda shares: (
        sum(shares) > 40 and [100 * share / sum(shares) for share in shares] == pytest.approx(list(wanted), abs=5)
    )


def _nearly_all(shares: Sequence[float]) -> bool:
    """More than any quota here: on a busy machine even a card of its own is not always at work."""
    return shares[0] > 65


def _burned(node: RealNode, name: str) -> list[dict[str, Any]]:
    return [line for line in node.lines(name) if line["event"] == "burn"]


def _share(first: Mapping[str, Any], last: Mapping[str, Any]) -> float:
    share: float = (last["done_ms"] - first["done_ms"]) / (last["elapsed_s"] - first["elapsed_s"]) / 10
    return share


def _metric(fleet: Fleet, name: str, pod: str) -> float:
    """Of the Pod on its one card."""
    _, metrics = fleet.agents["n1"].ask("/metrics")
    found = re.findall(rf"^{name}{{([^}}]*)}} (\S+)$", metrics, re.MULTILINE)
    (value,) = [value for labels, value in found if f'namespace="default",pod="{pod}"' in labels]
    return float(value)


def test_best_effort_gives_each_busy_pod_as_much_as_the_others(fleet: Fleet, node: RealNode) -> None:
    _burning(fleet, a=60, b=20)
    _come_to(node, _divided(50, 50), "a", "b")


def test_fixed_share_gives_each_pod_its_quota_alone_or_not(fleet: Fleet, node: RealNode) -> None:
    _share_by(fleet, "fixed-share")
    _burning(fleet, a=30)
    _come_to(node, _near(30), "a")
    _burning(fleet, b=20)
    _come_to(node, _near(30, 20), "a", "b")


def test_burst_share_gives_by_quota_and_lets_nothing_go_to_waste(fleet: Fleet, node: RealNode) -> None:
    _share_by(fleet, "burst-share")
    _burning(fleet, a=60)
    _come_to(node, _nearly_all, "a")
    _burning(fleet, b=20)
    _come_to(node, _divided(75, 25), "a", "b")


def test_another_policy_holds_at_once_for_pods_that_run(fleet: Fleet, node: RealNode) -> None:
    _share_by(fleet, "fixed-share")
    _burning(fleet, a=30, b=20)
    _share_by(fleet, "best-effort")
    _come_to(node, _divided(50, 50), "a", "b")
    _share_by(fleet, "fixed-share")
    _come_to(node, _near(30, 20), "a", "b")


@pytest.fixture
def crowded(fleet: Fleet) -> Fleet:
    """One card is left on the node: online and offline Pods would each rather have one of their own."""
    full = [f"full-{number}" for number in range(3)]
    fleet.create(*(probe(name, limits={MEM: 16}, nodeSelector=HERE) for name in full))
    fleet.wired.bound(*full)
    return fleet


def _online(name: str, *words: str) -> dict[str, Any]:
    return probe(name, *words, limits={QMEM: 4}, annotations={CLASS: "online"}, nodeSelector=HERE)


def _offline(name: str, *words: str) -> dict[str, Any]:
    return probe(name, *words, limits={GREEDY: 50, QMEM: 4}, annotations={CLASS: "offline"}, nodeSelector=HERE)


def test_an_offline_pod_has_the_card_while_the_online_pod_is_idle(crowded: Fleet, node: RealNode) -> None:
    crowded.create(_online("online", "alloc", "1GiB", "idle"))
    crowded.line("online", "alloc")
    crowded.create(_offline("offline", "burn", "0", "5"))
    crowded.report("offline")
    _assert_on_one_card(crowded, "online", "offline")
    _come_to(node, _nearly_all, "offline")


def test_an_online_pod_takes_the_card_from_an_offline_one_which_goes_on_where_it_was(crowded: Fleet) -> None:
    """150 kernels of 20 ms are 3 s of work; requests of 5 ms come every 50 ms meanwhile, for 3 s."""
    crowded.create(_offline("offline", "work", "150", "20"))
    crowded.report("offline")
    crowded.create(_online("online", "serve", "3", "50", "5"))
    served, worked = crowded.line("online", "served"), crowded.line("offline", "worked")
    _assert_on_one_card(crowded, "online", "offline")
    assert served["count"] == 60
    assert 5 <= served["p50_ms"] < 8
    assert worked["kernels"] == 150
    assert _metric(crowded, "aliquot_tenant_preemptions_total", "offline") > 0
    paused = _metric(crowded, "aliquot_tenant_paused_seconds_total", "offline")
    assert -0.5 < worked["elapsed_s"] - (3 + paused) < 1.5, "it had the card in all the rest of that time"
    assert _metric(crowded, "aliquot_tenant_preemptions_total", "online") == 0


def test_the_metrics_report_how_much_memory_each_pod_has_and_may_have(fleet: Fleet) -> None:
    fleet.create(probe("holds", "alloc", "2GiB", limits={QCORE: 30, QMEM: 5}, nodeSelector=HERE))
    fleet.line("holds", "alloc")
    assert _metric(fleet, "aliquot_tenant_memory_limit_bytes", "holds") == 5 * GIB

    def used() -> float:
        return _metric(fleet, "aliquot_tenant_memory_used_bytes", "holds")

    wait_until(lambda: 2 * GIB <= used() < 2.2 * GIB, 5, "2 GiB and a context are told", saw=used)
