"""A built shim, and a tenant to load it into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.harness import GIB, Built, Tenant


@pytest.fixture(scope="session")
def built() -> Built:
    return Built()


@pytest.fixture
def tenant(tmp_path: Path, built: Built) -> Iterator[Tenant]:
    made = Tenant(tmp_path, built)
    yield made
    made.close()


@pytest.fixture
def parkable(tenant: Tenant) -> Tenant:
    """A tenant whose memory may leave the card."""
    tenant.grant(4 * GIB)
    tenant.page.set_parkable(0, True)
    return tenant
