"""One image from its inputs: what is unpacked, dropped, added, compiled and packed, in this order."""

from __future__ import annotations

import calendar
import contextlib
import fcntl
import hashlib
import io
import json
import re
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagebuild import bytecode, contents, licences, oci, sbom, wheels
from imagebuild.debian import Apt
from imagebuild.entries import Entry, joined
from imagebuild.errors import CannotBuildError
from imagebuild.inputs import Inputs, Shop, Versions
from imagebuild.licences import DOCUMENTS, OURS, Component
from imagebuild.oci import Layer

ROOT = Path(__file__).resolve().parents[3]
HERE = ROOT / "deploy" / "image"
UNRELEASED = 1580601600  # the time that hatchling gives to files of wheels
_KEPT_LAYERS = 12  # two architectures, and some yesterdays


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be built."""

    arch: str
    cache: Path
    version: str | None = None  # another than pyproject.toml's
    name: str = "aliquot/aliquot"
    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Versions = Versions.LOCKED
    sources: Path | None = None
    made_at: int | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """The archive, and what is told of it."""

    archive: bytes
    sbom: bytes
    layers: tuple[Layer, ...]


def project_version(root: Path = ROOT) -> str:
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    assert isinstance(version, str)
    return version


def made_at(changelog: str, version: str) -> int:
    """The day of the release, as CHANGELOG.md says: the time of all files. Before there is one, a fixed day."""
    found = re.search(rf"^## \[?{re.escape(version)}\]? - (\d{{4}}-\d{{2}}-\d{{2}})", changelog, re.MULTILINE)
    if found is None:
        return UNRELEASED
    return calendar.timegm(time.strptime(found[1], "%Y-%m-%d"))


def build(asked: Asked, say: Callable[[str], None]) -> Image:
    is_version = project_version()
    version = asked.version or is_version
    when = made_at((ROOT / "CHANGELOG.md").read_text(), version) if asked.made_at is None else asked.made_at
    with _alone(asked.cache, say):
        say(f"packages and wheels for {asked.arch} ...")
        inputs = _shop(asked).taken(asked.versions, say)
        base, others = _base(inputs), _others(inputs)
        say(f"aliquot {version} for {asked.arch} ...")
        own, components = _own(asked, inputs, is_version, version)
        _refuse_missing(components, joined([base, others, own]))
        own[f"{DOCUMENTS}/sbom.spdx.json"] = Entry(
            data=sbom.document(components, version=version, arch=asked.arch, made_at=when)
        )
        say("layers ...")
        layers = tuple(
            _kept(asked.cache, what, tree, made_at=when)
            for what, tree in (("Debian", base), ("wheels", others), ("aliquot", own))
        )
    whole = oci.archive(
        layers, name=asked.name, version=version, arch=asked.arch, environment=asked.environment, made_at=when
    )
    return Image(whole, own[f"{DOCUMENTS}/sbom.spdx.json"].data, layers)


def _shop(asked: Asked) -> Shop:
    return Shop(
        apt=Apt(asked.cache, arch=asked.arch, sources=asked.sources),
        pip=wheels.Pip(ROOT, asked.cache, arch=asked.arch),
        packages=HERE / "packages.txt",
        constraints=ROOT / "constraints.txt",
        lock=HERE / "lock" / f"{asked.arch}.txt",
        arch=asked.arch,
    )


def _dropped() -> list[str]:
    return contents.patterns((HERE / "dropped.txt").read_text())


def _base(inputs: Inputs) -> dict[str, Entry]:
    return contents.without(joined([*(package.entries() for package in inputs.packages), contents.ours()]), _dropped())


def _others(inputs: Inputs) -> dict[str, Entry]:
    return contents.without(joined(wheels.unpacked(wheel) for wheel in inputs.wheels), _dropped())


def _own(asked: Asked, inputs: Inputs, is_version: str, version: str) -> tuple[dict[str, Entry], list[Component]]:
    """Our layer but the SBOM, and what that is to say."""
    with tempfile.TemporaryDirectory() as folder:
        own = wheels.unpacked(wheels.built(ROOT, arch=asked.arch, out=Path(folder)))
    if version != is_version:
        own = wheels.stamped(own, was=is_version, version=version)
    own |= wheels.programs(own)
    own["usr/bin/install.sh"] = Entry(mode=0o755, data=(ROOT / "deploy" / "install.sh").read_bytes())
    own["usr/bin/aliquot-probe"] = Entry(mode=0o755, data=(ROOT / "deploy" / "probe.py").read_bytes())
    own[f"{DOCUMENTS}/copyright"] = Entry(data=(ROOT / "LICENSE").read_bytes())
    for text in sorted([*(HERE / "licences").glob("*.txt"), *(ROOT / "web" / "licences").glob("*.txt")]):
        own[f"{DOCUMENTS}/licences/{text.name}"] = Entry(data=text.read_bytes())
    known = licences.parse((HERE / "licences.txt").read_text())
    components = [licences.of_package(package, known) for package in inputs.packages]
    components += [licences.of_wheel(wheel, known) for wheel in inputs.wheels]
    return own, components + _dashboard(known) + _ours(own, version)


def _dashboard(known: Mapping[tuple[str, str], str]) -> list[Component]:
    """What the dashboard's one file is made with."""
    used: Mapping[str, str] = json.loads((ROOT / "web" / "package.json").read_text())["dependencies"]
    missing = [name for name in used if ("npm", name) not in known]
    if missing:
        raise CannotBuildError(
            f"no licence is known of the dashboard's {', '.join(missing)}: add `npm NAME EXPRESSION` to licences.txt"
        )
    return [Component("npm", name, version, known["npm", name]) for name, version in sorted(used.items())]


