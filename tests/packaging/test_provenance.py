"""A release says where it comes from, and is signed where a key or an identity is given."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from imagebuild import entries, image, oci, provenance, release, signing
from imagebuild.entries import Entry
from imagebuild.errors import CannotBuildError

VERSION = image.project_version()


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A release of two files, one of them an image."""
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "install.yaml").write_text("a: b\n")
    heads = oci.heads({"mediaType": oci.INDEX, "digest": f"sha256:{'a' * 64}", "size": 2, "annotations": {}})
    archive = entries.packed({path: Entry(data=data) for path, data in heads.items()}, made_at=0)
    (folder / f"aliquot-{VERSION}-image.tar").write_bytes(archive)
    return folder


def attested(dist: Path) -> dict[str, object]:
    release.attest(dist, VERSION, "https://example.org/builder")
    found: dict[str, object] = json.loads((dist / f"aliquot-{VERSION}.intoto.json").read_text())
    return found


def test_provenance_names_every_file_and_the_digest_of_the_image(dist: Path) -> None:
    made = attested(dist)
    assert (made["_type"], made["predicateType"]) == (provenance.STATEMENT, provenance.PREDICATE)
    files = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in dist.iterdir()
        if not file.name.endswith(".intoto.json")
    }
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in made["subject"]}  # type: ignore[attr-defined]
    assert subjects == {**files, "aliquot/aliquot": "a" * 64}


def test_provenance_names_what_pins_the_inputs_and_the_builder(dist: Path) -> None:
    predicate = attested(dist)["predicate"]
    assert isinstance(predicate, dict)
    assert predicate["runDetails"] == {"builder": {"id": "https://example.org/builder"}}
    inputs = {item["name"] for item in predicate["buildDefinition"]["resolvedDependencies"]}
    assert {"constraints.txt", "deploy/image/lock/amd64.txt", "deploy/image/lock/arm64.txt"} <= inputs


def test_provenance_is_the_same_every_time(dist: Path, tmp_path: Path) -> None:
    def made() -> bytes:
        files = [dist / "install.yaml"]
        return provenance.statement(files, {}, version="1", commit="c" * 40, builder="b", root=image.ROOT)

    assert made() == made()
    assert {"name": "source", "digest": {"gitCommit": "c" * 40}} in json.loads(made())["predicate"]["buildDefinition"][
        "resolvedDependencies"
    ]


def test_tree_without_a_commit_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.commit_of(tmp_path) is None


def test_archive_without_an_image_is_refused() -> None:
    with pytest.raises(CannotBuildError, match="build it again"):
        provenance.image_digest(b"no tar")


# --- signatures ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cosign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name which notes its words, and writes the bundle."""
    program = tmp_path / "bin" / "cosign"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> {tmp_path}/words\n'
        'while [ $# -gt 1 ]; do [ "$1" = --bundle ] && echo signed > "$2"; shift; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return tmp_path / "words"


@pytest.mark.parametrize(("key", "words"), [("k.key", "--key k.key "), (None, "")])
def test_release_is_signed_with_a_key_or_by_an_identity(
    cosign: Path, tmp_path: Path, key: str | None, words: str
) -> None:
    sums = tmp_path / "SHA256SUMS"
    sums.write_text("x")
    said: list[str] = []
    signing.sign([sums], signing.signer(key, keyless=key is None), said.append)
    assert cosign.read_text() == f"sign-blob --yes {words}--bundle {sums}.sigstore.json {sums}\n"
    assert said == ["  signed: SHA256SUMS.sigstore.json"]


def test_release_without_key_or_identity_says_what_is_not_signed(cosign: Path, tmp_path: Path) -> None:
    said: list[str] = []
    signing.sign([tmp_path / "SHA256SUMS"], signing.signer(None, keyless=False), said.append)
    assert said[0].startswith("  not signed: SHA256SUMS. cosign is here; --key FILE")
    assert not cosign.exists()


def test_signing_without_cosign_is_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotBuildError, match="--keyless needs cosign, which is not on PATH"):
        signing.signer(None, keyless=True)


def test_failed_signature_is_an_error(cosign: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "cosign").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(CannotBuildError, match="exit status 3"):
        signing.sign([tmp_path / "SHA256SUMS"], signing.signer("k", keyless=False), print)
