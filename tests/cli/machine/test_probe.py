"""`aliquot probe` on a simulated card: the whole report, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.adapters.gpu import player

pytestmark = pytest.mark.skipif(not os.path.exists(player.shim()), reason="the libraries are not built")


def probe(*words: str) -> tuple[subprocess.Popen[str], str, str]:
    command = [sys.executable, "-m", "aliquot", "probe", "--simulate", "1x24GiB", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, *process.communicate(timeout=280)


def test_probe_reports_every_figure_and_leaves_nothing() -> None:
    process, output, errors = probe("--seconds", "0.5", "-o", "json")
    assert process.returncode == 0, errors
    report = json.loads(output)
    assert report["control"]["level"] in ("proven", "unproven")  # a busy machine may spoil each trial
    assert report["control"]["reason"] in (None, "inconclusive")
    assert report["memory"] == {"within_limit_allowed": True, "beyond_limit_refused": True}
    assert len(report["shares"]["had"]) == 3
    assert {"preemption", "cap", "switching", "card", "driver"} <= report.keys()
    assert not Path(f"/tmp/aliquot-probe-{process.pid}").exists()


def test_probe_refuses_a_card_that_is_not_there() -> None:
    process, output, errors = probe("--card", "7")
    assert (process.returncode, output) == (2, "")
    assert "--card: 7 is not allowed: this machine has 1" in errors
