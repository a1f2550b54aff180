"""Reads what a node shows of its agent: sockets, folders, files.

agent.py and holdings.py judge it. Nothing is changed, and nothing here may fail: what cannot be read becomes a
`..._problem`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from aliquot.adapters.host.home import SYSTEM_RUN, SYSTEM_STATE, Home
from aliquot.adapters.storage.folders import ASIDE
from aliquot.model.containers.edits import Spec
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.device import Card
from aliquot.model.status.machine import DaemonStatus, Status

_PATIENCE = 5.0  # seconds for one answer
_SETTLES = 3.0  # seconds in which a running agent has put away what a Pod left behind
_LOOK = 0.5


@dataclass(frozen=True, slots=True)
class Places:
    """Where an agent's files are, by default or by its options. `cdi` None: the agent does without CDI."""

    run: Path = Path(SYSTEM_RUN)
    database: Path = Path(SYSTEM_STATE, "state.db")
    kubelet: Path = Path("/var/lib/kubelet")
    cdi: Path | None = Path("/var/run/cdi")
    preload: Path = Path("/etc/ld.so.preload")  # the host's


@dataclass(frozen=True, slots=True)
class Disk:
    """What holds a folder."""

    path: str
    free: int  # bytes
    inodes: int | None  # left; None where there is no limit
    kind: str  # tmpfs, ext4


@dataclass(frozen=True, slots=True)
class Held:
    """A container that holds devices, by the kubelet: how many of each resource."""

    namespace: str
    pod: str
    container: str
    amounts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Site:
    """All that was seen. A `..._problem` is a sentence on why there is no more; None: there is."""

    node_name: str
    places: Places
    kubelet_problem: str | None = None
    agent: Status | None = None
    agent_problem: str | None = None
    lock_holder: int | None = None  # the pid that holds the lock
    processes: Mapping[str, int] | None = None  # of each Pod, as the agent sees them
    cdi_problem: str | None = None
    cdi_there: bool = True  # the folder, however it is
    specs: tuple[Spec, ...] = ()
    absent: frozenset[str] = frozenset()  # host paths that a spec mounts and that are not there
    folders: frozenset[str] = frozenset()  # UIDs that have a folder
    links: Mapping[str, str] = field(default_factory=dict)  # names by which containers without CDI get there, and UIDs
    held: tuple[Held, ...] | None = None
    held_problem: str | None = None
    database_problem: str | None = None
    database_foreign: bool = False  # another program's
    shim_problem: str | None = None
    preloaded: str = ""  # what the host's own ld.so.preload says
    nvml_cards: tuple[Card, ...] | None = None  # where the agent reports none
    nvml_problem: str | None = None
    disks: tuple[Disk, ...] = field(default_factory=tuple)


def look(places: Places, node_name: str | None) -> Site:
    """Look at everything but the API server's objects."""
    from aliquot.adapters.storage import podstore, shims
    from aliquot.adapters.storage.database import FOREIGN

    agent, problem = _known(*_ask(places.run, "status"))
    daemon = agent.daemon if agent else DaemonStatus(pid=0)
    places = _as_reported(places, daemon)
    name = node_name or daemon.node or os.environ.get("NODE_NAME") or socket.gethostname().lower()
    database_problem = podstore.examine(places.database)
    site = Site(
        str(name),
        places,
        kubelet_problem=_listens(places.kubelet / "device-plugins" / "kubelet.sock"),
        agent=agent,
        agent_problem=problem,
        lock_holder=lock_holder(Path(Home(str(places.run), "").lock)),
        processes=_processes(places.run) if agent and agent.agent else None,
        database_problem=database_problem,
        database_foreign=database_problem == FOREIGN,
        shim_problem=shims.examine(places.database.parent),
        preloaded=_preloaded(places.preload),
        disks=tuple(_disks(places)),
    )
    return with_leftovers(_with_nvml(_with_held(site)))


