"""The lists that an image is made of agree with each other: packages, lock, constraints, licences."""

from __future__ import annotations

import pytest
from packaging.licenses import canonicalize_license_expression

from imagebuild import contents, debian, image, inputs, licences, lock, wheels
from imagebuild.entries import Entry
from imagebuild.errors import CannotBuildError
from imagebuild.lock import Locked

ARCHES = sorted(wheels.MACHINES)
SUM = "0" * 64


def _locked(arch: str) -> tuple[Locked, ...]:
    path = image.HERE / "lock" / f"{arch}.txt"
    return lock.parse(path.read_text(), where=path.name)


def _wanted() -> debian.Wanted:
    return debian.parse((image.HERE / "packages.txt").read_text())


@pytest.mark.parametrize("arch", ARCHES)
def test_the_lock_is_of_todays_packages_and_constraints(arch: str) -> None:
    pinned = wheels.pins((image.ROOT / "constraints.txt").read_text())

    assert inputs.disagreements(_locked(arch), _wanted(), pinned) == []


def test_both_architectures_are_made_of_the_same_versions() -> None:
    amd64, arm64 = ({(package.kind, package.name, package.version) for package in _locked(arch)} for arch in ARCHES)

    # A binary rebuild (+b1) is of one architecture; the source is the same.
    assert {(kind, name, version.partition("+b")[0]) for kind, name, version in amd64} == {
        (kind, name, version.partition("+b")[0]) for kind, name, version in arm64
    }


@pytest.mark.parametrize("arch", ARCHES)
def test_a_lock_is_written_as_it_is_read(arch: str) -> None:
    text = (image.HERE / "lock" / f"{arch}.txt").read_text()

    assert lock.render(lock.parse(text, where="lock"), arch=arch) == text


def test_a_broken_line_of_a_lock_is_named() -> None:
    with pytest.raises(CannotBuildError, match=r"lock:2: 'deb libc6': wanted is KIND NAME VERSION SHA256"):
        lock.parse(f"deb dash 1 {SUM}\ndeb libc6\n", where="lock")


def test_a_package_that_is_asked_for_but_not_locked_is_reported() -> None:
    problems = inputs.disagreements((), debian.Wanted(("dash",), frozenset()), {})

    assert problems == ["packages.txt asks for dash, the lock has none"]


def test_a_package_that_is_left_out_but_locked_is_reported() -> None:
    problems = inputs.disagreements((Locked("deb", "tar", "1", SUM),), debian.Wanted((), frozenset({"tar"})), {})

    assert problems == ["packages.txt leaves tar out, the lock has it"]


def test_a_wheel_of_another_version_than_the_constraints_is_reported() -> None:
    problems = inputs.disagreements((Locked("wheel", "rich", "1", SUM),), debian.Wanted((), frozenset()), {"rich": "2"})

    assert problems == ["constraints.txt has rich 2, the lock 1"]


def test_every_licence_is_an_expression_of_spdx() -> None:
    known = licences.parse((image.HERE / "licences.txt").read_text())

    assert {text: canonicalize_license_expression(text) for text in known.values()} == {
        text: text for text in known.values()
    }


def test_dropped_files_take_their_empty_folders_along() -> None:
    folder, file = Entry(folder=True), Entry(data=b"x")
    tree = {"usr/man": folder, "usr/man/1": folder, "usr/man/1/a": file, "run": folder, "usr/bin/b": file}

    assert set(contents.without(tree, ["usr/man/*/a"])) == {"run", "usr/bin/b"}


def test_changelogs_of_packages_are_dropped_and_their_copyright_files_are_not() -> None:
    patterns = contents.patterns((image.HERE / "dropped.txt").read_text())

    assert not contents.without({"usr/share/doc/libc6/changelog.gz": Entry()}, patterns)
    assert contents.without({"usr/share/doc/libc6/copyright": Entry()}, patterns)
