"""A daemon for the tests of a module, with the cards that its CARDS names, and no Pod before and after a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.machines.machine import Machine, paper

CLEAR = ("delete", "all", "--all", "--grace", "0")


@pytest.fixture(scope="module")
def box(request: pytest.FixtureRequest) -> Iterator[Machine]:
    machine = paper(request.module.CARDS)
    machine.up()
    yield machine
    machine.aliquot(*CLEAR)
    machine.close()


@pytest.fixture
def machine(box: Machine) -> Iterator[Machine]:
    yield box
    box.aliquot(*CLEAR)
