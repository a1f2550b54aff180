"""Terminals of other encodings, closed streams, and full disks: one line, never a traceback."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.cli.errors import _make_streams_safe
from aliquot.cli.tables import bar
from kit.machines.machine import ALIQUOT, Machine, eventually
from kit.running.privileges import needs_mounts


def test_signs_that_the_encoding_lacks_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    _make_streams_safe()
    print(f"{bar(0.6, 4)} caf\u00e9 \u8282", flush=True)
    assert written.getvalue().decode("latin-1") == "### caf\u00e9 ?\n"


@pytest.mark.parametrize("words", [["ps"], ["top", "--once"], ["run", "--memory", "1", "true"], ["--help"]])
def test_closed_streams_are_no_error(machine: Machine, words: list[str]) -> None:
    command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *ALIQUOT, *words]
    assert subprocess.run(command, env=machine.environment, check=False).returncode == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_in_the_background_has_its_output_in_the_log_though_it_was_started_with_closed_streams(
    machine: Machine, closed: str
) -> None:
    script = "read line; echo out; echo err >&2; exit 3"
    words = [*ALIQUOT, "run", "-d", "--name", "silent", "--memory", "1", "--", "sh", "-c", script]
    subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *words], env=machine.environment, check=True, timeout=60)
    eventually(lambda: not machine.status()["tenants"])
    logged = machine.aliquot("logs", "silent")
    assert logged.stdout == "out\nerr\n"
    assert "with exit code 3" in logged.stderr


@needs_mounts
def test_up_names_the_full_folder(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = 'mount -t tmpfs -o size=64k none "$0" && ALIQUOT_HOME="$0/h" exec "$@" up -d --simulate 1x8GiB'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, str(disk), *ALIQUOT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"aliquot: {disk}/h: only ")
    assert done.stderr.endswith("the daemon needs 4 MiB: make room, or set ALIQUOT_HOME to another folder\n")
