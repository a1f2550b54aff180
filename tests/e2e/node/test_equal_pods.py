"""Many Pods of one size at once: which is which, only the kubelet and the annotations tell. No guess would be right."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from testbed import objects
from testbed.cards import MEM, QCORE, QMEM
from testbed.judges.inside import wait_nothing_left, wait_offered, wait_running, wrong_cards
from testbed.programs.fleet import GPUSHARE, Fleet
from testbed.realnodes.nodes import probe, remove_pods

PODS = 100


@pytest.fixture
def gpushare_fleet(fleet: Fleet) -> Fleet:
    """Of gpushare alone: sixteen Pods of 1 GiB may share one of these cards, where qGPU allows four."""
    for node in fleet.nodes:
        fleet.label(node.name, GPUSHARE)
    wait_offered(fleet, {MEM: 64})
    return fleet


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.1f} s")


def _all_right_and_then_gone(fleet: Fleet, pods: Sequence[dict[str, Any]]) -> None:
    names = [pod["metadata"]["name"] for pod in pods]
    with _timed(f"{len(pods)} Pods on {len(fleet.nodes)} nodes, until all run"):
        objects.create_many(fleet.plane, pods)
        wait_running(fleet, names, seconds=120)
    assert wrong_cards(fleet, names) == []
    assert fleet.overbooked() == []
    assert {pod["spec"]["nodeName"] for pod in objects.list_pods(fleet.plane)} == {node.name for node in fleet.nodes}
    with _timed("deleted, until nothing is left"):
        remove_pods(fleet.plane, fleet.nodes, seconds=90)
        wait_nothing_left(fleet)


def test_a_hundred_equal_pods_at_once_each_see_their_own_card_and_leave_nothing(gpushare_fleet: Fleet) -> None:
    _all_right_and_then_gone(gpushare_fleet, [probe(f"equal-{n}", limits={MEM: 1}) for n in range(PODS)])


def test_pods_of_two_containers_and_several_sizes_each_see_their_own_cards_and_leave_nothing(
    gpushare_fleet: Fleet,
) -> None:
    """Sizes that come again in other Pods and in other containers, the same devices in other hands."""
    sizes = [(1, 1), (1, 2), (2, 1), (1, 1)]
    pods = [
        objects.pod(
            f"two-{n}",
            containers=[
                objects.container(name, {MEM: size})
                for name, size in zip(("left", "right"), sizes[n % len(sizes)], strict=True)
            ],
            terminationGracePeriodSeconds=2,
        )
        for n in range(PODS * 2 // 5)
    ]
    _all_right_and_then_gone(gpushare_fleet, pods)


def test_qgpu_pods_with_init_and_sidecar_containers_fill_every_place_of_every_card(fleet: Fleet) -> None:
    """A card of 16 GiB takes four Pods, however many containers each has on it."""
    limits = {QMEM: 1, QCORE: 5}
    before = objects.container("before", limits, args=["exit", "0"])
    beside = objects.container("beside", limits, restartPolicy="Always")
    pods = [probe(f"full-{n}", limits=limits, init=[before, beside]) for n in range(2 * 4 * 4)]
    _all_right_and_then_gone(fleet, pods)
