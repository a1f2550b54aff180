"""Builds and runs the agent with its real adapters: NVML, arbiter, database, the shim on the host."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

from aliquot.adapters.gpu import player
from aliquot.adapters.gpu.driverfile import DriverFile
from aliquot.adapters.gpu.mps import CONTROL, Mps, preloaded
from aliquot.adapters.gpu.nvml import Nvml, NvmlError
from aliquot.adapters.gpu.player import Playing
from aliquot.adapters.host.home import SIM_VARIABLE
from aliquot.adapters.host.process import cgroups
from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.checkpoint import CHECKPOINT, read_checkpoint
from aliquot.adapters.kubernetes.kube import Server
from aliquot.adapters.storage import shims
from aliquot.adapters.storage.cdifolder import CdiFolder
from aliquot.adapters.storage.podstore import PodStore
from aliquot.dialects import hami
from aliquot.dialects.wire.cdi import parse_spec, render_spec
from aliquot.dialects.wire.schedulerconfig import RESOURCES
from aliquot.model.tenant import SharingRules
from aliquot.services.agent.injection import Libraries
from aliquot.services.agent.libraries import install_libraries
from aliquot.services.agent.service import Agent
from aliquot.services.agent.settings import ClaimUsers, Parts, Settings
from aliquot.services.mover.client import MoverClient, pool_folder
from aliquot.services.proof.startup import Mode, plan_control
from aliquot.services.runtime.arbiterd import Arbiterd
from aliquot.services.runtime.cards.health import CardHealth
from aliquot.services.runtime.cards.meter import CardMeter
from aliquot.services.runtime.limits.hardlimits import HardLimits
from aliquot.services.runtime.together.groups import Groups
from aliquot.services.runtime.usage.billing import KEEP_DAYS, open_billing

log = logging.getLogger(__name__)

NO_CONTROL = (
    f"--together has no effect: {CONTROL}, which comes with NVIDIA's driver, is not on this node in /usr/bin or "
    "/usr/local/bin, or the agent's container is not privileged; correct that and restart the agent"
)
_METER_INTERVAL = 5.0  # seconds; Prometheus scrapes less often, and card health is checked separately


def run_agent(
    server: Server,
    settings: Settings,
    *,
    database: Path,
    playing: Playing | None,
    driver: str,
    ignored_xids: Set[int] = frozenset(),
    usage_days: int = KEEP_DAYS,
    control: Mode = Mode.AUTO,
) -> None:
    """Run until SIGTERM. Raises NvmlError, StoreError, ShimError, CdiError, and OSError for a bad address."""
    nvml = Nvml()
    store = PodStore(database)
    try:
        health = CardHealth(nvml, remembered=store.cards(), ignored=ignored_xids)
        if not health.cards:
            raise NvmlError("NVML lists no card")
        numbers = {card.uuid: card.index for card in health.cards}
        users = ClaimUsers()
        plan = plan_control(
            control,
            health.cards,
            nvml,
            state=database.parent,
            run=settings.links.parent,
            shim=player.shim(),
            simulated=playing is not None,
        )
        arbiter = Arbiterd(
            health.cards,
            rules=SharingRules(),
            nvml=nvml,
            simulated=playing is not None,
            whose=cgroups.pod_of,
            claims_of=users,
            hard_limits=HardLimits(nvml.limit_memory, cgroups.pod_folders),
            mover=MoverClient(pool_folder(database.parent), 0, os.environ, log_file=database.parent / "mover.log"),
            **plan._asdict(),
        )
        file = None if driver == "runtime" else DriverFile(wanted=driver == "cdi")
        libraries = install_libraries(database.parent, playing, file, numbers)
        folder = settings.links.parent / "g"
        sweep_shims(settings, database.parent, preloaded(folder))
        groups = Groups(folder, _mps(libraries, playing), arbiter)
        if settings.together and not groups.can_start:
            settings = replace(settings, notes=(*settings.notes, NO_CONTROL))
            log.warning("together_unavailable", extra={"data": {"why": NO_CONTROL}})
        asyncio.run(
            _run(
                server,
                settings,
                Parts(
                    store,
                    arbiter,
                    health,
                    libraries,
                    CardMeter(health.cards, nvml, every=_METER_INTERVAL),
                    open_billing(str(database.parent / "usage.db"), arbiter, keep_days=usage_days),
                    nvml.minors(),
                    nvml.driver(),
                    users,
                    groups,
                ),
            )
        )
    finally:
        store.close()


def _mps(libraries: Libraries, playing: Playing | None) -> Mps:
    """Controls have the libraries that containers get."""
    folder = libraries.folder
    if playing is None:
        return Mps({}, {"LD_PRELOAD": [f"{folder}/{shims.LIBRARY}"]}, of_pods=True)
    front = {"LD_PRELOAD": [f"{folder}/{shims.LIBRARY}", f"{folder}/libsimrm.so"], "LD_LIBRARY_PATH": [str(folder)]}
    return Mps({SIM_VARIABLE: playing.socket}, front, player.simulation(), of_pods=True)


def sweep_shims(settings: Settings, state: Path, more: Set[Path] = frozenset()) -> None:
    """Remove versions of the shim that nothing needs: neither a CDI spec nor a response that the kubelet keeps refers
    to them, nor are they among `more`. Without CDI the kubelet reuses its responses even after a reboot. If they cannot
    be read, all versions stay."""
    try:
        entries = read_checkpoint(settings.kubelet / "device-plugins" / CHECKPOINT)
    except KubeletError:
        return
    responses = [entry.response() for entry in entries or () if entry.resource in (*RESOURCES, *hami.COUNTED)]
    if entries is None or None in responses:
        return
    folder = CdiFolder(settings.cdi_folder, render_spec, parse_spec)
    specs = folder.specs() if folder.path.is_dir() else []
    used = [mount.host for spec in specs for mount in spec.edits.mounts]
    used += [path for response in responses if response is not None for path in response.mounts]
    shims.sweep(state, {Path(path).parent for path in used} | {path.parent for path in more})


async def _run(server: Server, settings: Settings, parts: Parts) -> None:
    await Agent(server, settings, parts).run()
