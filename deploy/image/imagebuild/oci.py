"""The archive: an OCI image layout in a tar, as `ctr images import`, `docker load` and `podman load` take it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuild import entries
from imagebuild.entries import Entry

INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"

ENTRYPOINT = ("aliquot",)
COMMAND = ("by-environment",)  # for manifests without command and args: cli/cluster/entrypoint.py
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "MALLOC_ARENA_MAX": "2",  # an arena per thread and core would hold 1 MB more in the agent, and hand nothing back
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
}


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its tar's digest, and the tar compressed."""

    what: str
    diff_id: str
    blob: bytes


def layer(what: str, tree: Mapping[str, Entry], *, made_at: int) -> Layer:
    tar = entries.packed(tree, made_at=made_at)
    return Layer(what, digest(tar), entries.compressed(tar))


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def archive(
    layers: Sequence[Layer], *, name: str, version: str, arch: str, environment: Mapping[str, str], made_at: int
) -> bytes:
    """The tar of the layout. Everything in it follows from the arguments."""
    blobs: dict[str, bytes] = {}

    def kept(kind: str, data: bytes, **more: Any) -> dict[str, Any]:
        blobs[digest(data)] = data
        return {"mediaType": kind, "digest": digest(data), "size": len(data), **more}

    config = kept(
        _CONFIG, encoded(_config(layers, version=version, arch=arch, environment=environment, made_at=made_at))
    )
    described = [kept(_LAYER, layer.blob) for layer in layers]
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": config,
        "layers": described,
        "annotations": labels(version),
    }
    platform = {"architecture": arch, "os": "linux"}
    # containerd asks for images by their whole name, and writes one without a registry like this
    annotations = {
        "io.containerd.image.name": f"docker.io/{name}:{version}",
        "org.opencontainers.image.ref.name": version,
    }
    top = kept(_MANIFEST, encoded(manifest), platform=platform, annotations=annotations)
    files = {path(key): data for key, data in blobs.items()} | heads(top)
    files["manifest.json"] = encoded(_for_docker(config, described, f"{name}:{version}"))
    return entries.packed({where: Entry(data=data) for where, data in files.items()}, made_at=made_at)


def heads(top: Mapping[str, Any]) -> dict[str, bytes]:
    """What a layout begins with: that it is one, and what is on top of it."""
    return {
        "oci-layout": encoded({"imageLayoutVersion": "1.0.0"}),
        "index.json": encoded({"schemaVersion": 2, "mediaType": INDEX, "manifests": [top]}),
    }


def path(key: str) -> str:
    """Where in a layout the blob with this digest is."""
    return f"blobs/{key.replace(':', '/')}"


def labels(version: str) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": "aliquot",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.description": "Shares NVIDIA GPUs between Pods: the scheduler, the agent, the tools",
    }


def _config(
    layers: Sequence[Layer], *, version: str, arch: str, environment: Mapping[str, str], made_at: int
) -> dict[str, Any]:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(made_at))
    return {
        "architecture": arch,
        "os": "linux",
        "created": created,
        "config": {
            "Entrypoint": list(ENTRYPOINT),
            "Cmd": list(COMMAND),
            "Env": [f"{key}={value}" for key, value in {**ENVIRONMENT, **environment}.items()],
            "WorkingDir": "/",
            "Labels": labels(version),
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": created, "created_by": f"deploy/image/build.py: {layer.what}"} for layer in layers],
    }


def _for_docker(config: Mapping[str, Any], layers: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """What `docker load` of before Docker 25 reads."""
    paths = [path(blob["digest"]) for blob in (config, *layers)]
    return [{"Config": paths[0], "RepoTags": [name], "Layers": paths[1:]}]


def encoded(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
