"""The archives of several architectures as one, under one name: an image index, of which a node takes its own.

  python deploy/image/join.py --out aliquot.tar aliquot-amd64.tar aliquot-arm64.tar

Images are pushed from it by one reference; docs/releasing.md says how.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild import entries, image, oci
from imagebuild.entries import Entry
from imagebuild.errors import CannotBuildError
from imagebuild.main import say


@dataclass(frozen=True, slots=True)
class Part:
    """One archive, read back: its manifest as the index lists it, under which names, and the blobs by path."""

    platform: str
    manifest: Mapping[str, Any]
    names: Mapping[str, str]
    labels: Mapping[str, str]
    blobs: Mapping[str, bytes]
    made_at: int


def read(archive: bytes, what: str) -> Part:
    """Of what build.py wrote. A blob that is not what its name says ends it: it must not be pushed."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            members = [member for member in tar if member.isfile()]
            files = {member.name: content.read() for member in members if (content := tar.extractfile(member))}
        (top,) = json.loads(files["index.json"])["manifests"]
        made = Part(
            platform=f"{top['platform']['os']}/{top['platform']['architecture']}",
            names=top.pop("annotations"),
            manifest=top,
            labels=json.loads(files[oci.path(top["digest"])])["annotations"],
            blobs={path: data for path, data in files.items() if path.startswith("blobs/")},
            made_at=max(int(member.mtime) for member in members),
        )
    except (tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise CannotBuildError(
            f"{what} is no archive of one image as build.py writes it ({type(error).__name__}: {error}): build it again"
        ) from error
    damaged = sorted(path for path, data in made.blobs.items() if oci.path(oci.digest(data)) != path)
    if damaged:
        raise CannotBuildError(f"{what}: {damaged[0]} is not what its name says: build it again")
    return made


def joined(parts: Sequence[Part]) -> bytes:
    """The tar of one layout with all of them. Everything in it follows from the parts, in whatever order they come."""
    _refuse(parts)
    ordered = sorted(parts, key=lambda part: part.platform)
    index = oci.encoded(
        {
            "schemaVersion": 2,
            "mediaType": oci.INDEX,
            "manifests": [part.manifest for part in ordered],
            "annotations": ordered[0].labels,
        }
    )
    top = {"mediaType": oci.INDEX, "digest": oci.digest(index), "size": len(index), "annotations": ordered[0].names}
    files = {path: data for part in ordered for path, data in part.blobs.items()}
    files |= {oci.path(oci.digest(index)): index} | oci.heads(top)
    made_at = max(part.made_at for part in ordered)
    return entries.packed({path: Entry(data=data) for path, data in files.items()}, made_at=made_at)


def _refuse(parts: Sequence[Part]) -> None:
    found = [part.platform for part in parts]
    twice = sorted({platform for platform in found if found.count(platform) > 1})
    if twice:
        raise CannotBuildError(f"two of the archives are for {twice[0]}: give one for each platform")
    names = sorted({json.dumps(dict(part.names), sort_keys=True) for part in parts})
    if len(names) != 1:
        raise CannotBuildError(
            f"the archives are of {len(names)} names or versions, and one is wanted: {', '.join(names)}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "archives", type=Path, nargs="+", metavar="ARCHIVE", help="as build.py wrote them, of one version"
    )
    parser.add_argument("--out", type=Path, required=True, help="the archive to write")
    options = parser.parse_args(arguments)
    try:
        made = joined([read(path.read_bytes(), str(path)) for path in options.archives])
        image.write(options.out, made)
    except (CannotBuildError, OSError) as error:
        print(f"cannot join the images: {error}", file=sys.stderr)
        return 1
    say(f"{options.out}: {len(made) / 1e6:.1f} MB  {oci.digest(made)}")
    return 0
