"""What several files of tests share."""

from __future__ import annotations

import pytest

from kit.values.chart import Objects, installed


@pytest.fixture(scope="module")
def objects() -> Objects:
    return installed()
