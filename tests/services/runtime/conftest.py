"""What several files of tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.arbiterd import Rig, running


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A daemon at work, which leaves no file open."""
    yield from running(lambda: Rig(tmp_path, monkeypatch))
