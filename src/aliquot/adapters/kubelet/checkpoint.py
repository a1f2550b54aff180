"""Reads kubelet_internal_checkpoint, the kubelet's own record of who holds which devices.

It has what PodResources lacks: the Pod's UID, init containers, and the response of the device plugin, which the kubelet
reuses for every later start of the container, whichever plugin is registered by then. The format is private to the
kubelet and has no version, so a file in any other form than that of kubelet 1.20 to 1.36 counts as missing. The
kubelet writes the file before it calls PreStartContainer, and renames it into place: it is never half written. We
ignore its checksum: it is computed from the memory layout of a Go program.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError

from aliquot.adapters.host.process.processes import is_shortage
from aliquot.adapters.kubelet import deviceplugin_pb2 as wire
from aliquot.adapters.kubelet.channel import KubeletError

CHECKPOINT = "kubelet_internal_checkpoint"


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """The parts we use of the response of a device plugin that the kubelet keeps."""

    env: Mapping[str, str]
    cdi: tuple[str, ...]
    mounts: tuple[str, ...] = ()  # paths on the host


@dataclass(frozen=True, slots=True)
class Entry:
    """The devices of one resource that one container holds. Entries of ended Pods stay for a while."""

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]
    encoded: str = field(default="", compare=False, repr=False)  # the response in base64, decoded on demand

    def response(self) -> CachedResponse | None:
        """The device plugin's response; None if it is missing or cannot be decoded."""
        try:
            found = wire.ContainerAllocateResponse.FromString(binascii.a2b_base64(self.encoded))
        except (ValueError, DecodeError):  # binascii's errors are ValueErrors
            return None
        if not self.encoded:
            return None
        mounts = tuple(mount.host_path for mount in found.mounts)
        return CachedResponse(dict(found.envs), tuple(device.name for device in found.cdi_devices), mounts)


_NAMES = {
    "pod_uid": "PodUID",
    "container": "ContainerName",
    "resource": "ResourceName",
    "ids": "DeviceIDs",
    "encoded": "AllocResp",
}


class _Entry(msgspec.Struct, rename=_NAMES):
    pod_uid: str
    container: str
    resource: str
    ids: dict[int, list[str] | None] | None  # by NUMA node, -1 where none is known
    encoded: str | None = None


class _Data(msgspec.Struct, rename={"entries": "PodDeviceEntries", "registered": "RegisteredDevices"}):
    entries: list[_Entry] | None
    registered: dict[str, msgspec.Raw] | None = None


class _Checkpoint(msgspec.Struct, rename={"data": "Data"}):
    data: _Data


def read_checkpoint(path: Path) -> tuple[Entry, ...] | None:
    """The entries; None if the file is missing or in an unknown form. Raises KubeletError where we lack files to read
    it: what another plugin gave away would look free."""
    found = _read(path)
    if found is None:
        return None
    return tuple(
        Entry(entry.pod_uid, entry.container, entry.resource, _all(entry.ids or {}), entry.encoded or "")
        for entry in found.entries or ()
    )


def device_resources(path: Path) -> frozenset[str]:
    """The resources of which the kubelet has devices, or has given some to a Pod; none if the file cannot be read.
    Raises KubeletError as `read_checkpoint`."""
    found = _read(path)
    if found is None:
        return frozenset()
    return frozenset(found.registered or ()).union(entry.resource for entry in found.entries or ())


def _read(path: Path) -> _Data | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Checkpoint).data
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        if isinstance(error, OSError) and is_shortage(error):
            raise KubeletError(f"{path}: {error.strerror}") from error
        return None


def _all(by_numa: dict[int, list[str] | None]) -> frozenset[str]:
    return frozenset(id_ for ids in by_numa.values() for id_ in ids or ())
