"""The Container Device Interface: one spec file per allocation says what the runtime puts into a container.

    # aliquot {"v":1,"uid":"5c1f..","namespace":"ml","pod":"train-0","container":"main"}
    {"cdiVersion":"0.5.0","kind":"aliquot.dev/qgpu-core","devices":[{"name":"3f2a..","containerEdits":{..}}]}

A comment names the Pod that owns the file. CDI has annotations for this only from 0.6.0 on. The library in containerd
1.7.0 knows 0.5.0, refuses unknown fields, and then may refuse the other files, too. Every version of it reads the files
as YAML, under any name; JSON under a comment is YAML, hence `.yaml`.

Our edits are those of the device. The driver's edits are copied from NVIDIA's own file into the edits of the whole
file: runtimes apply these first, so ours win where both set the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from aliquot.model.containers.edits import OLDEST, CdiName, Edits, Mount, Spec

__all__ = [
    "CdiName",
    "Edits",
    "Mount",
    "Spec",
    "driver_edits",
    "is_silent",
    "name_of",
    "parse_spec",
    "passes_cdi",
    "reads_cdi",
    "render_spec",
]

VENDOR = "aliquot.dev"
DRIVER_KIND = "nvidia.com/gpu"

_MARK = b"# aliquot "
_FORM = 1
_HASH = 12  # bytes: enough that names of a node never collide
_READ_ONLY = ("ro", "bind", "nosuid", "nodev")  # not noexec: libraries are mapped as executable
_WRITABLE = ("rw", "bind", "nosuid", "nodev", "noexec")
# Legal in JSON; YAML refuses them or reads them as line ends.
_NOT_YAML = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")


class _Mount(msgspec.Struct, rename="camel"):
    host_path: str
    container_path: str
    options: list[str] = []


class _Node(msgspec.Struct):
    path: str


class _Edits(msgspec.Struct, rename="camel", omit_defaults=True):
    env: list[str] = []
    device_nodes: list[_Node] = []
    mounts: list[_Mount] = []


class _Device(msgspec.Struct, rename="camel"):
    name: str
    container_edits: _Edits


class _File(msgspec.Struct, rename="camel", omit_defaults=True):
    cdi_version: str
    kind: str
    devices: list[_Device]
    container_edits: dict[str, Any] = {}


class _Owner(msgspec.Struct):
    v: int
    uid: str
    namespace: str
    pod: str
    container: str


_KIND = re.compile(re.escape(VENDOR) + r"/[A-Za-z0-9_-]{2,128}")
_DEVICE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FILE = msgspec.json.Decoder(_File)
_OWNER = msgspec.json.Decoder(_Owner)


def name_of(resource: str, ids: Iterable[str]) -> CdiName:
    """A name that depends only on the resource and the set of devices."""
    held = "\0".join([resource, *sorted(ids)]).encode()
    device = hashlib.blake2b(held, digest_size=_HASH).hexdigest()
    return CdiName(f"{VENDOR}/{_class_of(resource)}", device)


def _class_of(resource: str) -> str:
    """The resource without its domain. A class of one character crashes containerd, a dot needs CDI 0.6.0."""
    legal = re.sub(r"[^A-Za-z0-9_-]", "-", resource.rpartition("/")[2]).strip("-_")
    return legal if len(legal) > 1 and legal[0].isalpha() else f"gpu-{legal}".rstrip("-")


def render_spec(spec: Spec) -> bytes:
    """The file. Equal specs give equal bytes."""
    edits = spec.edits
    ours = _Edits(
        env=[f"{key}={value}" for key, value in sorted(edits.env.items())],
        device_nodes=[_Node(path) for path in edits.devices],
        mounts=[
            _Mount(mount.host, mount.container, list(_WRITABLE if mount.writable else _READ_ONLY))
            for mount in edits.mounts
        ],
    )
    file = _File(edits.version, spec.name.kind, [_Device(spec.name.device, ours)], dict(edits.extra))
    owner = _Owner(_FORM, spec.pod_uid, spec.namespace, spec.pod, spec.container)
    text = _NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(file).decode())
    # The comment is ASCII: nothing in it may look like a line end.
    return _MARK + json.dumps(msgspec.to_builtins(owner)).encode() + b"\n" + text.encode() + b"\n"


def parse_spec(data: bytes) -> Spec | None:
    """The spec of a file that we wrote; None for other files and damaged ones."""
    head, _, body = data.partition(b"\n")
    if not head.startswith(_MARK):
        return None
    try:
        owner, file = _OWNER.decode(head[len(_MARK) :]), _FILE.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if owner.v != _FORM or len(file.devices) != 1 or not _KIND.fullmatch(file.kind):
        return None
    (device,) = file.devices
    if not _DEVICE.fullmatch(device.name):  # the file with this name is removed with the Pod
        return None
    found = device.container_edits
    edits = Edits(
        env={key: value for key, _, value in (variable.partition("=") for variable in found.env)},
        mounts=tuple(Mount(mount.host_path, mount.container_path, "ro" not in mount.options) for mount in found.mounts),
        devices=tuple(node.path for node in found.device_nodes),
        extra=file.container_edits,
        version=file.cdi_version,
    )
    return Spec(CdiName(file.kind, device.name), edits, owner.uid, owner.namespace, owner.pod, owner.container)


# Short numbers of ASCII digits: int() takes no others (\u00b2 is a digit too), and refuses thousands of them.
_RUNTIME = re.compile(r"([a-z-]+)://v?([0-9]{1,4})(?![0-9])")
_KUBELET = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
_ALWAYS_ON = {"containerd": 2, "cri-o": 1}  # the first major version that reads CDI by default


def reads_cdi(runtime: str) -> bool:
    """Whether a runtime, in the form of the kubelet (`containerd://2.1.0`), reads CDI by default.

    containerd 1.7 needs `enable_cdi`, which is not visible from outside: it counts as a runtime that does not.
    """
    found = _RUNTIME.match(runtime)
    return found is not None and found[1] in _ALWAYS_ON and int(found[2]) >= _ALWAYS_ON[found[1]]


def is_silent(runtime: str) -> bool:
    """Whether the kubelet reports a runtime that does not answer at the moment, so that its version is unknown."""
    return runtime.endswith("://Unknown")


def passes_cdi(kubelet: str) -> bool:
    """Whether a kubelet of that version (`v1.31.2`) passes CDI names of device plugins to the runtime: by default from
    1.29 on. An older one silently drops them, and containers would start without our edits."""
    found = _KUBELET.match(kubelet)
    return found is not None and (int(found[1]), int(found[2])) >= (1, 29)


# --- the driver's own file -------------------------------------------------------------------------------------------


def driver_edits(spec: object, uuids: Sequence[str], *, indices: Mapping[str, int] | None = None) -> Edits | None:
    """The edits for these cards, and for all, from NVIDIA's own CDI file (parsed output of `nvidia-ctk cdi generate`).

    The file names cards by UUID, by number, or both: `indices` has the current numbers. None if it is another file, or
    lacks one of the cards: half of a driver is worse than none.
    """
    try:  # YAML has dates and recursive anchors; what is not JSON is not CDI either
        plain = msgspec.json.decode(msgspec.json.encode(spec))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return None
    if not isinstance(plain, dict) or plain.get("kind") != DRIVER_KIND:
        return None
    version, devices = plain.get("cdiVersion"), plain.get("devices")
    if not isinstance(version, str) or not isinstance(devices, list):
        return None
    by_name = {device.get("name"): device.get("containerEdits") for device in devices if _has_a_name(device)}
    merged: dict[str, Any] = {}
    for part in (plain.get("containerEdits") or {}, *(_of_card(by_name, uuid, indices or {}) for uuid in uuids)):
        if not isinstance(part, dict):
            return None
        for key, value in part.items():
            merged[key] = _joined(merged.get(key), value)
    return Edits({}, extra=merged, version=_newer(version, OLDEST))


def _has_a_name(device: object) -> bool:
    return isinstance(device, dict) and isinstance(device.get("name"), str)


def _of_card(by_name: Mapping[Any, Any], uuid: str, indices: Mapping[str, int]) -> Any:
    """By UUID if the file has it: numbers may have changed since the file was written."""
    return by_name[uuid] if uuid in by_name else by_name.get(str(indices.get(uuid, "")))


def _joined(before: Any, now: Any) -> Any:
    """Concatenates lists without duplicates: the cards have device nodes in common."""
    if not isinstance(before, list) or not isinstance(now, list):
        return now
    return before + [item for item in now if item not in before]


def _newer(one: str, other: str) -> str:
    """The newer of two versions. If one is malformed, the runtime has to decide."""
    numbers = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", version) for version in (one, other)]
    if not all(numbers):
        return one
    return max(one, other, key=lambda version: tuple(int(part) for part in version.split(".")))
