"""The agent's parts, made for a real node: NVML, arbiter, database, the shim on the host."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Set
from pathlib import Path

from aliquot.adapters.gpu.driverfile import DriverFile
from aliquot.adapters.gpu.nvml import Nvml, NvmlError
from aliquot.adapters.gpu.player import Playing
from aliquot.adapters.host import cgroups
from aliquot.adapters.kubelet.checkpoint import CHECKPOINT, read_checkpoint
from aliquot.adapters.kubernetes.kube import Server
from aliquot.adapters.storage import shims
from aliquot.adapters.storage.cdifolder import CdiFolder
from aliquot.adapters.storage.podstore import PodStore
from aliquot.dialects.wire.cdi import parse_spec, render_spec
from aliquot.dialects.wire.schedulerconfig import RESOURCES
from aliquot.model.tenant import SharingRules
from aliquot.services.agent.libraries import install_libraries
from aliquot.services.agent.service import Agent, Parts, Settings
from aliquot.services.runtime.arbiterd import Arbiterd
from aliquot.services.runtime.health import CardHealth
from aliquot.services.runtime.meter import CardMeter

log = logging.getLogger(__name__)

_LOOK = 5.0  # seconds; Prometheus looks more seldom, and the health of the cards is looked at beside this


def run_agent(
    server: Server,
    settings: Settings,
    *,
    database: Path,
    playing: Playing | None,
    driver: str,
    ignored_xids: Set[int] = frozenset(),
) -> None:
    """Until it is told to end. Raises NvmlError, StoreError, ShimError, CdiError, and OSError for a port in use."""
    nvml = Nvml()
    store = PodStore(database)
    if playing is not None:
        # Containers run as any user. So do programs on the host, and its folder is open to them: whoever tries things
        # out on simulated cards has no secrets on them.
        os.chmod(playing.socket, 0o666)  # noqa: S103 - see above
    try:
        health = CardHealth(nvml, remembered=store.cards(), ignored=ignored_xids)
        if not health.cards:
            raise NvmlError("NVML tells of no card")
        numbers = {card.uuid: card.index for card in health.cards}
        arbiter = Arbiterd(
            health.cards, rules=SharingRules(), nvml=nvml, simulated=playing is not None, whose=cgroups.pod_of
        )
        file = None if driver == "runtime" else DriverFile(wanted=driver == "cdi")
        libraries = install_libraries(database.parent, playing, file, numbers)
        sweep_shims(settings, database.parent)
        asyncio.run(
            _run(server, settings, Parts(store, arbiter, health, libraries, CardMeter(health.cards, nvml, every=_LOOK)))
        )
    finally:
        store.close()


def sweep_shims(settings: Settings, state: Path) -> None:
    """Versions of the shim that no container will look for: no spec names them, nor does an answer that the kubelet
    keeps, which without CDI names them for every later start, even after a reboot. Where it cannot be read, all stay.
    """
    entries = read_checkpoint(settings.kubelet / "device-plugins" / CHECKPOINT)
    answers = [entry.response() for entry in entries or () if entry.resource in RESOURCES]
    if entries is None or None in answers:
        return
    folder = CdiFolder(settings.cdi_folder, render_spec, parse_spec)
    specs = folder.specs() if folder.path.is_dir() else []
    named = [mount.host for spec in specs for mount in spec.edits.mounts]
    named += [mount for answer in answers if answer is not None for mount in answer.mounts]
    shims.sweep(state, {Path(each).parent for each in named})


async def _run(server: Server, settings: Settings, parts: Parts) -> None:
    await Agent(server, settings, parts).run()
