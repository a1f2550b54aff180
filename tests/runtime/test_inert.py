"""A card whose slices or pauses answer OK and change nothing is found out by its effect, and held at the gate."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from aliquot.adapters.gpu import player
from kit.cards.runtime import Node, near
from simgpu import faults
from simgpu.rig import wait_until

LONG = 90.0  # seconds: a trial that a busy machine spoils is repeated, later each time


@pytest.fixture(scope="module")
def shared_doubtful_node() -> Iterator[Node]:
    if not os.path.exists(player.shim()):
        pytest.skip("the libraries are not built")
    node = Node(control="trust")
    yield node
    node.close()


@pytest.fixture
def doubtful_node(shared_doubtful_node: Node) -> Iterator[Node]:
    """Nothing is known of its card, and its daemon is not started."""
    node = shared_doubtful_node
    (node.folder / "control.json").unlink(missing_ok=True)
    node.kill_daemon()
    yield node
    faults.make_inert(node.player.socket, 0, "nothing")
    node.clear()


def start(node: Node, control: str) -> None:
    node.control = control
    node.restart_daemon()


def control_of(node: Node) -> list[str]:
    found: list[str] = node.ask("control")
    return found


def until_known(node: Node) -> list[str]:
    wait_until(lambda: control_of(node)[0] != "unproven", "its control is tried", LONG)
    return control_of(node)


def of_both_near(expected: list[float], points: float) -> Callable[..., bool]:
    """Of what they have together: a busy machine leaves the card idle at times."""
    return lambda *shares: near(expected, points)(*(share / sum(shares) for share in shares))


@pytest.mark.parametrize(("what", "kernel"), [("slices", "200us"), ("both", "5ms")])
def test_inert_card_is_held_at_the_gate_before_its_first_tenant(doubtful_node: Node, what: str, kernel: str) -> None:
    node = doubtful_node
    faults.make_inert(node.player.socket, 0, what)
    start(node, "auto")
    assert until_known(node) == ["gate", f"{what}_inert"]
    assert [finding["kind"] for finding in node.ask("findings")] == ["inert"]
    node.configure("burst-share")
    names = [node.tenant(core=core) for core in (30, 70)]
    loads = [node.load(name, kernel, "--depth", "8") for name in names]
    node.until_runs(*loads)
    assert [node.standing(name)["level"] for name in names] == ["gate", "gate"]
    node.shares_come_to(of_both_near([0.3, 0.7], 5), *((load.pid,) for load in loads))
    node.kill_daemon()
    node.restart_daemon()  # it need not try again
    assert control_of(node) == ["gate", f"{what}_inert"]


def test_an_idle_card_that_obeys_is_proven(doubtful_node: Node) -> None:
    node = doubtful_node
    start(node, "auto")
    assert until_known(node) == ["proven", None]
    assert node.ask("findings") == []


def test_nothing_is_tried_while_a_tenant_works(doubtful_node: Node) -> None:
    node = doubtful_node
    start(node, "trust")
    name = node.tenant()
    load = node.load(name)
    node.until_runs(load)
    node.kill_daemon()
    start(node, "auto")
    node.goes_on(load.pid)
    assert control_of(node) == ["unproven", "not_tried"]
    load.kill()
    assert until_known(node) == ["proven", None]
