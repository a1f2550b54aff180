"""Both of the kubelet's accounts of who holds which devices, at their places under its folder."""

from __future__ import annotations

from pathlib import Path

from aliquot.adapters.kubelet.checkpoint import CHECKPOINT, Entry, read_checkpoint
from aliquot.adapters.kubelet.podresources import Holder, PodResources


class Books:
    """`folder` is the kubelet's: /var/lib/kubelet."""

    def __init__(self, folder: Path) -> None:
        self.plugins = folder / "device-plugins"
        self._resources = PodResources(folder / "pod-resources" / "kubelet.sock")

    async def holders(self) -> list[Holder]:
        """What PodResources tells now. Raises KubeletError."""
        return await self._resources.holders()

    def checkpoint(self) -> tuple[Entry, ...] | None:
        """What the kubelet has noted for itself; None where that cannot be read."""
        return read_checkpoint(self.plugins / CHECKPOINT)

    async def close(self) -> None:
        """No more questions."""
        await self._resources.close()
