"""What several files of tests share."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cards.arbiterd import Rig, open_files, running, same_files
from kit.cards.hostiletenant import HostileTenant


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A daemon at work, which leaves no file open."""
    yield from running(lambda: Rig(tmp_path, monkeypatch))


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileTenant]:
    before = open_files()
    rig = Rig(tmp_path, monkeypatch)
    made = HostileTenant(rig)
    yield made
    rig.end()
    assert same_files(before), "files were left open"


@pytest.fixture
def pods() -> dict[int, str]:
    """Which Pod each process is of: what the cgroups tell, played."""
    return {}


@pytest.fixture(autouse=True, scope="module")
def _no_garbage_of_other_tests() -> None:
    """What earlier tests left to the collector would close its files in the middle of a test that counts files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
