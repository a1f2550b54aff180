"""The kubelet's own notes of who holds which devices, kubelet_internal_checkpoint in its device plugin folder.

They tell what PodResources does not: the Pod's UID, init containers, and what a device plugin had answered, which the
kubelet gives to every later start of the container, whichever plugin is there by then. Their form is the kubelet's
private business and without a version, so what is not as we know it (kubelet 1.20 to 1.36) counts as not there. The
kubelet writes them before it calls PreStartContainer, beside and then renames: they are never half written. Its
checksum is not looked at: it is one of the memory of a Go program.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError

from aliquot.adapters.kubelet import deviceplugin_pb2 as wire

CHECKPOINT = "kubelet_internal_checkpoint"


@dataclass(frozen=True, slots=True)
class Kept:
    """What the kubelet keeps of a device plugin's answer, as far as it is looked at."""

    env: Mapping[str, str]
    cdi: tuple[str, ...]
    mounts: tuple[str, ...] = ()  # whence on the host


@dataclass(frozen=True, slots=True)
class Entry:
    """The devices of one resource that one container holds. A container of a Pod that ended may stand here a while."""

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]
    answer: str = field(default="", compare=False, repr=False)  # as it is kept; read where it is wanted

    def kept(self) -> Kept | None:
        """The answer; None where it is not there, or cannot be read."""
        try:
            found = wire.ContainerAllocateResponse.FromString(binascii.a2b_base64(self.answer))
        except (ValueError, DecodeError):  # binascii's errors are ValueErrors
            return None
        if not self.answer:
            return None
        mounts = tuple(mount.host_path for mount in found.mounts)
        return Kept(dict(found.envs), tuple(device.name for device in found.cdi_devices), mounts)


_NAMES = {
    "pod_uid": "PodUID",
    "container": "ContainerName",
    "resource": "ResourceName",
    "ids": "DeviceIDs",
    "answer": "AllocResp",
}


class _Entry(msgspec.Struct, rename=_NAMES):
    pod_uid: str
    container: str
    resource: str
    ids: dict[int, list[str] | None] | None  # by NUMA node, -1 where none is known
    answer: str | None = None


class _Data(msgspec.Struct, rename={"entries": "PodDeviceEntries"}):
    entries: list[_Entry] | None


class _Checkpoint(msgspec.Struct, rename={"data": "Data"}):
    data: _Data


def read_checkpoint(path: Path) -> tuple[Entry, ...] | None:
    """What the kubelet has noted; None where the file is not there, or not in a form we know."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Checkpoint)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    return tuple(
        Entry(entry.pod_uid, entry.container, entry.resource, _all(entry.ids or {}), entry.answer or "")
        for entry in found.data.entries or ()
    )


def _all(by_numa: dict[int, list[str] | None]) -> frozenset[str]:
    return frozenset(id_ for ids in by_numa.values() for id_ in ids or ())
