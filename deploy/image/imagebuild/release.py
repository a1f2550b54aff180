"""Everything of a release, into dist/: wheels, sources, images with SBOMs, chart, manifests, documents, provenance,
checksums, and signatures of the last two.

The same commit gives the same bytes wherever it is built, by the same Python, pip and zig; but for the signatures.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from imagebuild import entries, image, index, provenance, signing, wheels
from imagebuild.entries import Entry
from imagebuild.errors import CannotBuildError
from imagebuild.image import ROOT
from imagebuild.inputs import Versions
from imagebuild.lock import checksum
from imagebuild.main import cache_home, say
from imagebuild.readiness import CHART, INSTALL, obstacles

# What the documents link to, so that every link leads somewhere in the archive, too.
_DOCUMENTS = (
    "README.md",
    "README.zh-CN.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
    "docs",
    "examples",
    "deploy",
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder to make anew (dist/)")
    parser.add_argument(
        "--dirty", action="store_true", help="a trial: of a tree that is not committed or not in the changelog"
    )
    parser.add_argument("--unlocked", action="store_true", help="today's Debian packages where the lock's are gone")
    parser.add_argument(
        "--key", default=os.environ.get("COSIGN_KEY") or None, help="sign with this key, as for cosign ($COSIGN_KEY)"
    )
    parser.add_argument("--keyless", action="store_true", help="sign by an OIDC identity; cosign asks for it")
    parser.add_argument(
        "--builder",
        default=provenance.LOCAL_BUILDER,
        metavar="URI",
        help="who builds, for the provenance (%(default)s)",
    )
    options = parser.parse_args(arguments)
    try:
        refuse(dirty=options.dirty)
        by = signing.signer(options.key, keyless=options.keyless)
        release(options.out, Versions.UNLOCKED if options.unlocked else Versions.LOCKED, by, options.builder)
    except CannotBuildError as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    return 0


def refuse(*, dirty: bool) -> None:
    found = obstacles(ROOT)
    standing = [*found.wrong, *(() if dirty else found.early)]
    if standing:
        trial = "\n(make release ARGS=--dirty makes a trial of a tree that is not committed, or not in the changelog)"
        hint = "" if dirty else trial
        raise CannotBuildError("\n  ".join(["", *standing]) + hint)
    for reason in found.early:
        say(f"a trial, no release: {reason}")


def release(
    out: Path, versions: Versions, by: signing.Signer | None = None, builder: str = provenance.LOCAL_BUILDER
) -> None:
    version = image.project_version()
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    when = int(epoch) if epoch else image.made_at((ROOT / "CHANGELOG.md").read_text(), version)
    os.environ["SOURCE_DATE_EPOCH"] = str(when)  # hatchling's, for wheels and sources
    unfinished = out.with_name(f"{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    steps = _steps(unfinished, version, versions, when)
    began = time.monotonic()
    for number, (what, step) in enumerate(steps, start=1):
        say(f"[{number}/{len(steps)}] {what} ... ({time.monotonic() - began:.0f} s)")
        step()
    attest(unfinished, version, builder)
    image.write(unfinished / "SHA256SUMS", checksums(unfinished).encode())
    signing.sign([unfinished / "SHA256SUMS", unfinished / _provenance(version)], by, say)
    shutil.rmtree(out, ignore_errors=True)
    unfinished.replace(out)
    for file in sorted(out.iterdir()):
        say(f"  {file.stat().st_size / 1e6:7.2f} MB  {file.name}")
    say(f"{out}: {version} in {time.monotonic() - began:.0f} s")


def attest(out: Path, version: str, builder: str) -> None:
    """Write where the files come from, and the digests by which a registry will know the images."""
    files = sorted(out.iterdir())
    images = {
        file.name.removesuffix(".tar").replace(f"aliquot-{version}-image", "aliquot/aliquot"): file.read_bytes()
        for file in files
        if file.suffix == ".tar"
    }
    digests = {name: provenance.image_digest(archive) for name, archive in images.items()}
    made = provenance.statement(
        files, digests, version=version, commit=provenance.commit_of(ROOT), builder=builder, root=ROOT
    )
    image.write(out / _provenance(version), made)


def _provenance(version: str) -> str:
    return f"aliquot-{version}.intoto.json"


def _steps(out: Path, version: str, versions: Versions, when: int) -> list[tuple[str, Callable[[], object]]]:
    def packed(name: str, tree: dict[str, Entry]) -> None:
        image.write(out / name, entries.compressed(entries.packed(tree, made_at=when)))

    def imaged(arch: str) -> None:
        made = image.build(image.Asked(arch=arch, cache=cache_home(), versions=versions, made_at=when), lambda _: None)
        image.write(out / f"aliquot-{version}-image-{arch}.tar", made.archive)
        image.write(out / f"aliquot-{version}-image-{arch}.spdx.json", made.sbom)

    def together() -> None:
        archives = [out / f"aliquot-{version}-image-{arch}.tar" for arch in arches]
        both = index.joined([index.read(path.read_bytes(), path.name) for path in archives])
        image.write(out / f"aliquot-{version}-image.tar", both)

    def sources() -> None:
        wheels.run([sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(out)], cwd=ROOT)

    arches = sorted(wheels.MACHINES)
    return [
        *((f"wheel for {arch}", lambda arch=arch: wheels.built(ROOT, arch=arch, out=out)) for arch in arches),
        ("sources", sources),
        *((f"image for {arch}", lambda arch=arch: imaged(arch)) for arch in arches),
        ("image for both, in one", together),
        ("chart", lambda: packed(f"aliquot-chart-{version}.tgz", chart(ROOT / CHART))),
        ("chart, looked at by helm", lambda: look_at(out / f"aliquot-chart-{version}.tgz")),
        ("manifests", lambda: image.write(out / "install.yaml", (ROOT / INSTALL).read_bytes())),
        ("documents", lambda: packed(f"aliquot-{version}-docs.tar.gz", documents(ROOT, version))),
    ]


def chart(folder: Path) -> dict[str, Entry]:
    """The chart as `helm package` lays it out, but the same every time; .helmignore's patterns are of names."""
    lines = (folder / ".helmignore").read_text().splitlines()
    ignored = [line for line in map(str.strip, lines) if line and not line.startswith("#")]
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored):
            found[f"{folder.name}/{path.relative_to(folder)}"] = Entry(data=path.read_bytes())
    return found


