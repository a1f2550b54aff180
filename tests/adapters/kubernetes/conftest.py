"""What several files of tests share."""

from __future__ import annotations

import pytest

from aliquot.adapters.kubernetes import reflector as module
from aliquot.adapters.kubernetes.certificates import Pair, issue, make_authority
from kit.clusters.kubeconfigs import NOW


@pytest.fixture
def quick_reflector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.002)
    monkeypatch.setattr(module, "_LONGEST_PAUSE", 0.01)


@pytest.fixture(scope="module")
def authority() -> Pair:
    return make_authority("test", NOW, 1e6)


@pytest.fixture(scope="module")
def client(authority: Pair) -> Pair:
    return issue(authority, ["me"], NOW, 1e5)
