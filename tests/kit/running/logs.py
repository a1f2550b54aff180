"""What a program logged, as data."""

from __future__ import annotations

import pytest


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The key of every warning, and why."""
    return [
        (record.message, str(getattr(record, "data", {}).get("why", "")))
        for record in caplog.records
        if record.levelname == "WARNING"
    ]
