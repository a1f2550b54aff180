"""A second device plugin on a real node, as NVIDIA's is: it hands out whole cards by their UUIDs.

As a program: `python otherplugin.py FOLDER RESOURCE ID...`, until SIGTERM; then it withdraws its devices first.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from aliquot.adapters.kubelet.deviceplugin import Allocation, PluginServer, register, render_devices
from aliquot.dialects.wire.advertising import Token
from testbed.realnodes.nodeprogram import NodeProgram
from testbed.realnodes.nodes import RealNode

PLUGINS = "/var/lib/kubelet/device-plugins"
GPU = "nvidia.com/gpu"


class _WholeCards:
    """The environment that NVIDIA's runtime reads, and nothing else."""

    def allocate(self, resource: str, ids: frozenset[str]) -> Allocation:
        return Allocation(env={"NVIDIA_VISIBLE_DEVICES": ",".join(sorted(ids))})

    async def prepare(self, resource: str, ids: frozenset[str]) -> None: ...


async def _serve(folder: Path, resource: str, ids: Sequence[str]) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    server = PluginServer(resource, folder / "other-plugin.sock", _WholeCards())
    server.publish(render_devices([Token(name, True, None) for name in ids]))
    await server.start()
    await register(folder, resource=resource, endpoint=server.path.name)
    await over.wait()
    server.publish(render_devices(()))
    await server.stop()


def start_other_plugin(node: RealNode, ids: Sequence[str], resource: str = GPU) -> NodeProgram:
    """The plugin on the node, with these devices."""
    tests = Path(__file__).parents[2]
    command = [sys.executable, __file__, PLUGINS, resource, *ids]
    return node.run(command, name="other-plugin", environment={"PYTHONPATH": str(tests)})


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
