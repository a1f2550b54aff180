"""The second device plugin of the tests: a kubelet accepts it, allocates its devices, and forgets them at its end."""

from __future__ import annotations

import asyncio
import os
import signal

from kit.agents.kubelet import a_kubelet, play
from kit.running.waiting import until
from testbed.others.otherplugin import GPU, _serve


def test_kubelet_accepts_the_plugin_and_its_end() -> None:
    async def scene() -> None:
        async with a_kubelet() as kubelet:
            serving = asyncio.create_task(_serve(kubelet.folder, GPU, ["GPU-0", "GPU-1"]))
            await until(lambda: GPU in kubelet.resources)
            (given,) = await kubelet.allocate(GPU, ["GPU-1"])
            assert dict(given.envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}
            os.kill(os.getpid(), signal.SIGTERM)
            await serving
            await until(lambda: GPU not in kubelet.resources)

    play(scene())
