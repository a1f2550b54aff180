"""What several files of tests share."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator

import pytest


@pytest.fixture
def mark() -> str:
    """Another one in each test: another run of these tests may be under way, and its processes are not ours."""
    return f"{uuid.uuid4()}"


@pytest.fixture
def child(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps, with a mark in its environment."""
    environment = {**os.environ, "ALIQUOT_MARK": mark}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        yield process
        process.kill()
