"""A card whose slices or pauses answer OK and change nothing is found out by its effect, and held at the gate."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from aliquot.adapters.gpu import player
from kit.runtime import Node, near
from simgpu import faults
from simgpu.rig import wait_until


@pytest.fixture(scope="module")
def shared_doubtful_node() -> Iterator[Node]:
    if not os.path.exists(player.shim()):
        pytest.skip("the libraries are not built")
    node = Node(control="unproven")
    yield node
    node.close()


@pytest.fixture
def doubtful_node(shared_doubtful_node: Node) -> Iterator[Node]:
    """Nothing was proven of its card."""
    node = shared_doubtful_node
    yield node
    faults.make_inert(node.player.socket, 0, "nothing")
    node.kill_daemon()  # the next one knows nothing of the card
    node.clear()


def control_of(node: Node) -> list[str]:
    found: list[str] = node.ask("control")
    return found


@pytest.mark.parametrize(("what", "kernel"), [("slices", "200us"), ("both", "5ms")])
def test_an_inert_card_falls_back_to_the_gate(doubtful_node: Node, what: str, kernel: str) -> None:
    node = doubtful_node
    faults.make_inert(node.player.socket, 0, what)
    node.configure("burst-share")
    loads = [node.load(node.tenant(core=core), kernel, "--depth", "8") for core in (30, 70)]
    wait_until(lambda: control_of(node)[0] == "gate", "its control is found to have no effect")
    assert control_of(node) == ["gate", f"{what}_inert"]
    pids = {load.pid for load in loads}
    wait_until(lambda: {finding["pid"] for finding in node.ask("findings")} == pids, "each of them is reported")
    node.shares_come_to(near([0.3, 0.7], 5), *((load.pid,) for load in loads))


def test_a_card_that_obeys_is_proven_by_the_first_contention(doubtful_node: Node) -> None:
    node = doubtful_node
    name = node.tenant()
    first = node.load(name)
    node.until_runs(first)
    assert control_of(node) == ["unproven", "not_tried"]  # alone it proves nothing
    node.load(node.tenant())
    wait_until(lambda: control_of(node)[0] != "unproven", "it is tried")
    assert control_of(node) == ["proven", None]
    assert node.standing(name)["level"] == "hardware"