def look_at(archive: Path) -> None:
    helm = os.environ.get("HELM") or shutil.which("helm")
    if helm is None:
        say("  no helm here (HELM=PATH names one): the chart is packed, and not looked at")
        return
    wheels.run([helm, "lint", "--quiet", str(archive)])


def documents(root: Path, version: str) -> dict[str, Entry]:
    """docs/ and what it links to, in a folder named by the version, each page saying of which version it is."""
    found = {}
    for name in _DOCUMENTS:
        for path in sorted((root / name).rglob("*")) if (root / name).is_dir() else [root / name]:
            relative = path.relative_to(root)
            if path.is_file() and "__pycache__" not in relative.parts and relative.parts[:2] != ("deploy", "image"):
                found[f"aliquot-docs-{version}/{relative}"] = Entry(data=_stamped(path, relative, version))
    return found


def _stamped(path: Path, relative: Path, version: str) -> bytes:
    data = path.read_bytes()
    if relative.parts[0] != "docs" or path.suffix != ".md":
        return data
    return re.sub(rb"\A(# .*\n)", rb"\1\n*Aliquot " + version.encode() + rb"*\n", data, count=1)


def checksums(folder: Path) -> str:
    """As `sha256sum --check` reads it."""
    return "".join(f"{checksum(file)}  {file.name}\n" for file in sorted(folder.iterdir()) if file.name != "SHA256SUMS")
