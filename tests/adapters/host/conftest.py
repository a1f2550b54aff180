"""What several files of tests share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps, with a mark in its environment."""
    environment = {**os.environ, "ALIQUOT_MARK": "of this test"}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        yield process
        process.kill()
