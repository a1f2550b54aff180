"""The kubelet's two records of which container holds which devices, at their paths under its root directory."""

from __future__ import annotations

from pathlib import Path

from aliquot.adapters.kubelet.checkpoint import CHECKPOINT, Entry, device_resources, read_checkpoint
from aliquot.adapters.kubelet.podresources import Holder, PodResources


class Kubelet:
    """`folder` is the kubelet's root directory, /var/lib/kubelet."""

    def __init__(self, folder: Path) -> None:
        self.plugins = folder / "device-plugins"
        self._folder = folder / "pod-resources"
        self._resources = PodResources(self._folder / "kubelet.sock")

    async def holders(self) -> list[Holder]:
        """The holders by the PodResources API. Raises KubeletError.

        None in a container without its folder: there the checkpoint alone says who holds what.
        """
        if not self._folder.is_dir():
            return []
        return await self._resources.holders()

    def checkpoint(self) -> tuple[Entry, ...] | None:
        """The entries of the kubelet's checkpoint file; None if it cannot be read. Raises KubeletError where we lack
        files to read it, and so does `device_resources`."""
        return read_checkpoint(self.plugins / CHECKPOINT)

    def device_resources(self) -> frozenset[str]:
        """The resources that the kubelet hands out as devices: of others it only compares amounts."""
        return device_resources(self.plugins / CHECKPOINT)

    async def close(self) -> None:
        """Close the PodResources client."""
        await self._resources.close()
