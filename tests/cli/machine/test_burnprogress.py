"""A sample workload says every few seconds how it goes, also while it is paused."""

from __future__ import annotations

import io
import re

import pytest

from aliquot.cli.machine import burnprogress
from kit.machines.machine import eventually


def test_log_of_a_workload_has_lines_also_while_it_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    monkeypatch.setattr(burnprogress, "EVERY", 0.02)
    with burnprogress.shown_progress() as on_progress:
        on_progress(1.0, 0.5)
        eventually(lambda: "no kernel finished" in log.getvalue())
    first, second = log.getvalue().splitlines()[:2]
    assert re.fullmatch(r"\d+ s: [\d.]+% of the card in the last \d+ s", first)
    assert re.fullmatch(r"\d+ s: no kernel finished", second)
    written = log.getvalue()
    on_progress(2.0, 0.5)
    assert log.getvalue() == written


def test_workload_without_a_kernel_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    with burnprogress.shown_progress():
        pass
    assert log.getvalue() == ""
