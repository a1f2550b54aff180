"""An agent whose container was given too little of the host fetches the rest by itself, where it may.

The vendor's DaemonSet puts the host's /var at /host/var, brings no /run, and has process ids of its own. It is
privileged, and that is enough. A container that has all it needs is left as it is.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from aliquot.adapters.host import hostmounts
from aliquot.adapters.host.hostmounts import HostAccessError
from aliquot.services.daemon.home import StartError, mount_points, point_of

log = logging.getLogger(__name__)

_MOVED = "ALIQUOT_MOVED_IN"  # what we fetched before we became ourselves again (--simulate), as JSON
_PATIENCE, _STEP = 20.0, 0.5  # seconds for a kubelet that is being restarted
_MODE = 0o755

_ADVICE = (
    "give the agent's Pod `hostPID: true` and, as hostPath volumes of type DirectoryOrCreate, each at its own path: "
    "{folders}. Or let the container be privileged: then hostPID alone is enough, and from Linux 6.5 on not even that"
)
OWN_IDS = (
    "process ids are this container's own: those of tenants are read from the host's /proc, but a real card's driver "
    "tells us none of other Pods. What it takes beside allocations is then not counted, and strangers are not found: "
    "hostPID: true in the DaemonSet changes that"
)


@dataclass(frozen=True, slots=True)
class HostAccess:
    """What an agent has of the host, beyond what it was given."""

    names: Mapping[str, str] = field(default_factory=dict)  # of a folder: what it is called on the host, and now here
    fetched: tuple[str, ...] = ()  # those that no volume brought
    processes: bool = False  # /proc is the host's, though the ids that the kernel gives us are our own

    def name(self, folder: str) -> str:
        """What to call it from now on."""
        return self.names.get(folder, folder)

    def tell(self) -> None:
        """Once logs are written."""
        if self.names:
            told = {
                "fetched": self.fetched,
                "called": {each: name for each, name in self.names.items() if each != name},
            }
            log.info("moved in: what no volume brought was fetched from the host", extra={"data": told})


def acquire_host_access(folders: Sequence[str], kubelet: Path) -> HostAccess:
    """All folders are the host's when this returns, by the names they have there. Raises StartError.

    `kubelet` is the socket on which it listens. Out of a Pod, or with the host's own root, there is nothing to do.
    """
    if _MOVED in os.environ:
        found = json.loads(os.environ[_MOVED])
        return HostAccess(found["names"], tuple(found["fetched"]), found["processes"])
    points = mount_points(Path("/proc/self/mountinfo").read_text())
    if "KUBERNETES_SERVICE_HOST" not in os.environ or points.get("/") != "overlay":
        return HostAccess()
    lacking = [folder for folder in folders if point_of(folder, points) is None]
    try:
        pidfd = _find(kubelet, _PATIENCE if lacking else 0.0)
        try:
            if not lacking and hostmounts.is_seen(pidfd):
                return HostAccess()
            found = _fetch(pidfd, folders, points, kubelet)
        finally:
            os.close(pidfd)
    except (HostAccessError, OSError) as error:
        if not lacking:  # only its processes: whose sockets are whose, nobody can know then, and the doctor tells it
            return HostAccess()
        why = f"{kubelet}: {error.strerror}" if isinstance(error, OSError) else str(error)
        advice = _ADVICE.format(folders=", ".join(lacking))
        raise StartError(f"{lacking[0]} is this container's own, and cannot be fetched: {why}: {advice}") from error
    told = {"names": found.names, "fetched": found.fetched, "processes": found.processes}
    os.environ[_MOVED] = json.dumps(told)
    return found


def host_names(point: str) -> list[str]:
    """What a folder that is mounted here may be called on the host: of /host/var, that and /var."""
    parts = PurePosixPath(point).parts[1:]
    return [f"/{'/'.join(parts[at:])}" for at in range(len(parts))]


def _find(kubelet: Path, patience: float) -> int:
    """The kubelet, which may be starting."""
    until = time.monotonic() + patience
    while True:
        try:
            return hostmounts.listener_of(kubelet)
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(_STEP)


def _fetch(pidfd: int, folders: Sequence[str], points: Mapping[str, str], kubelet: Path) -> HostAccess:
    _check_host(pidfd, kubelet.parent)
    names = {folder: _name_there(pidfd, folder, point_of(folder, points)) for folder in folders}
    missing = [name for name in names.values() if point_of(name, points) is None]
    hostmounts.fetch(pidfd, dict.fromkeys(missing, _MODE))
    hidden = not hostmounts.is_seen(pidfd)
    if hidden:
        hostmounts.fetch_processes(pidfd)
    return HostAccess(names, tuple(missing), processes=hidden)


def _check_host(pidfd: int, plugins: Path) -> None:
    """A kubelet in a container of its own may see other folders than those that containers are given."""
    here = plugins.stat()
    if hostmounts.identities(pidfd, [str(plugins)]).get(str(plugins)) != (here.st_dev, here.st_ino):
        raise HostAccessError(f"the kubelet calls another folder {plugins}: is it in a container itself?")


def _name_there(pidfd: int, folder: str, point: str | None) -> str:
    """What a folder is called on the host. One that is not mounted is asked for by its own name."""
    if point is None:
        return folder
    here = os.stat(point)
    found = hostmounts.identities(pidfd, host_names(point))
    for name in host_names(point):
        if found.get(name) == (here.st_dev, here.st_ino):
            return os.path.join(name, os.path.relpath(os.path.realpath(folder), point)).removesuffix("/.")
    raise HostAccessError(f"the kubelet has no folder of a name like that of {point}")
