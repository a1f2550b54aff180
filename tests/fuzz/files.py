"""Files: users' manifests, configuration, and damaged files that the kubelet or we wrote."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from aliquot.adapters.gpu.driverfile import DriverFile, DriverFileError
from aliquot.adapters.kubelet.checkpoint import read_checkpoint
from aliquot.adapters.kubernetes import kubeconfig
from aliquot.adapters.storage.cdifolder import CdiFolder
from aliquot.adapters.storage.database import StoreError
from aliquot.adapters.storage.podstore import PodStore
from aliquot.adapters.storage.store import Store
from aliquot.cli.cluster import scheduler as scheduler_command
from aliquot.cli.errors import InputError
from aliquot.cli.manifests import read_manifests
from aliquot.dialects.wire.cdi import driver_edits, name_of, passes_cdi, reads_cdi, render_spec
from aliquot.dialects.wire.cdi import parse_spec as parse_cdi
from aliquot.model.containers.edits import Edits, Mount, Spec
from aliquot.model.refusal import Invalid
from fuzz.kubernetes import NODES, PODS

from .inputs import any_json, as_bytes, changed, damaged, texts
from .target import Check, Target, plain, refused


def written(
    try_one: Callable[[Path], None], *, name: str = "file"
) -> Callable[[], contextlib.AbstractContextManager[Check]]:
    """Puts each input into a file of that name first."""

    @contextlib.contextmanager
    def place() -> Iterator[Check]:
        with tempfile.TemporaryDirectory(prefix="alq-fuzz-") as folder:
            path = Path(folder, name)

            def check(data: bytes) -> None:
                path.write_bytes(data)
                try_one(path)

            yield check

    return place


def _manifests(path: Path) -> None:
    try:
        found = read_manifests(path)
    except InputError as error:
        refused(error.format_message(), f"{path}:")
        return
    for document in found:
        assert isinstance(document.value, dict)
        assert document.position >= (1, 1)


def _kubeconfig(path: Path) -> None:
    try:
        server = kubeconfig.read_kubeconfig(path)
    except kubeconfig.KubeConfigError as error:
        refused(str(error), str(path.parent))
    else:
        assert server.url.startswith("http")
        assert isinstance(server.namespace, str)


def _config(path: Path) -> None:
    try:
        options: Any = {"lease_namespace": "aliquot-system", **scheduler_command._read(path)}
        scheduler_command._settings(options)
    except InputError as error:
        refused(error.message)


def _driver_file(path: Path) -> None:
    try:
        content = DriverFile(wanted=True, places=(path,)).read()
    except DriverFileError:
        return
    driver_edits(content, ["GPU-0"], indices={"GPU-0": 0})


def _checkpoint(path: Path) -> None:
    for entry in read_checkpoint(path) or ():
        assert isinstance(entry.pod_uid, str)


def _cdi(path: Path) -> None:
    folder = CdiFolder(path.parent, render_spec, parse_cdi)
    for spec in folder.specs():
        assert "/" not in spec.name.file.removeprefix("aliquot.")
        folder.write(spec)


def _store(path: Path) -> None:
    """A daemon that finds such a file begins, with what it can read or with nothing; it never falls over it."""
    (path.parent / "t").mkdir(exist_ok=True)
    for opened in (lambda: Store(str(path), str(path.parent / "t")), lambda: PodStore(str(path))):
        data = path.read_bytes() if path.exists() else b""
        try:
            store: Any = opened()
        except StoreError as error:
            refused(str(error), str(path))
        else:
            with contextlib.suppress(StoreError):
                store.tenancies()
            store.close()
        for file in path.parent.iterdir():
            if file.is_file():
                file.unlink()
        path.write_bytes(data)


def _database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state.db")
        os.mkdir(os.path.join(folder, "t"))
        Store(path, os.path.join(folder, "t")).close()
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Path(path).read_bytes()


def _versions(text: str) -> None:
    reads_cdi(text)
    reads_cdi(f"containerd://{text}")
    passes_cdi(text)
    passes_cdi(f"v{text}")


_KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
    "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority-data": "YQ=="}}],
    "users": [{"name": "u", "user": {"token": "t", "client-certificate-data": "YQ==", "client-key-data": "YQ=="}}],
}
_PLAIN = {**_KUBECONFIG, "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:8080"}}]}
_CONFIG = {
    "priority": "spread",
    "port": 12345,
    "webhook-port": 8443,
    "scheduler-name": "qgpu=a,b",
    "dashboard": "0.0.0.0:1",
}
_CHECKPOINT = {
    "Data": {
        "PodDeviceEntries": [
            {
                "PodUID": "u",
                "ContainerName": "main",
                "ResourceName": "r",
                "DeviceIDs": {"-1": ["a", "b"]},
                "AllocResp": "YQ==",
            }
        ],
        "RegisteredDevices": {"r": ["a"]},
    },
    "Checksum": 1,
}
_DRIVER = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    "containerEdits": {"env": ["A=b"], "mounts": [{"hostPath": "/a", "containerPath": "/b"}]},
}
_SPEC = Spec(name_of("aliyun.com/gpu-mem", ["a"]), Edits({"A": "b"}, (Mount("/a", "/b"),)), "uid", "ns", "p", "main")


def _texts(*values: Any) -> list[bytes]:
    return [yaml.safe_dump(value).encode() for value in values] + [json.dumps(value).encode() for value in values]


def _yaml(*values: Any) -> st.SearchStrategy[bytes]:
    """As a file of one of them, changed in its values or in its bytes."""
    return damaged(_texts(*values)) | as_bytes(changed(values)) | as_bytes(any_json()) | st.binary(max_size=200)


_MANIFESTS = (*PODS, *NODES, {"kind": "List", "items": PODS[:2]}, {"kind": "PodList", "items": NODES})

TARGETS: tuple[Target, ...] = (
    Target("manifest-files", _yaml(*_MANIFESTS), written(_manifests, name="m.yaml")),
    Target("kubeconfig", _yaml(_KUBECONFIG, _PLAIN), written(_kubeconfig)),
    Target("scheduler-config", _yaml(_CONFIG), written(_config)),
    Target("driver-file", _yaml(_DRIVER), written(_driver_file, name="nvidia.yaml")),
    Target("cdi-files", damaged([render_spec(_SPEC)]) | st.binary(), written(_cdi, name=_SPEC.name.file)),
    Target("checkpoint", _yaml(_CHECKPOINT), written(_checkpoint)),
    Target("database", damaged([_database()]) | st.binary(), written(_store, name="state.db"), 25),
    plain("versions", texts, _versions),
)
assert not isinstance(parse_cdi(render_spec(_SPEC)), Invalid | None)
