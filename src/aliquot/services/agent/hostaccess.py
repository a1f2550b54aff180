"""Gives an agent in a container access to host folders and processes that its Pod does not mount.

The vendor's DaemonSet mounts the host's /var at /host/var, does not mount /run, and has its own PID namespace. But it
is privileged, which is enough to mount the rest. A container that has all it needs is left as it is.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from aliquot.adapters.host import hostmounts
from aliquot.adapters.host.hostmounts import HostAccessError
from aliquot.services.daemon.home import StartError, mount_points, point_of

log = logging.getLogger(__name__)

_MOVED = "ALIQUOT_MOVED_IN"  # what was mounted before we executed ourselves again (--simulate), as JSON
_PATIENCE, _STEP = 20.0, 0.5  # seconds, for a kubelet that restarts
_MODE = 0o755

_ADVICE = (
    "give the agent's Pod `hostPID: true` and hostPath volumes of type DirectoryOrCreate, each at its own path: "
    "{folders}. Or make the container privileged: then hostPID is enough, and from Linux 6.5 on it is not needed either"
)
OWN_IDS = (
    "the agent's container has its own PID namespace: the processes of tenants are read from the host's /proc, but the "
    "driver of a real card does not report those of other Pods. Driver overhead is then not counted and unknown "
    "processes are not found: set hostPID: true in the DaemonSet"
)


@dataclass(frozen=True, slots=True)
class HostAccess:
    """The host folders and processes that the agent mounted by itself."""

    names: Mapping[str, str] = field(default_factory=dict)  # host path of each folder, which now works here, too
    mounted: tuple[str, ...] = ()  # host paths that no volume had
    processes: bool = False  # /proc is the host's, though our PID namespace is not

    def name(self, folder: str) -> str:
        """The path to use from now on."""
        return self.names.get(folder, folder)

    def log(self) -> None:
        """Log it; call this once logging is set up."""
        if self.names:
            renamed = {folder: name for folder, name in self.names.items() if folder != name}
            log.info("host_paths_mounted", extra={"data": {"mounted": self.mounted, "renamed": renamed}})


def acquire_host_access(folders: Sequence[str], kubelet: Path) -> HostAccess:
    """Make all folders those of the host, at their host paths. Raises StartError.

    `kubelet` is the kubelet's socket. Outside a Pod, or with the host's own root, there is nothing to do.
    """
    if _MOVED in os.environ:
        found = json.loads(os.environ[_MOVED])
        return HostAccess(found["names"], tuple(found["mounted"]), found["processes"])
    points = mount_points(Path("/proc/self/mountinfo").read_text())
    if "KUBERNETES_SERVICE_HOST" not in os.environ or points.get("/") != "overlay":
        return HostAccess()
    missing = [folder for folder in folders if point_of(folder, points) is None]
    try:
        pidfd = _find(kubelet, _PATIENCE if missing else 0.0)
        try:
            if not missing and hostmounts.is_seen(pidfd):
                return HostAccess()
            access = _mount(pidfd, folders, points, kubelet)
        finally:
            os.close(pidfd)
    except (HostAccessError, OSError) as error:
        if not missing:  # only /proc is not the host's: sockets have no known owner then, and `doctor` reports it
            return HostAccess()
        why = f"{kubelet}: {error.strerror}" if isinstance(error, OSError) else str(error)
        advice = _ADVICE.format(folders=", ".join(missing))
        raise StartError(f"{missing[0]} is not the host's, and the agent cannot mount it: {why}: {advice}") from error
    os.environ[_MOVED] = json.dumps(asdict(access))
    return access


def host_names(point: str) -> list[str]:
    """The possible host paths of a folder that is mounted here: of /host/var, that and /var."""
    parts = PurePosixPath(point).parts[1:]
    return [f"/{'/'.join(parts[at:])}" for at in range(len(parts))]


def _find(kubelet: Path, patience: float) -> int:
    """A pidfd of the kubelet, which may be starting."""
    until = time.monotonic() + patience
    while True:
        try:
            return hostmounts.listener_of(kubelet)
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(_STEP)


def _mount(pidfd: int, folders: Sequence[str], points: Mapping[str, str], kubelet: Path) -> HostAccess:
    _check_host(pidfd, kubelet.parent)
    names = {folder: _host_path(pidfd, folder, point_of(folder, points)) for folder in folders}
    missing = [name for name in names.values() if point_of(name, points) is None]
    hostmounts.fetch(pidfd, dict.fromkeys(missing, _MODE))
    hidden = not hostmounts.is_seen(pidfd)
    if hidden:
        hostmounts.fetch_processes(pidfd)
    return HostAccess(names, tuple(missing), processes=hidden)


def _check_host(pidfd: int, plugins: Path) -> None:
    """Raise HostAccessError if the kubelet sees other folders than the host, as in a container of its own."""
    here = plugins.stat()
    if hostmounts.identities(pidfd, [str(plugins)]).get(str(plugins)) != (here.st_dev, here.st_ino):
        raise HostAccessError(f"{plugins} is another folder for the kubelet: does it run in a container?")


def _host_path(pidfd: int, folder: str, point: str | None) -> str:
    """The host path of a folder. One that is not mounted here has the same path on the host."""
    if point is None:
        return folder
    here = os.stat(point)
    found = hostmounts.identities(pidfd, host_names(point))
    for name in host_names(point):
        if found.get(name) == (here.st_dev, here.st_ino):
            return os.path.join(name, os.path.relpath(os.path.realpath(folder), point)).removesuffix("/.")
    raise HostAccessError(f"no folder of the host with a path like {point} is the one mounted there")
