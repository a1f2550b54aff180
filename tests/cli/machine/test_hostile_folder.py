"""Commands in a folder of another user, with modules under the names that ours import: none of them runs."""

from __future__ import annotations

from pathlib import Path

from kit.machines.machine import ALIQUOT, Machine
from kit.running.hostilefolder import hostile_folder, taken


def test_commands_of_one_machine_run_nothing_of_their_working_folder(tmp_path: Path) -> None:
    hostile = hostile_folder(tmp_path)
    machine = Machine(ALIQUOT)
    burn = ("aliquot", "burn", "load", "--seconds", "0.2")
    try:
        for words in (
            ("up", "-d", "--simulate", "1x8GiB", "--listen", "0"),
            ("run", "--memory", "1", "--", *burn),
            ("run", "-d", "--name", "long", "--memory", "1", "--park", "1s", "--", "sleep", "60"),
            ("top", "--once"),
            ("doctor",),
            ("service", "status"),
            ("stop", "long"),
        ):
            done = machine.aliquot(*words, cwd=hostile)
            assert "Traceback" not in done.stderr, done.stderr
    finally:
        assert machine.aliquot("down", cwd=hostile).returncode == 0
        machine.close()
    assert taken(hostile) == []