def with_leftovers(site: Site) -> Site:
    """The same with the specs and folders there are now."""
    specs, problem = _specs(site.places.cdi)
    mounts = {mount.host for spec in specs for mount in spec.edits.mounts}
    return replace(
        site,
        specs=specs,
        cdi_problem=problem,
        cdi_there=site.places.cdi is not None and site.places.cdi.is_dir(),
        absent=frozenset(mount for mount in mounts if not os.path.exists(mount)),
        folders=_folders(site.places.run / "t"),
        links=_links(site.places.run / "a"),
    )


def settled(site: Site, living: frozenset[str], sleep: Callable[[float], None] = time.sleep) -> Site:
    """The same, with what an agent at work puts away in a moment put away: Pods end while we look."""

    def suspect(seen: Site) -> bool:
        return bool(({spec.pod_uid for spec in seen.specs} | seen.folders | {*seen.links.values()}) - living)

    first = site
    for _ in range(int(_SETTLES / _LOOK)):
        if not suspect(site):
            break
        sleep(_LOOK)
        site = with_leftovers(site)
    # What came only now is of Pods that were made after we asked for them.
    known = {spec.name for spec in first.specs}
    specs = tuple(spec for spec in site.specs if spec.name in known)
    links = {name: uid for name, uid in site.links.items() if first.links.get(name) == uid}
    return replace(site, specs=specs, folders=site.folders & first.folders, links=links)


# --- readers of single things ----------------------------------------------------------------------------------------


def _ask(run: Path, operation: str) -> tuple[JsonObject | None, str | None]:
    from aliquot.adapters.host.control import AnswerError, ControlError, NoDaemonError, ask

    try:
        return ask([Home(str(run), str(run))], {"op": operation}, _PATIENCE), None
    except NoDaemonError:
        return None, f"no program listens on {run}/control.sock"
    except (ControlError, AnswerError) as error:
        return None, str(error)


def _known(answer: JsonObject | None, problem: str | None) -> tuple[Status | None, str | None]:
    """An agent of another release may answer in another form."""
    if answer is None:
        return None, problem
    try:
        return msgspec.convert(answer, Status), None
    except msgspec.ValidationError as error:
        return None, f"its answer cannot be read ({error}): run the doctor of the agent's own release"


def _as_reported(places: Places, daemon: DaemonStatus) -> Places:
    """A running agent knows best where its things are."""
    folders = {"database": daemon.database, "kubelet": daemon.kubelet, "cdi": daemon.cdi}
    found = {name: Path(folder) for name, folder in folders.items() if folder}
    if daemon.node and daemon.cdi is None:
        return replace(places, **found, cdi=None)
    return replace(places, **found)


def _processes(run: Path) -> Mapping[str, int] | None:
    found, _ = _ask(run, "processes")
    return None if found is None else found.get("pods")


def _listens(path: Path) -> str | None:
    """What is wrong with a socket; None: a server listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.settimeout(_PATIENCE)
        try:
            knock.connect(str(path))
        except FileNotFoundError:
            return f"{path} is not there"
        except ConnectionRefusedError:
            return f"no program listens on {path}"
        except OSError as error:
            if error.errno is None and not path.exists():  # the path is also too long for a socket
                return f"{path} is not there"
            return f"{path}: {error.strerror or error}"
    return None


def lock_holder(path: Path, locks: Path = Path("/proc/locks")) -> int | None:
    """The pid that holds the lock on a file. Read, not tried: a try could keep a starting agent from its lock."""
    try:
        inode = str(path.stat().st_ino)
        lines = locks.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()  # 1: FLOCK  ADVISORY  WRITE 4711 00:1b:1234 0 EOF
        if len(words) >= 6 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode and words[4].isdigit():
            return int(words[4])
    return None


def _specs(folder: Path | None) -> tuple[tuple[Spec, ...], str | None]:
    """By reading alone: the folder is the agent's to sweep."""
    from aliquot.dialects.wire.cdi import parse_spec

    if folder is None:
        return (), None
    found = []
    try:
        for path in sorted(folder.glob("aliquot.*.yaml")):
            try:
                found.append(parse_spec(path.read_bytes()))
            except FileNotFoundError:
                continue
        if not folder.is_dir():
            return (), f"{folder} is not there"
        if not os.access(folder, os.W_OK):
            return (), f"{folder} cannot be written"
    except OSError as error:
        return (), f"{error.filename or folder}: {error.strerror}"
    return tuple(spec for spec in found if spec is not None), None


