"""Images as OCI archives: the product's, built from what lies here and kept; kube-scheduler's, from its program."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import platform
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aliquot
from testbed.build import VERSION, CannotBuildError, binaries, cache_home

PRODUCT = "aliquot/aliquot"
IMAGE = f"{PRODUCT}:{aliquot.__version__}"
_NEXT = [*aliquot.__version__.split(".")[:2], str(int(aliquot.__version__.split(".")[2]) + 1)]
NEXT_IMAGE = f"{PRODUCT}:{'.'.join(_NEXT)}"
KUBE_SCHEDULER_IMAGE = f"kube-scheduler:{VERSION}"

_ROOT = Path(__file__).parent.parent.parent.parent
_BUILDER = _ROOT / "deploy" / "image" / "build.py"
_MADE_OF = ("src", "shim", "simgpu", "deploy", "hatch_build.py", "pyproject.toml", "constraints.txt", "README.md")
_NOT_PART = {"__pycache__", "chart", "dropin"}  # in deploy/, but not in the image
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_KEPT = 6  # archives of the product: two versions of each state of the sources
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True, slots=True)
class Blob:
    """The place of a blob in an archive."""

    archive: Path
    offset: int
    size: int

    def read(self) -> bytes:
        with self.archive.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def read_archive(archive: Path) -> tuple[str, dict[str, Blob]]:
    """The digest of this architecture's manifest, and the blobs by digest."""
    with tarfile.open(archive) as tar:
        members = {entry.name.removeprefix("./"): entry for entry in tar if entry.isfile()}
    blobs = {
        "sha256:" + name.removeprefix("blobs/sha256/"): Blob(archive, entry.offset_data, entry.size)
        for name, entry in members.items()
        if name.startswith("blobs/sha256/")
    }
    index = members["index.json"]
    listed = json.loads(Blob(archive, index.offset_data, index.size).read())["manifests"]
    while listed[0]["mediaType"] == _INDEX:
        listed = json.loads(blobs[listed[0]["digest"]].read())["manifests"]
    here = [manifest for manifest in listed if manifest.get("platform", {}).get("architecture", _here()) == _here()]
    return str(here[0]["digest"]), blobs


def _here() -> str:
    return _ARCHITECTURES[platform.machine()]


def product(name: str = IMAGE, *, simulate: str = "4x16GiB") -> Path:
    """The product's image of that name, with an environment in which agents have simulated cards."""
    made_of = _hash(simulate)
    version = name.rpartition(":")[2]
    folder = cache_home() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"aliquot-{version}-{made_of}.tar"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a process that waited here finds it built
        if not archive.exists():
            unfinished = archive.with_suffix(".unfinished")
            words = ["--arch", _here(), "--version", version, "--name", PRODUCT, "--out", str(unfinished)]
            command = [sys.executable, str(_BUILDER), *words, "--env", f"ALIQUOT_SIMULATE={simulate}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CannotBuildError(f"{' '.join(command)}:\n{(done.stdout + done.stderr).strip()[-3000:]}")
            unfinished.replace(archive)
            _prune(folder)
    return archive


def _prune(folder: Path) -> None:
    kept = sorted(folder.glob("aliquot-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in kept[_KEPT:]:
        old.unlink(missing_ok=True)


def _hash(*words: str) -> str:
    """The hash of everything that the image is made of."""
    found = hashlib.sha256(" ".join(words).encode())
    for path in _sources():
        found.update(f"{path.relative_to(_ROOT)} {path.stat().st_mode:o}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _sources() -> Iterator[Path]:
    for name in _MADE_OF:
        path = _ROOT / name
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        for source in found:
            if source.is_file() and not _NOT_PART & set(source.relative_to(_ROOT).parts):
                yield source


def kube_scheduler() -> Path:
    """An image whose one file is the built program."""
    folder = cache_home() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"kube-scheduler-{VERSION}.tar"
    if not archive.exists():
        unfinished = archive.with_suffix(".unfinished")
        unfinished.write_bytes(of_one_program(binaries(["kube-scheduler"])["kube-scheduler"]))
        unfinished.replace(archive)
    return archive


def of_one_program(program: Path) -> bytes:
    """At /usr/local/bin, as in Kubernetes's own image, which runs it by its name."""
    layer = _tar({f"usr/local/bin/{program.name}": program.read_bytes()}, mode=0o755)
    blobs: dict[str, bytes] = {}

    def keep(kind: str, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    described = keep("application/vnd.oci.image.layer.v1.tar", layer)
    config = {
        "architecture": _here(),
        "os": "linux",
        "config": {"Entrypoint": [program.name], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "User": "65532"},
        "rootfs": {"type": "layers", "diff_ids": [described["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": keep("application/vnd.oci.image.config.v1+json", json.dumps(config).encode()),
        "layers": [described],
    }
    top = keep(_MANIFEST, json.dumps(manifest).encode())
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [top]}
    head = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode()}
    return _tar({**head, **blobs})


def _tar(files: dict[str, bytes], *, mode: int = 0o644) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
