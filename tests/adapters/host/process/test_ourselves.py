"""Our own Python processes: none runs what lies in its working folder."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.host.process import ourselves
from kit.running.hostilefolder import hostile_folder, taken
from kit.values.chart import ROOT

SOURCE = ROOT / "src" / "aliquot"
OWN = SOURCE / "adapters" / "host" / "process" / "ourselves.py"


def _commands(tree: ast.AST) -> Iterator[list[str]]:
    """The words of each list that begins with this Python; those that are no constants are empty."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.List, ast.Tuple)):
            words = [ast.unparse(word) for word in node.elts]
            if "sys.executable" in words:
                after = node.elts[words.index("sys.executable") + 1 :]
                yield [str(word.value) if isinstance(word, ast.Constant) else "" for word in after]


def test_only_one_module_words_the_command_lines_of_our_processes() -> None:
    found = [
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        if file != OWN and any("-m" in words or "-c" in words for words in _commands(ast.parse(file.read_text())))
    ]
    assert found == []


@pytest.mark.parametrize("folder", ["bench", "deploy", "tests/kit", "tests/shim"])
def test_helpers_run_our_modules_as_we_do(folder: str) -> None:
    found = [
        str(file.relative_to(ROOT))
        for file in (ROOT / folder).rglob("*.py")
        for words in _commands(ast.parse(file.read_text()))
        if words[:1] == ["-m"] and words[1].startswith("aliquot")
    ]
    assert found == []


@pytest.mark.parametrize(
    "command",
    [
        ourselves.aliquot("--version"),
        ourselves.module("aliquot", "run", "--help"),
        ourselves.code("import json, subprocess, time"),
        ourselves.script("ours.py"),
        ourselves.script("ours.py", site=True),
    ],
    ids=["aliquot", "module", "code", "script", "script with site"],
)
def test_no_process_takes_a_module_from_its_working_folder(tmp_path: Path, command: list[str]) -> None:
    hostile = hostile_folder(tmp_path)
    (hostile / "ours.py").write_text("import json, subprocess, time")
    done = subprocess.run(command, cwd=hostile, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert taken(hostile) == []
