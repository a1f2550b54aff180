"""The image as an OCI archive, without a container engine and without root.

  python deploy/image/build.py --arch amd64 --out aliquot.tar
  ctr --namespace k8s.io images import aliquot.tar

Beside the archive it writes what is in it: NAME.spdx.json.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from imagebuild import image, oci, wheels
from imagebuild.errors import CannotBuildError
from imagebuild.inputs import Versions


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        _build(options)
    except CannotBuildError as error:
        print(f"cannot build the image: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=sorted(wheels.MACHINES), required=True)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, help="the archive to write")
    where.add_argument("--tree", type=Path, help="a folder to lay the image's files into instead, as root")
    parser.add_argument("--version", help="stamp another version than pyproject.toml's into it: for tests of upgrades")
    parser.add_argument(
        "--env", action="append", default=[], type=_variable, metavar="NAME=VALUE", help="one more in its environment"
    )
    parser.add_argument("--name", default="aliquot/aliquot", help="the image's name without its tag (%(default)s)")
    parser.add_argument("--sources", type=Path, help="apt's sources of Debian 12; else this machine's")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--unlocked", action="store_true", help="today's packages where the lock's are not to be had any more"
    )
    which.add_argument("--refresh", action="store_true", help="today's packages, and write them into the lock")
    return parser


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text!r}: wanted is NAME=VALUE")
    return name, value


def _build(options: argparse.Namespace) -> None:
    versions = Versions.REFRESHED if options.refresh else Versions.UNLOCKED if options.unlocked else Versions.LOCKED
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    asked = image.Asked(
        arch=options.arch,
        cache=cache_home(),
        version=options.version,
        name=options.name,
        environment=dict(options.env),
        versions=versions,
        sources=options.sources,
        made_at=int(epoch) if epoch else None,
    )
    made = image.build(asked, say)
    for layer in made.layers:
        say(f"  {layer.what:8} {len(layer.blob) / 1e6:5.1f} MB  {layer.diff_id}")
    if options.tree:
        image.lay(made, options.tree)
        return
    image.write(options.out, made.archive)
    image.write(options.out.with_suffix(".spdx.json"), made.sbom)
    say(f"{options.out}: {len(made.archive) / 1e6:.1f} MB  {oci.digest(made.archive)}")


def cache_home() -> Path:
    """What is fetched, and the layers made of it, from build to build."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "aliquot" / "image"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
