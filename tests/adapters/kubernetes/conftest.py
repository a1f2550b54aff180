"""What several files of tests share."""

from __future__ import annotations

import pytest

from aliquot.adapters.kubernetes import reflector as module


@pytest.fixture
def quick_reflector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.002)
    monkeypatch.setattr(module, "_LONGEST_PAUSE", 0.01)
