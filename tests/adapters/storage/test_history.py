"""The runs that have ended, in the daemon's database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot.adapters.storage import history as module
from aliquot.adapters.storage import store as store_module
from aliquot.adapters.storage.database import Database
from aliquot.adapters.storage.history import History
from aliquot.adapters.storage.store import Store
from aliquot.model.claim import AppClass
from aliquot.model.tenancy import EndedRun

RUN = EndedRun("id-0", "train", AppClass.OFFLINE, 1000, ("python", "train.py"), 5.0, 6.5, -9, "/logs/train.log")


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    database = Database(str(tmp_path / "h.db"), [module.STEP])
    yield History(database)
    database.close()


def test_ended_runs_come_back_as_they_were_and_once(history: History) -> None:
    unknown = replace(RUN, id="id-1", name="serve", ended=None, code=None, log=None)
    for run in (RUN, unknown, RUN):
        history.add(run)
    assert history.runs() == [unknown, RUN]


def test_one_user_does_not_push_out_the_runs_of_another(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OF_A_USER", 3)
    monkeypatch.setattr(module, "IN_ALL", 5)
    history.add(RUN)
    for number in range(10):
        history.add(replace(RUN, id=f"many-{number}", user=2000))
    assert [run.id for run in history.runs()] == ["id-0", "many-7", "many-8", "many-9"]
    for user in range(5):
        history.add(replace(RUN, id=f"of-{user}", user=user))
    assert [run.id for run in history.runs()] == [f"of-{user}" for user in range(5)]


def test_a_user_is_one_under_the_numbers_that_are_lent_to_them(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OF_A_USER", 3)
    monkeypatch.setattr(module, "account_of", lambda uid: 2000 if uid >= 200_000 else uid)
    history.add(RUN)
    there = [replace(RUN, id=f"many-{number}", user=200_000 + number) for number in range(10)]
    for run in there:
        history.add(run)
    assert history.runs() == [RUN, *there[-3:]]
    assert module.newest([RUN, *there]) == [RUN, *there[-3:]]


def test_long_commands_are_shortened(history: History) -> None:
    history.add(replace(RUN, command=("python", *["x" * 256] * 63)))
    assert sum(map(len, history.runs()[0].command)) < 2100


def test_the_release_before_the_history_may_still_use_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    store = Store(path, str(tmp_path))
    store.history.add(RUN)
    store.close()
    with contextlib.closing(Database(path, store_module._STEPS[:2])) as before:
        assert before.damage is None
    store = Store(path, str(tmp_path))
    assert store.history.runs() == [RUN]
    store.close()
