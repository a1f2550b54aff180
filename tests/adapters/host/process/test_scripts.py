"""What is said about a script that the kernel does not execute."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot.adapters.host.process.scripts import why_not_executed

MOVED = (
    "its first line names /gone/venv/bin/python3, which does not exist (was its folder moved? then install it again)"
)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("#!/gone/venv/bin/python3\n", MOVED),
        ("#! /gone/interpreter -x\n", "its first line names /gone/interpreter, which does not exist"),
        ("#!/gone/interpreter -u\r\n", "its first line names /gone/interpreter, which does not exist"),
        ("#!/bin/sh\r\necho\r\n", "its lines end as on Windows: convert it, for instance with dos2unix"),
    ],
)
def test_script_without_its_interpreter(tmp_path: Path, content: str, why: str) -> None:
    script = tmp_path / "script"
    script.write_text(content, newline="")
    script.chmod(0o755)
    with pytest.raises(OSError, match="No such file") as failed:
        os.execve(script, [str(script)], {})
    assert why_not_executed(failed.value, str(script)) == why


def test_script_whose_interpreter_lacks_its_own_is_not_blamed(tmp_path: Path) -> None:
    between, script = tmp_path / "between", tmp_path / "script"
    between.write_text("#!/gone/interpreter\n")
    script.write_text(f"#!{between}\n")
    for path in (between, script):
        path.chmod(0o755)
    with pytest.raises(OSError, match="No such file") as failed:
        os.execve(script, [str(script)], {})
    assert why_not_executed(failed.value, str(script)) == "No such file or directory"


def test_program_that_is_not_there_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as failed:
        os.execve(tmp_path / "gone", ["gone"], {})
    assert why_not_executed(failed.value, str(tmp_path / "gone")) == "No such file or directory"
