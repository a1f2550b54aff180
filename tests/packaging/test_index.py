"""The archives of two architectures as one: everything that it names is in it, and it follows from the two alone."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagebuild import entries, index, oci
from imagebuild.entries import Entry
from imagebuild.errors import CannotBuildError

ARCHES = ("amd64", "arm64")


def _archive(arch: str, *, version: str = "1.2.3") -> bytes:
    layers = [
        oci.layer("same for both", {"etc/motd": Entry(data=b"hello")}, made_at=86400),
        oci.layer("of its own", {"usr/bin/aliquot": Entry(data=arch.encode())}, made_at=86400),
    ]
    return oci.archive(layers, name="aliquot/aliquot", version=version, arch=arch, environment={}, made_at=86400)


def _joined(*archives: bytes) -> bytes:
    return index.joined([index.read(archive, "x.tar") for archive in archives])


def _files(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: content.read() for member in tar if (content := tar.extractfile(member))}


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """Of both in one."""
    return _files(_joined(*map(_archive, ARCHES)))


def _top(files: dict[str, bytes]) -> dict[str, Any]:
    (found,) = json.loads(files["index.json"])["manifests"]
    assert isinstance(found, dict)
    return found


def _blob(files: dict[str, bytes], described: dict[str, Any]) -> bytes:
    return files[f"blobs/{described['digest'].replace(':', '/')}"]


def _described(files: dict[str, bytes]) -> Iterator[dict[str, Any]]:
    """Everything that the archive says is in it, from the top down."""
    yield _top(files)
    for manifest in json.loads(_blob(files, _top(files)))["manifests"]:
        yield manifest
        parsed = json.loads(_blob(files, manifest))
        yield from (parsed["config"], *parsed["layers"])


def test_every_blob_that_is_named_is_there_with_its_digest_and_its_size(files: dict[str, bytes]) -> None:
    found = list(_described(files))

    assert len(found) == 1 + 2 * 4
    for descriptor in found:
        data = _blob(files, descriptor)
        assert (f"sha256:{hashlib.sha256(data).hexdigest()}", len(data)) == (descriptor["digest"], descriptor["size"])


def test_index_holds_no_unreferenced_blob(files: dict[str, bytes]) -> None:
    named = {f"blobs/{descriptor['digest'].replace(':', '/')}" for descriptor in _described(files)}

    assert set(files) == {"oci-layout", "index.json", *named}


def test_index_holds_shared_blobs_once(files: dict[str, bytes]) -> None:
    manifests = [json.loads(_blob(files, manifest)) for manifest in json.loads(_blob(files, _top(files)))["manifests"]]
    first, second = ([layer["digest"] for layer in manifest["layers"]] for manifest in manifests)

    assert first[0] == second[0]
    assert first[1] != second[1]


def test_the_name_means_an_index_that_lists_the_platforms(files: dict[str, bytes]) -> None:
    top = _top(files)
    listed = json.loads(_blob(files, top))

    assert top["annotations"]["io.containerd.image.name"] == "docker.io/aliquot/aliquot:1.2.3"
    assert top["annotations"]["org.opencontainers.image.ref.name"] == "1.2.3"
    assert top["mediaType"] == listed["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert [manifest["platform"] for manifest in listed["manifests"]] == [
        {"architecture": arch, "os": "linux"} for arch in ARCHES
    ]
    assert listed["annotations"] == oci.labels("1.2.3")


@pytest.mark.parametrize("arch", ARCHES)
def test_a_platforms_manifest_is_that_of_its_own_archive(files: dict[str, bytes], arch: str) -> None:
    (alone,) = json.loads(_files(_archive(arch))["index.json"])["manifests"]
    listed = json.loads(_blob(files, _top(files)))["manifests"]

    assert [manifest["digest"] for manifest in listed if manifest["platform"]["architecture"] == arch] == [
        alone["digest"]
    ]


def test_index_does_not_depend_on_the_order_of_archives() -> None:
    one, other = map(_archive, ARCHES)

    assert _joined(one, other) == _joined(other, one)


def test_index_refuses_two_archives_of_one_architecture() -> None:
    with pytest.raises(CannotBuildError, match="two of the archives are for linux/arm64: give one for each platform"):
        _joined(_archive("arm64"), _archive("arm64"))


def test_index_refuses_two_versions_and_names_both() -> None:
    with pytest.raises(CannotBuildError, match=r"2 names or versions, and one is wanted: .*:1\.2\.3.*:1\.2\.4"):
        _joined(_archive("amd64"), _archive("arm64", version="1.2.4"))


def test_a_blob_that_is_not_what_its_name_says_is_refused() -> None:
    found = _files(_archive("amd64"))
    victim = max(name for name in found if name.startswith("blobs/"))
    damaged = {name: Entry(data=data + b" " * (name == victim)) for name, data in found.items()}

    with pytest.raises(CannotBuildError, match=rf"x\.tar: {victim} is not what its name says: build it again"):
        _joined(entries.packed(damaged, made_at=0))


@pytest.mark.parametrize("what", [b"", b"no tar", entries.packed({"a": Entry(data=b"b")}, made_at=0)])
def test_index_refuses_a_file_that_is_no_image(what: bytes) -> None:
    with pytest.raises(CannotBuildError, match=r"x\.tar is no archive of one image as build\.py writes it"):
        _joined(what)


def test_index_refuses_an_archive_of_both_architectures() -> None:
    both = _joined(*map(_archive, ARCHES))

    with pytest.raises(CannotBuildError, match=r"x\.tar is no archive of one image .*platform"):
        _joined(both)


def test_join_command_writes_the_index_and_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"{arch}.tar" for arch in ARCHES]
    for arch, path in zip(ARCHES, paths, strict=True):
        path.write_bytes(_archive(arch))
    out = tmp_path / "both.tar"

    assert index.main(["--out", str(out), *map(str, paths)]) == 0
    assert out.read_bytes() == _joined(*map(_archive, ARCHES))
    assert oci.digest(out.read_bytes()) in capsys.readouterr().err


def test_join_command_reports_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert index.main(["--out", str(tmp_path / "both.tar"), str(tmp_path / "none.tar")]) == 1
    assert capsys.readouterr().err.startswith("cannot join the images: [Errno 2]")
