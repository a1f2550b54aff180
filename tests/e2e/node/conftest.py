"""The product on real nodes: two kubelets and two containerds on a control plane of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from testbed.plane import ControlPlane
from testbed.programs.fleet import Fleet
from testbed.realnodes.nodes import RealNode, remove_pods, standing
from testbed.registries.images import Registry

NAMES = ("n1", "n2")


@pytest.fixture(scope="session")
def nodes_plane(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Not the one of the other tests, which remove every Node they find."""
    with ControlPlane(tmp_path_factory.mktemp("nodes-plane"), silent_nodes=False) as control_plane:
        yield control_plane


@pytest.fixture(scope="session")
def both(
    nodes_plane: ControlPlane, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RealNode, ...]]:
    """Two nodes for all tests. Their logs stay in pytest's folder for the run."""
    found = tuple(RealNode(nodes_plane, name, tmp_path_factory.mktemp(name), registry) for name in NAMES)
    with standing(found):
        yield found


@pytest.fixture
def nodes(both: tuple[RealNode, ...], nodes_plane: ControlPlane) -> Iterator[Sequence[RealNode]]:
    """The two nodes, ready and without Pods before the test, as every test leaves them."""
    for node in both:
        node.heal()  # a test that failed may have stopped something
    yield both
    for node in both:
        node.heal()
    remove_pods(nodes_plane, both)


@pytest.fixture
def node(nodes: Sequence[RealNode]) -> RealNode:
    """The first of them, for a test that needs one."""
    return nodes[0]


@pytest.fixture(scope="session")
def whole_fleet(
    both: tuple[RealNode, ...], nodes_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Scheduler and agents on both nodes, for all tests."""
    running = Fleet(nodes_plane, both, tmp_path_factory.mktemp("fleet"))
    yield running
    running.stop()


@pytest.fixture
def fleet(whole_fleet: Fleet) -> Iterator[Fleet]:
    """The same for one test. Whatever it did: no card was given away twice, and in the end nothing is left of it."""
    whole_fleet.heal()
    before = whole_fleet.stumbles()
    yield whole_fleet
    wrong = whole_fleet.overbooked() + [line for line in whole_fleet.stumbles() if line not in before]
    whole_fleet.heal()
    whole_fleet.tidy()
    assert wrong == []
