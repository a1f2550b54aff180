"""A player with one card of 8 GiB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simgpu.rig import Player


@pytest.fixture
def player() -> Iterator[Player]:
    with Player("--memory", "8192") as made:
        yield made
