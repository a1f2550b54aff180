"""Compiled modules beside their sources, never checked against them: a read-only image starts fast."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from imagebuild.entries import Entry, files
from imagebuild.errors import CannotBuildError

# What a compiled file looks like depends on what its process compiled before (which strings were shared), and on the
# order of sets: therefore a process of its own, in a fixed order, with a fixed seed.
_COMPILE = """
import json, py_compile, sys
unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
for source, shown, out in json.load(open(sys.argv[1])):
    py_compile.compile(source, cfile=out, dfile=shown, doraise=True, invalidation_mode=unchecked)
"""


def compiled(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The .pyc of every .py among them. Only Python 3.11 makes what Python 3.11 reads."""
    if sys.version_info[:2] != (3, 11):
        raise CannotBuildError(
            f"this is Python {sys.version_info[0]}.{sys.version_info[1]}: the image's bytecode is made by 3.11, its own"
        )
    sources = [(path, entry) for path, entry in files(entries) if path.endswith(".py")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = []
        for number, (path, entry) in enumerate(sources):
            (folder / f"{number}.py").write_bytes(entry.data)
            jobs.append((f"{folder}/{number}.py", f"/{path}", f"{folder}/{number}.pyc"))
        (folder / "jobs").write_text(json.dumps(jobs))
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-c", _COMPILE, f"{folder}/jobs"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - ours
        if done.returncode:
            raise CannotBuildError(f"compiling Python's modules: {done.stderr.strip()}")
        return {
            cached(path): Entry(data=(folder / f"{number}.pyc").read_bytes())
            for number, (path, _) in enumerate(sources)
        }


def cached(path: str) -> str:
    """Where Python looks for it."""
    return importlib.util.cache_from_source(path, optimization="")
