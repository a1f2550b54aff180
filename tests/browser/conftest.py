"""A browser for all tests, and a machine with simulated cards that is empty before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from browser.scenes import Shown, lively, shown
from browser.visits import launched


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = launched(playwright)
        yield found
        found.close()


@pytest.fixture(scope="session")
def shared_machine() -> Iterator[Shown]:
    with shown() as machine:
        machine.aliquot("policy", "release-delay", "100ms")
        yield machine


@pytest.fixture
def machine(shared_machine: Shown) -> Iterator[Shown]:
    yield shared_machine
    shared_machine.clear()


@pytest.fixture(scope="module")
def busy() -> Iterator[Shown]:
    """Several tenants, online and offline together, and one who waits."""
    with shown() as machine, lively(machine):
        yield machine
