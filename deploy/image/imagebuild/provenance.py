"""Where a release comes from: an in-toto statement with SLSA's provenance, of every file and of the image.

It says nothing of the time or the machine of the build, so that the same commit gives the same bytes.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imagebuild.errors import CannotBuildError
from imagebuild.lock import checksum

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://aliquot.dev/make-release/v1"
LOCAL_BUILDER = "https://aliquot.dev/local-build"
_INPUTS = ("constraints.txt", "deploy/image/lock", "deploy/image/packages.txt")  # what pins everything else


def statement(
    files: Sequence[Path], images: Mapping[str, str], *, version: str, commit: str | None, builder: str, root: Path
) -> bytes:
    """The statement as JSON. `images`: digests (sha256:...) by name; `commit` None: the tree was not committed."""
    subjects = [{"name": file.name, "digest": {"sha256": checksum(file)}} for file in files]
    subjects += [
        {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}} for name, digest in sorted(images.items())
    ]
    sources = [{"name": "source", "digest": {"gitCommit": commit}}] if commit is not None else []
    pinned = [path for name in _INPUTS for path in _files(root / name)]
    inputs = [{"name": str(path.relative_to(root)), "digest": {"sha256": checksum(path)}} for path in pinned]
    predicate: dict[str, Any] = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"command": "make release", "version": version, "committed": commit is not None},
            "resolvedDependencies": [*sources, *inputs],
        },
        "runDetails": {"builder": {"id": builder}},
    }
    whole = {"_type": STATEMENT, "subject": subjects, "predicateType": PREDICATE, "predicate": predicate}
    return (json.dumps(whole, indent=2) + "\n").encode()


def image_digest(archive: bytes) -> str:
    """The digest that a registry gives the image of this OCI archive."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            file = tar.extractfile("index.json")
            assert file is not None
            (manifest,) = json.loads(file.read())["manifests"]
            return str(manifest["digest"])
    except (tarfile.TarError, KeyError, ValueError, AssertionError) as error:
        raise CannotBuildError(
            f"the archive of the image has no index of one image ({error}): build it again"
        ) from error


def commit_of(root: Path) -> str | None:
    """The commit of the tree; None where it has none, or differs from it."""
    git = ["git", "-C", str(root)]
    found = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S603
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)  # noqa: S603
    clean = found.returncode == 0 and changed.returncode == 0 and not changed.stdout.strip()
    return found.stdout.strip() if clean else None


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
