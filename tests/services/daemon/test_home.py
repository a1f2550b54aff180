"""The agent's folders must be the host's: otherwise no container sees what is in them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from aliquot.adapters.host.home import Home
from aliquot.services.daemon.home import StartError, check_mounted, make_folder, make_home

LAYERS = "36 22 0:31 / / rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u"
DISK = "36 22 8:1 / / rw,relatime - ext4 /dev/sda1 rw"
RUN = "40 36 0:26 /aliquot /run/aliquot rw - tmpfs tmpfs rw"
VAR = "41 36 8:1 /var /host/var rw shared:5 - ext4 /dev/sda1 rw"


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    return tmp_path / "mountinfo"


def test_check_mounted_accepts_a_folder_below_a_mount(mounts: Path) -> None:
    mounts.write_text("\n".join([LAYERS, RUN, VAR]))
    check_mounted(["/run/aliquot", "/run/aliquot/t", "/host/var/lib/qgpu"], mounts=mounts)


@pytest.mark.parametrize("folder", ["/var/lib/aliquot", "/run/aliquot-other", "/run"])
def test_check_mounted_refuses_a_folder_of_the_image_with_the_fix(mounts: Path, folder: str) -> None:
    mounts.write_text("\n".join([LAYERS, RUN, VAR]))
    with pytest.raises(StartError, match=f"{folder} is inside this container.*hostPath"):
        check_mounted(["/run/aliquot", folder], mounts=mounts)


def test_check_mounted_accepts_the_hosts_root(mounts: Path) -> None:
    mounts.write_text(DISK)
    check_mounted(["/var/lib/aliquot"], mounts=mounts)


def test_check_mounted_does_nothing_outside_a_pod(mounts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    check_mounted(["/var/lib/aliquot"], mounts=mounts)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user's")
def test_make_folder_refuses_another_users_link(tmp_path: Path) -> None:
    """It may lead to a folder of ours that is for other things."""
    (tmp_path / "etc").mkdir(mode=0o700)
    (tmp_path / "home").symlink_to("etc")
    os.lchown(tmp_path / "home", 65534, 65534)
    with pytest.raises(StartError, match="belongs to user 65534"):
        make_folder(str(tmp_path / "home"), 0o755)
    assert (tmp_path / "etc").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("above", ["open to all", "another user's"])
def test_make_folder_refuses_a_place_where_others_can_replace_it(tmp_path: Path, above: str) -> None:
    (tmp_path / "above").mkdir()
    if above == "open to all":
        (tmp_path / "above").chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(tmp_path / "above", 65534, 65534)
    else:
        pytest.skip("only root can give a folder away")
    if os.geteuid() == 0:
        with pytest.raises(
            StartError, match=r"above lets other users replace it: give it to root and `chmod \+t` it, or"
        ):
            make_folder(str(tmp_path / "above" / "home"), 0o711)
    else:  # shared scratch folders: where users put their own home, they choose
        make_folder(str(tmp_path / "above" / "home"), 0o711)
    (tmp_path / "above").chmod(0o1777)
    if above == "open to all":
        make_folder(str(tmp_path / "above" / "home"), 0o711)  # as in /tmp


FILES = ("run/lock", "run/player.json", "state/player.log", "state/state.db", "state/state.db-wal",
         "state/state.db.damaged-x", "state/daemon.log", "state/daemon.log.1")  # fmt: skip
FOLDERS = ("run", "run/t", "state", "state/logs")


@pytest.mark.parametrize("found", [False, True], ids=["new", "of an earlier release"])
def test_make_home_keeps_other_users_from_reading_it(tmp_path: Path, found: bool) -> None:
    """Earlier releases left files that every user could read, and folders that every user could list."""
    if found:
        for name in FOLDERS:
            (tmp_path / name).mkdir()
            (tmp_path / name).chmod(0o755)
        for name in FILES:
            (tmp_path / name).touch()
            (tmp_path / name).chmod(0o644)
    make_home(Home(str(tmp_path / "run"), str(tmp_path / "state")))
    assert {name: mode(tmp_path / name) for name in FOLDERS} == dict.fromkeys(FOLDERS, 0o711)
    files = FILES if found else ()
    assert {name: mode(tmp_path / name) for name in files} == dict.fromkeys(files, 0o600)


def test_make_home_leaves_what_a_link_leads_to_alone(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "other").touch()
    (tmp_path / "other").chmod(0o644)
    (tmp_path / "home/state.db.x").symlink_to(tmp_path / "other")
    make_home(Home(str(tmp_path / "home"), str(tmp_path / "home")))
    assert mode(tmp_path / "other") == 0o644


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
