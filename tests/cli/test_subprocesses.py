"""The Pythons that we start: root may call a command in a folder of another user, who can put modules there."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aliquot

SOURCES = Path(aliquot.__file__).parent


def commands() -> Iterator[tuple[str, list[ast.expr]]]:
    """Lists in the source that begin with our own Python, with their places."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
                yield f"{path.relative_to(SOURCES)}:{node.lineno}", node.elts[1:]


def test_every_python_that_we_start_ignores_the_current_folder() -> None:
    found = dict(commands())
    assert len(found) > 2
    assert [place for place, words in found.items() if ast.unparse(words[0]) not in ("'-P'", "'-I'")] == []


def test_doctor_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    for name in ("ctypes", "json", "struct", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write(__name__)")
    command = [sys.executable, "-P", "-m", "aliquot", "doctor"]
    subprocess.run(
        command, cwd=tmp_path, capture_output=True, timeout=120, check=False, env={"ALIQUOT_HOME": str(tmp_path / "h")}
    )
    assert not (tmp_path / "imported").exists()
