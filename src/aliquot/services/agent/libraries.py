"""The libraries that every container gets: the shim, and on simulated cards the stand-ins for the driver."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import aliquot
from aliquot.adapters.gpu import player
from aliquot.adapters.gpu.driverfile import DriverFile, DriverFileError
from aliquot.adapters.gpu.player import Playing
from aliquot.adapters.host.home import SIM_VARIABLE
from aliquot.adapters.storage import shims
from aliquot.dialects.wire.cdi import driver_edits
from aliquot.model.containers.edits import Edits, Mount
from aliquot.services.agent.injection import PRELOAD, Libraries

_SIMRM = "simgpu/libsimrm.so"
_STAND_INS = ("simgpu/libcuda.so.1", "simgpu/libnvidia-ml.so.1")


def install_libraries(
    state: Path, playing: Playing | None, nvidia: DriverFile | None, numbers: Mapping[str, int]
) -> Libraries:
    """Install the libraries on the host. Raises ShimError.

    `nvidia` is NVIDIA's own CDI file, and `numbers` the current card numbers by UUID. Without the file, NVIDIA's
    container runtime adds the driver, by NVIDIA_VISIBLE_DEVICES.
    """
    if playing is None:
        installed = shims.install(player.library(), state, aliquot.__version__)
        names: tuple[str, ...] = (shims.LIBRARY,)
    else:
        installed = shims.install(player.library(), state, aliquot.__version__, more=(_SIMRM,), beside=_STAND_INS)
        names = tuple(Path(path).name for path in (shims.LIBRARY, _SIMRM, *_STAND_INS))
    mounts = (
        *(Mount(str(installed.folder / name), f"{shims.IN_CONTAINERS}/{name}") for name in names),
        Mount(str(installed.preload), PRELOAD),
    )

    def driver(uuids: Sequence[str]) -> Edits:
        if playing is not None:
            return _simulated(playing, uuids)
        return Edits({}) if nvidia is None or not uuids else _from_file(nvidia, uuids, numbers)

    return Libraries(mounts, {}, driver, installed.folder)


def _from_file(nvidia: DriverFile, uuids: Sequence[str], numbers: Mapping[str, int]) -> Edits:
    """If the file lacks the cards and --driver cdi was not set, the driver is left to NVIDIA's runtime."""
    found = nvidia.read()
    edits = None if found is None else driver_edits(found, uuids, indices=numbers)
    if edits is None and nvidia.wanted:
        raise DriverFileError(
            f"--driver cdi: NVIDIA's CDI file has no entry for {', '.join(uuids)}: run `nvidia-ctk cdi generate` again"
        )
    return edits or Edits({})


def _simulated(playing: Playing, uuids: Sequence[str]) -> Edits:
    """Mount the folder of the simulator's socket at its host path, where the stand-ins look for it: the next player
    makes a new socket there. Show only the granted cards, as a real driver with NVIDIA's runtime does."""
    env = {SIM_VARIABLE: playing.socket, "LD_LIBRARY_PATH": shims.IN_CONTAINERS}
    if uuids:
        env["NVIDIA_VISIBLE_DEVICES"] = ",".join(uuids)
    folder = os.path.dirname(playing.socket)
    return Edits(env, mounts=(Mount(folder, folder),))
