"""How the daemon's options and what was stored become its rules, and what its start does not wait for."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.gpu.mps import Mps
from aliquot.adapters.host.home import Home
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules
from aliquot.services.dashboard.access import NO_DASHBOARD
from aliquot.services.machine.service import Setup, _rules, run_daemon
from kit.machines.machine import PaperArbiter, PaperNvml, cards

STORED = SharingRules(Isolation.BURST_SHARE, 0.5, 7.0)


def with_options(**options: Any) -> SharingRules:
    made: Any = None
    home = Home("/nowhere", "/nowhere")
    return _rules(STORED, Setup(home, made, made, on_ready=made, environment={}, front={}, **options))


def test_rules_stay_as_stored_without_options() -> None:
    assert with_options() == STORED


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({"policy": Isolation.FIXED_SHARE}, SharingRules(Isolation.FIXED_SHARE, 0.5, 7.0)),
        ({"release_delay": 0.0}, SharingRules(Isolation.BURST_SHARE, 0.0, 7.0)),
        ({"enforce": "report"}, SharingRules(Isolation.BURST_SHARE, 0.5, None)),
        ({"enforce": "kill", "kill_after": 0.0}, SharingRules(Isolation.BURST_SHARE, 0.5, 0.0)),
    ],
)
def test_options_replace_what_was_stored(options: dict[str, Any], rules: SharingRules) -> None:
    assert with_options(**options) == rules


def test_daemon_is_ready_before_groups_that_are_left_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, ready, ended = Home(str(tmp_path), str(tmp_path)), threading.Event(), list[bool]()
    Path(home.groups, "left").mkdir(parents=True)
    monkeypatch.setattr(Mps, "stop", lambda self, folder: ended.append(ready.wait(20)))

    def on_ready(_: str) -> None:
        ready.set()
        os.kill(os.getpid(), signal.SIGTERM)

    nvml: Any = PaperNvml(cards())
    run_daemon(Setup(home, nvml, lambda *_: PaperArbiter(), on_ready, environment={}, front={}, listen=NO_DASHBOARD))
    assert ended == [True]
