"""What a program logged: the keys and their fields."""

from __future__ import annotations

from typing import Any

import pytest


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """The records so far, as (key, fields)."""
    return [(record.getMessage(), getattr(record, "data", {})) for record in caplog.records]


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The key of every warning, and why."""
    return [
        (record.message, str(getattr(record, "data", {}).get("why", "")))
        for record in caplog.records
        if record.levelname == "WARNING"
    ]