def _ours(own: Mapping[str, Entry], version: str) -> list[Component]:
    """The package, and each library and program in C by its checksum."""
    found = [Component("ours", "aliquot", version, OURS)]
    for path, entry in sorted(own.items()):
        if entry.data.startswith(b"\x7fELF"):
            name = path.removeprefix(f"{wheels.SITE}/aliquot/lib/")
            found.append(Component("ours", name, version, OURS, hashlib.sha256(entry.data).hexdigest()))
    return found


def _refuse_missing(components: Sequence[Component], whole: Mapping[str, Entry]) -> None:
    missing = licences.without_text(components, whole)
    if missing:
        raise CannotBuildError(
            f"the image would hold {', '.join(missing)} without the text of a licence: "
            "put one into deploy/image/licences/NAME.txt"
        )


def _kept(cache: Path, what: str, tree: Mapping[str, Entry], *, made_at: int) -> Layer:
    """The layer of these files, compiled and compressed once: Debian's and the wheels' change seldom."""
    folder = cache / "layers"
    folder.mkdir(exist_ok=True)
    key = _key(tree, made_at)
    there = next(folder.glob(f"{key}-*"), None)
    if there is not None:
        there.touch()
        return Layer(what, f"sha256:{there.name.partition('-')[2]}", there.read_bytes())
    made = oci.layer(what, {**tree, **bytecode.compiled(tree)}, made_at=made_at)
    unfinished = folder / f".{key}"
    unfinished.write_bytes(made.blob)
    unfinished.replace(folder / f"{key}-{made.diff_id.removeprefix('sha256:')}")
    by_age = sorted(folder.glob("*-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in by_age[_KEPT_LAYERS:]:
        old.unlink()
    return made


def _key(tree: Mapping[str, Entry], made_at: int) -> str:
    """Everything that the bytes of a layer follow from: its files, their time, and what compiles and packs them."""
    digest = hashlib.sha256(f"{sys.version} {made_at}".encode())
    for module in ("bytecode", "entries"):
        digest.update((HERE / "imagebuild" / f"{module}.py").read_bytes())
    for path, entry in sorted(tree.items()):
        digest.update(f"{path} {entry.mode} {entry.link} {entry.folder} {len(entry.data)}\0".encode())
        digest.update(entry.data)
    return digest.hexdigest()[:32]


@contextlib.contextmanager
def _alone(cache: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Two builds fetch once. The lock ends with its process, however that ends."""
    with (cache / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is going on; waiting for it ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def lay(made: Image, folder: Path) -> None:
    """The files of the layers, one over the other, as a runtime would."""
    for layer in made.layers:
        with tarfile.open(fileobj=io.BytesIO(layer.blob)) as tar:
            tar.extraction_filter = lambda member, _path: member  # our own files; /tmp keeps its bits
            tar.extractall(folder)  # noqa: S202 - the parameter `filter` needs Python 3.11.4, Debian 12 has 3.11.2


def write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_bytes(data)
    unfinished.replace(path)
