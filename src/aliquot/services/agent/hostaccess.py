"""Gives an agent in a container access to host folders and processes that its Pod does not mount.

The vendor's DaemonSet mounts the host's /var at /host/var, does not mount /run, and has its own PID namespace. But it
is privileged, which is enough to mount the rest. A container that has all it needs is left as it is.

gpushare's DaemonSet has no privilege, and of the host only the kubelet's device-plugins folder. There the agent uses
folders in that one, which the kubelet leaves alone, and goes on with less isolation: the log names what is missing,
what it means and the lines to add.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from aliquot.adapters.host import hostmounts
from aliquot.adapters.host.home import RUN_IN_PLUGINS, STATE_IN_PLUGINS
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
_VOLUME = (
    "under volumes: - {{name: {name}, hostPath: {{path: {path}, type: DirectoryOrCreate}}}}; "
    "under volumeMounts: - {{name: {name}, mountPath: {path}}}"
)
OWN_IDS = (
    "the agent's container has its own PID namespace: the processes of tenants are read from the host's /proc, but the "
    "driver of a real card does not report those of other Pods. Driver overhead is then not counted and unknown "
    "processes are not found: set hostPID: true in the DaemonSet"
)


@dataclass(frozen=True, slots=True)
class Lack:
    """Something of the host that the agent's Pod does not have."""

    missing: str
    effect: str
    add: str  # the lines of the DaemonSet


@dataclass(frozen=True, slots=True)
class HostAccess:
    """The host folders and processes that the agent mounted by itself."""

    names: Mapping[str, str] = field(default_factory=dict)  # host path of each folder, which now works here, too
    mounted: tuple[str, ...] = ()  # host paths that no volume had
    processes: bool = False  # /proc is the host's, though our PID namespace is not
    lacking: tuple[Lack, ...] = ()

    def name(self, folder: str) -> str:
        """The path to use from now on."""
        return self.names.get(folder, folder)

    def log(self) -> None:
        """Log it; call this once logging is set up."""
        for lack in self.lacking:
            log.warning("host_access_missing", extra={"data": asdict(lack)})
        if self.names and not self.lacking:
            renamed = {folder: name for folder, name in self.names.items() if folder != name}
            log.info("host_paths_mounted", extra={"data": {"mounted": self.mounted, "renamed": renamed}})


def acquire_host_access(
    folders: Sequence[str], kubelet: Path, *, cdi: str | None = None, mountinfo: Path = Path("/proc/self/mountinfo")
) -> HostAccess:
    """Make all folders those of the host, at their host paths. Raises StartError.

    The first two are the agent's run and state folders. `kubelet` is the kubelet's socket, `cdi` the one of the folders
    that the agent can do without. Outside a Pod, or with the host's own root, there is nothing to do.
    """
    if _MOVED in os.environ:
        found = json.loads(os.environ[_MOVED])
        lacking = tuple(Lack(**lack) for lack in found.get("lacking", ()))
        return HostAccess(found["names"], tuple(found["mounted"]), found["processes"], lacking)
    mounts = mountinfo.read_text()
    points = mount_points(mounts)
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
        replaceable = all(folder in folders[:2] or folder == cdi for folder in missing)
        if replaceable and is_at_host_path(str(kubelet.parent), mounts):
            access = _in_plugins_folder(folders, missing, kubelet, cdi)
            os.environ[_MOVED] = json.dumps(asdict(access))
            return access
        why = f"{kubelet}: {error.strerror}" if isinstance(error, OSError) else str(error)
        advice = _ADVICE.format(folders=", ".join(missing))
        raise StartError(f"{missing[0]} is not the host's, and the agent cannot mount it: {why}: {advice}") from error
    os.environ[_MOVED] = json.dumps(asdict(access))
    return access


def host_names(point: str) -> list[str]:
    """The possible host paths of a folder that is mounted here: of /host/var, that and /var."""
    parts = PurePosixPath(point).parts[1:]
    return [f"/{'/'.join(parts[at:])}" for at in range(len(parts))]


def is_at_host_path(folder: str, mounts: str) -> bool:
    """Whether the folder is mounted here at the path that it has on the host, as far as /proc/self/mountinfo says.

    That has the path in its file system: shorter where the host mounts the file system at a folder, and longer where
    the host's own root is a folder.
    """
    lines = [line.split() for line in mounts.splitlines()]
    inner = next((words[3] for words in reversed(lines) if words[4] == folder), None)
    return inner is not None and (inner.endswith(folder) or folder.endswith(inner))


def _in_plugins_folder(folders: Sequence[str], missing: Sequence[str], kubelet: Path, cdi: str | None) -> HostAccess:
    """Use folders of the one that every device plugin has, in the place of missing ones."""
    plugins = kubelet.parent
    names = {}
    for folder, name in zip(folders, (RUN_IN_PLUGINS, STATE_IN_PLUGINS), strict=False):
        if folder not in missing:
            continue
        names[folder] = str(plugins / name)
        with contextlib.suppress(OSError):  # for `aliquot top` and `doctor` in this container
            Path(folder).parent.mkdir(parents=True, exist_ok=True)
            Path(folder).symlink_to(names[folder])
    lacking = [_lack_folder(folder, f"{names[folder]} is used instead") for folder in names]
    if cdi in missing:
        effect = "containers have every card of the node, and the shim shows each its own; not to static programs"
        lacking.append(_lack_folder(str(cdi), effect))
    resources = str(plugins.parent / "pod-resources")
    if not Path(resources).is_dir():
        lacking.append(_lack_folder(resources, "the owner of a device is read from the kubelet's checkpoint file"))
    return HostAccess(names, lacking=(*lacking, *([] if _sees_host(kubelet) else [_OWN_NAMESPACE])))


def _sees_host(kubelet: Path) -> bool:
    """Whether the host's processes are visible here."""
    try:
        pidfd = hostmounts.listener_of(kubelet)
    except (HostAccessError, OSError):
        return False
    try:
        return hostmounts.is_seen(pidfd)
    finally:
        os.close(pidfd)


_OWN_NAMESPACE = Lack(
    "hostPID",
    "tenants are limited to their memory, not to their share of compute, and unknown processes are not found",
    "in the Pod's spec: hostPID: true",
)


def _lack_folder(path: str, effect: str) -> Lack:
    return Lack(path, effect, _VOLUME.format(name=path.strip("/").replace("/", "-"), path=path))


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
