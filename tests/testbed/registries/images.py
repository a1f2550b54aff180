"""The one image of the tests, and a registry on loopback that answers with it whatever image is asked for.

Every manifest then runs as it is, `imagePullPolicy: Always` included. The image holds the probe (probe/probe.c), what
the kubelet's sandboxes run (probe/pause.c), and this machine's C library: the probe is an ordinary program of an
ordinary image, so that /etc/ld.so.preload works in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Mapping
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from testbed.build import CannotBuildError, cache_home
from testbed.registries.archives import Blob, read_archive

SANDBOX = "testbed.invalid/sandbox:1"  # the only name that does not mean the probe

_SOURCES = Path(__file__).parent.parent / "probe"
_PROGRAMS = {"probe": ("probe.c", "card.c", "line.c", "reach.c"), "pause": ("pause.c",), "runtime": ("runtime.c",)}
_IN_IMAGE = ("probe", "pause")
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
# Beside what the programs need: what the shim and the stand-in driver need. A glibc of today keeps only the names.
_LIBRARIES = ("libc.so.6", "libdl.so.2", "libpthread.so.0", "libm.so.6", "librt.so.1")
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def programs() -> dict[str, Path]:
    """The compiled programs by name, kept by what they are made of."""
    made_of = hashlib.sha256(" ".join(_FLAGS).encode())
    for source in sorted(_SOURCES.iterdir()):
        made_of.update(source.read_bytes())
    folder = cache_home() / f"probe-{made_of.hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    return {name: _compiled(name, folder / name) for name in _PROGRAMS}


def _compiled(name: str, output: Path) -> Path:
    if output.exists():
        return output
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", f"{platform.machine()}-linux-gnu.2.17"]
    sources = [str(_SOURCES / source) for source in _PROGRAMS[name]]
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        unfinished = Path(folder) / name
        command = [*compiler, *_FLAGS, *sources, "-o", str(unfinished), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBuildError(f"{name}: {' '.join(command)}:\n{done.stderr.strip()}")
        unfinished.replace(output)
    return output


class Image:
    """One layer, and for each of its programs an image that begins with it."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        made = programs()
        layer = self._keep(_layer({name: made[name] for name in _IN_IMAGE}))
        self.manifests = {name: self._manifest(name, layer) for name in _IN_IMAGE}  # program -> digest

    def _keep(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return digest

    def _manifest(self, program: str, layer: str) -> str:
        config = {
            "architecture": _ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Entrypoint": [f"/{program}"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [layer]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self._described(_CONFIG, self._keep(json.dumps(config).encode())),
            "layers": [self._described(_LAYER, layer)],
        }
        return self._keep(json.dumps(manifest).encode())

    def _described(self, kind: str, digest: str) -> dict[str, Any]:
        return {"mediaType": kind, "digest": digest, "size": len(self.blobs[digest])}


def _layer(compiled: Mapping[str, Path]) -> bytes:
    files = {f"/{name}": path for name, path in compiled.items()}
    files |= _c_library(compiled["probe"])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as layer:
        folders = {str(folder) for path in files for folder in Path(path).parents} - {"/"}
        for folder in sorted({*folders, "/etc", "/run", "/usr/local/lib"}):
            entry = tarfile.TarInfo(folder.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(entry)
        for path, source in files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            data = source.read_bytes()
            entry.size, entry.mode = len(data), 0o755
            layer.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _c_library(program: Path) -> dict[str, Path]:
    """Where this machine has it: there the loader looks for it in the container, too."""
    printed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    found = [Path(word) for line in printed.splitlines() for word in line.split() if word.startswith("/")]
    home = next(path.parent for path in found if path.name == "libc.so.6")
    return {str(path): path for path in [*found, *(home / name for name in _LIBRARIES)] if path.exists()}


class Registry:
    """Serves the image, on a port of loopback, to any number of nodes; until the test run ends."""

    def __init__(self) -> None:
        self.image = Image()
        self._given: dict[str, str] = {}  # path of a manifest -> digest
        self._blobs: dict[str, Blob] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                registry.answer(self)

            do_HEAD = do_GET  # noqa: N815 - the library's spelling

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: containerd logs what it asks."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="registry", daemon=True).start()

    @cached_property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def give(self, name: str, archive: Path) -> None:
        """From now on this name ("aliquot/aliquot:0.1.0") means what is in the archive, for this architecture."""
        manifest, blobs = read_archive(archive)
        repository, _, tag = name.rpartition(":")
        self._given[f"/v2/{repository if '/' in repository else f'library/{repository}'}/manifests/{tag}"] = manifest
        self._blobs |= blobs

    def _blob(self, digest: str) -> bytes | None:
        return self._blobs[digest].read() if digest in self._blobs else self.image.blobs.get(digest)

    def answer(self, asked: BaseHTTPRequestHandler) -> None:
        digest = self._digest(asked.path.split("?")[0])
        data = b"{}" if digest == "" else self._blob(digest)
        asked.send_response(404 if data is None else 200)
        asked.send_header("Content-Length", str(len(data or b"")))
        if data is not None and digest:
            asked.send_header("Content-Type", _MANIFEST if "/manifests/" in asked.path else "application/octet-stream")
            asked.send_header("Docker-Content-Digest", digest)
        asked.end_headers()
        if asked.command == "GET" and data:
            with contextlib.suppress(OSError):  # a runtime that has it already hangs up
                asked.wfile.write(data)

    def _digest(self, path: str) -> str:
        """Of what is asked for; empty for the question whether this is a registry."""
        if path in self._given:
            return self._given[path]
        name, _, what = path.removeprefix("/v2/").rpartition("/")
        if not what or what.startswith("sha256:"):
            return what
        sandbox = f"{os.path.dirname(name)}:{what}" == SANDBOX.partition("/")[2]
        return self.image.manifests["pause" if sandbox else "probe"]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