def _folders(tenants: Path) -> frozenset[str]:
    try:
        return frozenset(path.name for path in tenants.iterdir() if path.is_dir() and not path.name.startswith(ASIDE))
    except OSError:
        return frozenset()


def _links(folder: Path) -> dict[str, str]:
    try:
        return {path.name: path.readlink().name for path in folder.iterdir() if path.is_symlink()}
    except OSError:
        return {}


def _with_held(site: Site) -> Site:
    from aliquot.adapters.kubelet.channel import KubeletError
    from aliquot.adapters.kubelet.holders import Kubelet

    async def ask() -> tuple[Held, ...]:
        kubelet = Kubelet(site.places.kubelet)
        try:
            return tuple(
                Held(
                    holder.namespace,
                    holder.name,
                    holder.container,
                    {key: len(ids) for key, ids in holder.devices.items()},
                )
                for holder in await kubelet.holders()
            )
        finally:
            await kubelet.close()

    if site.kubelet_problem is not None:
        return replace(site, held_problem="the kubelet does not run")
    try:
        return replace(site, held=asyncio.run(ask()))
    except KubeletError as error:
        return replace(site, held_problem=str(error))


def _with_nvml(site: Site) -> Site:
    """Asked only where no agent reports them, and in a thread: a driver that hangs must not hang us."""
    if site.agent is not None or os.path.exists(Home(str(site.places.run), "").player):
        return site  # the agent reports them, or the cards are simulated
    from aliquot.adapters.gpu.nvml import Nvml, NvmlError

    answer: JsonObject = {"nvml_problem": f"NVML did not answer within {_PATIENCE:g} s"}

    def ask() -> None:
        try:
            answer.update(nvml_cards=Nvml().cards(), nvml_problem=None)
        except NvmlError as error:
            answer.update(nvml_problem=str(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return replace(site, **answer)


def _preloaded(path: Path) -> str:
    """The host's, also from inside the agent's container, which sees the host's first process."""
    for candidate in (Path("/proc/1/root") / path.relative_to("/"), path):
        try:
            return candidate.read_text(errors="replace")
        except OSError:
            continue
    return ""


def _disks(places: Places) -> list[Disk]:
    mounts = _mounts()
    found = []
    for path in dict.fromkeys((places.run, places.database.parent, *((places.cdi,) if places.cdi else ()))):
        try:
            seen = os.statvfs(path)
        except OSError:
            continue
        kind = next((kind for place, kind in mounts if path.resolve().is_relative_to(place)), "")
        inodes = seen.f_favail if seen.f_files else None
        found.append(Disk(str(path), seen.f_bavail * seen.f_frsize, inodes, kind))
    return found


def _mounts() -> list[tuple[str, str]]:
    """Place and kind, the deepest first."""
    try:
        lines = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return []
    mounts = ((words[1], words[2]) for words in (line.split() for line in lines))
    return sorted(mounts, key=lambda mount: -len(mount[0]))


# --- the API server, by the account of the Pod we are in -------------------------------------------------------------


def own_objects(node_name: str) -> tuple[JsonObject, list[JsonObject]]:
    """The Node and its Pods, where there is no kubectl: in the agent's own container. Raises OwnAccountError."""
    from aliquot.adapters.kubernetes.kube import ApiError, Kube, KubeConfigError, Unreachable, find_server

    async def ask() -> tuple[JsonObject, list[JsonObject]]:
        async with Kube(find_server(), agent="aliquot-doctor") as kube:
            node = await kube.get(f"/api/v1/nodes/{node_name}", into=JsonObject)
            selector = {"fieldSelector": f"spec.nodeName={node_name}"}
            pods = await kube.get("/api/v1/pods", params=selector, into=JsonObject)
        return {**node, "kind": "Node"}, [{**item, "kind": "Pod"} for item in pods.get("items") or []]

    try:
        return asyncio.run(ask())
    except (KubeConfigError, Unreachable) as error:
        raise OwnAccountError(str(error)) from error
    except ApiError as error:
        raise OwnAccountError(error.message) from error


class OwnAccountError(Exception):
    """The API server does not answer us either."""
