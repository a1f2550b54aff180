"""Layers are tars that follow from their files alone."""

from __future__ import annotations

import io
import tarfile

import pytest

from imagebuild import entries
from imagebuild.entries import Entry

FILE = Entry(mode=0o755, data=b"hello")


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _member(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def test_the_order_in_which_files_were_found_does_not_show() -> None:
    one = entries.packed({"a/b": FILE, "a/c": FILE}, made_at=7)
    other = entries.packed({"a/c": FILE, "a/b": FILE}, made_at=7)

    assert one == other


def test_compressing_the_same_twice_gives_the_same_bytes() -> None:
    assert entries.compressed(b"x" * 1000) == entries.compressed(b"x" * 1000)


def test_layer_entries_belong_to_root_and_have_one_time() -> None:
    with tarfile.open(fileobj=io.BytesIO(entries.packed({"a/b": FILE}, made_at=7))) as tar:
        written = {(member.name, member.uid, member.gid, member.uname, member.mtime) for member in tar}

    assert written == {("a", 0, 0, "root", 7), ("a/b", 0, 0, "root", 7)}


def test_the_folders_of_a_file_come_before_it() -> None:
    with tarfile.open(fileobj=io.BytesIO(entries.packed({"a/b/c": FILE}, made_at=0))) as tar:
        assert tar.getnames() == ["a", "a/b", "a/b/c"]


@pytest.mark.parametrize(
    ("of_package", "in_image"),
    [
        ("./lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"),
        ("./bin/dash", "usr/bin/dash"),
        ("./lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"),
        ("./usr/bin/python3.11", "usr/bin/python3.11"),
        ("./etc/os-release", "etc/os-release"),
        ("./.hidden", ".hidden"),
    ],
)
def test_the_old_places_of_packages_are_merged_into_usr(of_package: str, in_image: str) -> None:
    assert entries.merged(of_package) == in_image


def test_a_package_brings_no_file_that_changes_who_runs_it() -> None:
    found = entries.of_tar(_tar((_member("./usr/bin/su", mode=0o4755), b"#!")))

    assert found["usr/bin/su"].mode == 0o755


def test_a_folder_for_everybody_keeps_its_sticky_bit() -> None:
    found = entries.of_tar(_tar((_member("./tmp", mode=0o1777, type=tarfile.DIRTYPE), b"")))

    assert found["tmp"] == Entry(mode=0o1777, folder=True)


def test_a_package_with_a_device_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="dev/null is neither a file"):
        entries.of_tar(_tar((_member("./dev/null", type=tarfile.CHRTYPE), b"")))


def test_where_two_have_the_same_file_the_later_one_counts() -> None:
    assert entries.joined([{"a": FILE}, {"a": Entry(data=b"new")}])["a"].data == b"new"


def test_a_folder_does_not_take_the_place_of_what_was_there() -> None:
    link = Entry(link="usr/lib")

    assert entries.joined([{"lib": link}, {"lib": Entry(folder=True)}])["lib"] == link
