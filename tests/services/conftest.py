"""What several files of tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.agentnode import House


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """An agent with everything around it, at work."""
    made = House(tmp_path, monkeypatch)
    made.sync()
    yield made
    made.store.close()
