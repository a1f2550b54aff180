"""Pods on simulated cards, all of it real but the GPU: they compute, share, and come up again with their cards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.machines.machine import ALIQUOT, Machine, eventually
from kit.machines.machinepods import Json, Pods, container, pod, workload
from kit.values.manifests import MEM

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


def test_a_pod_that_fitted_the_cards_of_before_does_not_block_the_queue() -> None:
    machine = Machine([*ALIQUOT, "up", "--simulate", "1x24GiB", "--listen", "0"])
    machine.up()
    pods = Pods(machine)
    pods.apply(pod("large", container(gib=20)))
    pods.until("large")
    machine.aliquot("down")
    assert machine.daemon is not None
    machine.daemon.communicate()
    machine._command = [*ALIQUOT, "up", "--simulate", "1x16GiB", "--listen", "0"]
    machine.up()
    try:
        reason = "GPU memory: needs 20 GiB per card, the largest card has 16 GiB"
        eventually(lambda: reason in (pods.one("large")["reason"] or ""))
        pods.apply(pod("small"))
        pods.until("small")
        assert pods.one("large")["phase"] == "Pending"
        pods.clear()
        machine.aliquot("down")
    finally:
        machine.close()
