"""A built shim, and a tenant to load it into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.harness import Built, Tenant


@pytest.fixture(scope="session")
def built() -> Built:
    return Built()


@pytest.fixture
def tenant(tmp_path: Path, built: Built) -> Iterator[Tenant]:
    made = Tenant(tmp_path, built)
    yield made
    made.close()
