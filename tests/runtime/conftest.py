"""A simulated card with a daemon over it, empty before each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.gpu import player
from kit.cards.runtime import Node
from kit.machines.machine import ALIQUOT, Machine


@pytest.fixture(scope="session")
def shared_node() -> Iterator[Node]:
    if not os.path.exists(player.shim()):
        pytest.skip("the libraries are not built")
    node = Node()
    yield node
    node.close()


@pytest.fixture
def node(shared_node: Node) -> Iterator[Node]:
    yield shared_node
    shared_node.clear()


@pytest.fixture(scope="session")
def shared_refusing_node() -> Iterator[Node]:
    if not os.path.exists(player.shim()):
        pytest.skip("the libraries are not built")
    node = Node("--refuse-controls", control="unproven")
    yield node
    node.close()


@pytest.fixture
def refusing_node(shared_refusing_node: Node) -> Iterator[Node]:
    """A node whose driver refuses to set slices and to pause."""
    yield shared_refusing_node
    shared_refusing_node.clear()


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """A machine with one simulated card and `aliquot up`."""
    if not os.path.exists(player.shim()):
        pytest.skip("the libraries are not built")
    machine = Machine([*ALIQUOT, "up", "--simulate", "1x8GiB", "--listen", "0"])
    machine.environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    machine.up()
    yield machine
    machine.aliquot("down")
    machine.close()
