"""Where the daemon lives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot.adapters.host.home import Home, HomeError, homes, open_private, own_home


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


@pytest.mark.parametrize("what", ["a pipe", "a link", "a second name", "another user's file"])
@pytest.mark.parametrize("flags", [os.O_APPEND, os.O_TRUNC])
def test_private_file_is_never_one_that_another_user_put_there(tmp_path: Path, what: str, flags: int) -> None:
    """In a folder of theirs; the kernel forbids some of these in sticky folders only."""
    path, precious = tmp_path / "log", tmp_path / "precious"
    precious.write_text("precious")
    precious.chmod(0o644)
    if what == "a pipe":
        os.mkfifo(path)
    elif what == "a link":
        path.symlink_to(precious)
    elif what == "a second name":
        path.hardlink_to(precious)
    elif os.geteuid():
        pytest.skip("only root can give a file away")
    else:
        path.write_text("precious")
        os.chown(path, 65534, 65534)
    with pytest.raises(OSError, match=r"put it there|symbolic links|No such device"):
        open_private(str(path), flags)
    assert precious.read_text() == "precious"
    assert precious.stat().st_mode & 0o777 == 0o644


def test_private_file_is_cut_or_continued(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for flags, text in ((os.O_APPEND, b"ab"), (os.O_APPEND, b"c"), (os.O_TRUNC, b"d")):
        with open_private(str(path), flags) as file:
            file.write(text)
    assert path.read_bytes() == b"d"
    assert path.stat().st_mode & 0o777 == 0o600
