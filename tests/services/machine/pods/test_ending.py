"""The end of Pods whose supervisors are late."""

from __future__ import annotations

import subprocess
import time
from types import SimpleNamespace
from typing import Any

import pytest

from aliquot.adapters.host.process import processes
from aliquot.services.machine.pods import ending
from aliquot.services.machine.pods.ending import PodEnding
from kit.running.scarcefiles import scarce_files


def test_supervisor_that_could_not_be_killed_for_lack_of_files_is_killed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_PATIENCE", 0.0)
    with subprocess.Popen(["sh", "-c", "trap '' TERM; echo; while :; do sleep 60; done"], stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        started = processes.start_time(child.pid) or 0
        pod: Any = SimpleNamespace(uid="u", ending=0.0, supervisor=(child.pid, started))
        pods = PodEnding({"u": pod}, {}, {}, delete=lambda *_: None, removed=lambda _: None)
        pods.ask(pod)
        time.sleep(0.01)
        with scarce_files(0):
            pods.kill_late()
        assert processes.lives(child.pid, started)
        pods.kill_late()
        assert child.wait(60) == -9
        assert not pods._kill_at
