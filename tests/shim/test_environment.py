"""The environment that a container could not be given: the shim reads it from a file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from kit.running.privileges import needs_mounts
from shim.harness import Built

FILE = "A=granted\\0LONG=x=y z\\0broken\\0"
INSIDE = f"""
mkdir -p /run/aliquot && mount -t tmpfs none /run/aliquot && printf '{FILE}' > /run/aliquot/env
export LD_PRELOAD=$1; shift
exec "$@"
"""


def run_inside(built: Built, *command: str, **environment: str) -> dict[str, str]:
    """The environment that the command prints, NUL by NUL, in a mount namespace with such a file."""
    words = ["unshare", "--mount", "sh", "-c", INSIDE, "sh", built.preload, *command]
    variables = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", **environment}
    done = subprocess.run(words, env=variables, capture_output=True, check=True)
    return dict(entry.partition("=")[::2] for entry in done.stdout.decode().split("\0") if "=" in entry)


@needs_mounts
def test_variables_of_the_file_replace_those_of_the_container(built: Built) -> None:
    found = run_inside(built, "env", "-0", A="all", B="own")
    assert (found["A"], found["LONG"], found["B"]) == ("granted", "x=y z", "own")


@needs_mounts
def test_what_a_program_sets_for_its_children_stays(built: Built) -> None:
    """As torchrun does: one card for each worker."""
    assert run_inside(built, "env", "A=worker", "env", "-0")["A"] == "worker"


def test_without_the_file_nothing_is_set(built: Built, tmp_path: Path) -> None:
    variables = {"LD_PRELOAD": built.preload, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(["env", "-0"], env=variables, capture_output=True, check=True)
    assert b"ALIQUOT_ENV" not in done.stdout
