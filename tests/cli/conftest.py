"""Machines and clusters of paper for the commands to run on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.machines.fakedaemon import FakeDaemon, a_status
from kit.machines.machine import Machine, paper


@pytest.fixture(scope="session")
def shared() -> Iterator[Machine]:
    machine = paper("2x24")
    machine.up()
    yield machine
    machine.close()


@pytest.fixture
def machine(shared: Machine) -> Iterator[Machine]:
    """Two cards of 24 GiB, empty before and after."""
    yield shared
    shared.clear()


@pytest.fixture
def own() -> Iterator[Machine]:
    """One card of 24 GiB, on a machine whose daemon a test may kill."""
    machine = paper("1x24")
    yield machine
    machine.close()


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """A daemon of paper that knows no Pods, in a home of its own; short enough for sockets."""
    home = Path(tempfile.mkdtemp(prefix="alq"))
    monkeypatch.setenv("ALIQUOT_HOME", str(home))
    made = FakeDaemon(home, status=a_status())
    yield made
    made.close()
    shutil.rmtree(home)
