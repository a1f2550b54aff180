"""Where the daemon lives."""

from __future__ import annotations

import os

import pytest

from aliquot.adapters.host.home import Home, HomeError, homes, own_home


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALIQUOT_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ann")


def as_user(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)


def test_own_home_follows_aliquot_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIQUOT_HOME", "/tmp/here/")
    assert own_home() == Home("/tmp/here", "/tmp/here")
    assert homes() == [own_home()]


def test_own_home_of_root_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 0)
    assert homes() == [Home("/run/aliquot", "/var/lib/aliquot")]


def test_homes_of_other_users_have_the_machines_first(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 1000)
    assert [home.run for home in homes()] == ["/run/aliquot", "/home/ann/.aliquot"]
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert own_home() == Home("/run/user/1000/aliquot", "/home/ann/.local/state/aliquot")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert own_home().state == "/state/aliquot"


def test_a_path_that_leaves_no_room_for_a_sockets_name_is_refused() -> None:
    Home("/" + "x" * 79, "/s").check()
    with pytest.raises(HomeError, match=r"1 bytes too long .* ALIQUOT_HOME to a shorter one"):
        Home("/" + "x" * 80, "/s").check()
