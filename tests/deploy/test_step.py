"""The steps of `make` show that they move, and print their output only if they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kit.running.terminal import shown_on_terminal

STEP = [sys.executable, str(Path(__file__).parents[2] / "deploy" / "step.py"), "native"]
SLOW = "import time; print('compiling shim.c'); time.sleep(1.2)"


def _run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [*STEP, sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )


def _on_a_terminal(program: str, term: str) -> str:
    """What a terminal receives."""
    environment = {**os.environ, "TERM": term, "COLUMNS": "40"}
    shown, code = shown_on_terminal([*STEP, sys.executable, "-c", program], environment, "stdout")
    assert code == 0
    return shown


def test_piped_step_prints_dots_and_seconds() -> None:
    done = _run(SLOW)
    assert done.returncode == 0
    assert done.stdout.startswith("native .")
    assert done.stdout.endswith(" s\n")
    assert "compiling" not in done.stdout
    assert "\x1b" not in done.stdout


def test_failed_step_prints_the_output() -> None:
    done = _run("print('gcc: no such file'); raise SystemExit(3)")
    assert done.returncode == 3
    assert "gcc: no such file\nnative: failed\n" in done.stderr


def test_step_on_a_terminal_rewrites_one_line_of_its_width() -> None:
    shown = _on_a_terminal("print('x' * 200, flush=True); import time; time.sleep(1.2)", "xterm")
    lines = shown.split("\r\x1b[K")
    assert len(lines) > 3
    assert all(len(line) < 40 for line in lines)
    assert any("xxx" in line for line in lines)
    assert shown.count("\n") == 1


def test_step_on_a_dumb_terminal_has_no_escape_codes() -> None:
    shown = _on_a_terminal(SLOW, "dumb")
    assert shown.startswith("native .")
    assert "\x1b" not in shown
