"""A daemon for the tests of a module, and its Pods, none before and after a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.machines.machine import Machine, paper
from kit.machines.machinepods import Pods


@pytest.fixture(scope="module")
def box() -> Iterator[Machine]:
    """Two cards of 24 GiB."""
    machine = paper("2x24")
    machine.up()
    yield machine
    machine.close()


@pytest.fixture
def pods(box: Machine) -> Iterator[Pods]:
    """Without a Pod, before and after."""
    found = Pods(box)
    yield found
    found.clear()
