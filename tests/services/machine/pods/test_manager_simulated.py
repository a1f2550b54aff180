"""Pods on simulated cards, all of it real but the GPU: they compute, share, and come up again with their cards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.machine import ALIQUOT, Machine, eventually
from kit.machinepods import Json, Pods, workload
from kit.manifests import MEM

UP = (*ALIQUOT, "up", "--simulate", "2x2x24GiB", "--listen", "0")


@pytest.fixture
def pods() -> Iterator[Pods]:
    machine = Machine(UP)
    machine.up()
    found = Pods(machine)
    yield found
    found.clear()
    machine.aliquot("down")
    machine.close()


def computing(pods: Pods) -> list[Json]:
    """All Pods, once each has used its card."""

    def shares() -> list[Json] | None:
        there = pods.all()
        return there if there and all(card["share"] for pod in there for card in pod["cards"]) else None

    return list(eventually(shares))


def test_statefulset_on_simulated_cards_starts_again_after_down(pods: Pods) -> None:
    pods.apply(
        workload("StatefulSet", "binpack-1", 3, {"name": "main", "image": "x", "resources": {"limits": {MEM: 10}}})
    )
    pods.until_all(["Running"] * 3)
    found = computing(pods)
    assert {pod["node"] for pod in found} == {"node-0"}  # the fullest cards first
    assert sorted(card["index"] for pod in found for card in pod["cards"]) == [0, 0, 1]
    before = {pod["uid"] for pod in found}
    assert pods.machine.aliquot("down").stdout == "daemon stopped\n"
    assert pods.machine.daemon is not None
    pods.machine.daemon.communicate()
    pods.machine.up()
    assert {pod["uid"] for pod in computing(pods)} == before
