"""What every container on the cards gets: the shim, and on simulated cards what stands in for the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import aliquot
from aliquot.adapters.gpu import player
from aliquot.adapters.gpu.driverfile import DriverFile, DriverFileError
from aliquot.adapters.gpu.player import Playing
from aliquot.adapters.host.home import SIM_VARIABLE
from aliquot.adapters.storage import shims
from aliquot.dialects.wire.cdi import driver_edits
from aliquot.model.edits import Edits, Mount
from aliquot.services.agent.injection import PRELOAD, Libraries

_SIMRM = "simgpu/libsimrm.so"
_STAND_INS = ("simgpu/libcuda.so.1", "simgpu/libnvidia-ml.so.1")


def install_libraries(
    state: Path, playing: Playing | None, nvidia: DriverFile | None, numbers: Mapping[str, int]
) -> Libraries:
    """Puts the libraries on the host. Raises ShimError.

    `nvidia` is NVIDIA's own CDI file, and `numbers` are the cards' of today, by UUID. Without it, NVIDIA's container
    runtime brings the driver, by NVIDIA_VISIBLE_DEVICES.
    """
    if playing is None:
        installed = shims.install(player.library(), state, aliquot.__version__)
        names: tuple[str, ...] = (shims.LIBRARY,)
    else:
        installed = shims.install(player.library(), state, aliquot.__version__, more=(_SIMRM,), beside=_STAND_INS)
        names = tuple(Path(each).name for each in (shims.LIBRARY, _SIMRM, *_STAND_INS))
    mounts = (
        *(Mount(str(installed.folder / name), f"{shims.IN_CONTAINERS}/{name}") for name in names),
        Mount(str(installed.preload), PRELOAD),
    )

    def driver(uuids: Sequence[str]) -> Edits:
        if playing is not None:
            return _simulated(playing, uuids)
        return Edits({}) if nvidia is None or not uuids else _from_file(nvidia, uuids, numbers)

    return Libraries(mounts, {}, driver)


def _from_file(nvidia: DriverFile, uuids: Sequence[str], numbers: Mapping[str, int]) -> Edits:
    """Where the file was not asked for and does not know the cards, it is left to NVIDIA's runtime."""
    found = nvidia.read()
    edits = None if found is None else driver_edits(found, uuids, indices=numbers)
    if edits is None and nvidia.wanted:
        raise DriverFileError(
            f"--driver cdi: NVIDIA's CDI file does not tell of {', '.join(uuids)}: run `nvidia-ctk cdi generate` again"
        )
    return edits or Edits({})


def _simulated(playing: Playing, uuids: Sequence[str]) -> Edits:
    """The player by the name it has on the host, by which the stand-ins know it; and, as a real driver with NVIDIA's
    runtime would, only the cards that were given."""
    env = {SIM_VARIABLE: playing.socket, "LD_LIBRARY_PATH": shims.IN_CONTAINERS}
    if uuids:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
    return Edits(env, mounts=(Mount(playing.socket, playing.socket, writable=True),))
