"""The archive is an OCI image layout, and its Containerfile says the same of the image."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from typing import Any

from imagebuild import contents, image, oci
from imagebuild.entries import Entry
from kit.values.archives import read_member

CONTAINERFILE = (image.HERE / "Containerfile").read_text()


def _archive(**environment: str) -> dict[str, bytes]:
    layers = [oci.layer("first", {"etc/motd": Entry(data=b"hello")}, made_at=86400)]
    made = oci.archive(
        layers, name="aliquot/aliquot", version="1.2.3", arch="arm64", environment=environment, made_at=86400
    )
    with tarfile.open(fileobj=io.BytesIO(made)) as tar:
        return {member.name: read_member(tar, member) for member in tar if member.isfile()}


def _blob(files: dict[str, bytes], digest: str) -> bytes:
    return files[f"blobs/{digest.replace(':', '/')}"]


def _manifest(files: dict[str, bytes]) -> dict[str, Any]:
    (described,) = json.loads(files["index.json"])["manifests"]
    found: dict[str, Any] = json.loads(_blob(files, described["digest"]))
    return found


def _config(files: dict[str, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_blob(files, _manifest(files)["config"]["digest"]))
    return found


def test_every_blob_is_named_by_its_digest() -> None:
    blobs = {name: data for name, data in _archive().items() if name.startswith("blobs/")}

    assert len(blobs) == 3
    assert {name: f"blobs/sha256/{hashlib.sha256(data).hexdigest()}" for name, data in blobs.items()} == {
        name: name for name in blobs
    }


def test_containerd_finds_it_under_the_name_that_the_kubelet_asks_for() -> None:
    (described,) = json.loads(_archive()["index.json"])["manifests"]

    assert described["annotations"]["io.containerd.image.name"] == "docker.io/aliquot/aliquot:1.2.3"
    assert described["platform"] == {"architecture": "arm64", "os": "linux"}


def test_docker_finds_it_under_its_own_name() -> None:
    files = _archive()
    (written,) = json.loads(files["manifest.json"])

    assert written["RepoTags"] == ["aliquot/aliquot:1.2.3"]
    assert set(written["Layers"]) | {written["Config"]} <= set(files)


def test_a_layers_identity_is_that_of_its_tar() -> None:
    files = _archive()
    (layer,) = _manifest(files)["layers"]
    tar = gzip.decompress(_blob(files, layer["digest"]))

    assert _config(files)["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(tar).hexdigest()}"]


def test_another_variable_is_in_the_environment_beside_those_that_are_always_there() -> None:
    written = _config(_archive(ALIQUOT_SIMULATE="4x16GiB"))["config"]["Env"]

    assert written == [*(f"{name}={value}" for name, value in oci.ENVIRONMENT.items()), "ALIQUOT_SIMULATE=4x16GiB"]


def test_image_creation_time_is_the_release_date() -> None:
    released = "## Unreleased\n\n## [1.2.3] - 1970-01-02\n"

    assert image.made_at(released, "1.2.3") == 86400
    assert image.made_at(released, "1.2.4") == image.UNRELEASED


def test_the_containerfile_gives_the_same_environment() -> None:
    assert dict(re.findall(r"^ENV (\w+)=(\S+)$", CONTAINERFILE, re.MULTILINE)) == oci.ENVIRONMENT


def test_the_containerfile_gives_the_same_entrypoint_folder_and_user() -> None:
    config = _config(_archive())["config"]
    (entrypoint,) = re.findall(r"^ENTRYPOINT (.*)$", CONTAINERFILE, re.MULTILINE)
    last = CONTAINERFILE.partition("FROM scratch")[2]

    assert json.loads(entrypoint) == config["Entrypoint"]
    (command,) = re.findall(r"^CMD (.*)$", CONTAINERFILE, re.MULTILINE)
    assert json.loads(command) == config["Cmd"]
    assert re.findall(r"^WORKDIR (\S+)$", last, re.MULTILINE) == [config["WorkingDir"]]
    assert ("USER" in re.findall(r"^(\w+) ", last, re.MULTILINE)) is ("User" in config)


def test_the_containerfile_has_the_files_of_the_same_build_and_no_others() -> None:
    last = CONTAINERFILE.partition("FROM scratch")[2]

    assert re.findall(r"^(?:COPY|ADD|RUN) (.*)$", last, re.MULTILINE) == ["--from=build /image /"]
    assert re.search(r"^RUN .*deploy/image/build\.py --arch .* --tree /image$", CONTAINERFILE, re.MULTILINE)


def test_the_containerfile_copies_every_source_that_the_build_reads() -> None:
    copied = {
        word for line in re.findall(r"^COPY ([^-].*)$", CONTAINERFILE, re.MULTILINE) for word in line.split()[:-1]
    }

    assert copied == {
        *("pyproject.toml", "hatch_build.py", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md"),
        *("src", "shim", "simgpu", "deploy", "web/package.json", "web/licences"),
    }
    assert {path for path in copied if not (image.ROOT / path).exists()} == set()


def test_no_registry_is_named_in_the_containerfile() -> None:
    assert set(re.findall(r"^FROM (?:--platform=\S+ )?(\S+)", CONTAINERFILE, re.MULTILINE)) == {
        "debian:12-slim",
        "scratch",
    }


def test_the_schedulers_user_is_there() -> None:
    assert f"aliquot:x:{contents.USER}:{contents.USER}:" in contents.ours()["etc/passwd"].data.decode()
