"""Removes what an agent leaves on its host: sockets, folders of Pods, CDI specs, the database, the shim, the
pool.

Files of other programs are not touched: in shared folders our files have distinct names. A simulator of cards that
still runs is not part of the agent and keeps its two files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aliquot.adapters.host.home import (
    POOLS,
    RUN_IN_PLUGINS,
    STATE_IN_PLUGINS,
    SYSTEM_RUN,
    SYSTEM_STATE,
    Home,
    pool_name,
)
from aliquot.adapters.storage.database import FOREIGN
from aliquot.adapters.storage.folders import remove_whole
from aliquot.adapters.storage.podstore import examine

_SOCKETS = "aliquot-*.sock"
_REGISTRATIONS, _DRA_FOLDER = "aliquot.dev-*-reg.sock", "aliquot.dev"  # adapters/kubelet/draplugin.py
_SPECS = ("aliquot.*.yaml", ".aliquot-*")
_VENDOR_STATE = "/var/lib/qgpu"  # database folder (--dbfile) of the vendor's DaemonSet, if it runs our agent
_IN_VENDOR_STATE = {  # next to the vendor's own files
    "shim", "player.log", "mover.log", "mover.log.1", "control.json",
    *(f"{name}{end}" for name in ("meta.db", "usage.db") for end in ("", "-wal", "-shm"))
}  # fmt: skip
_OF_PODS = ("t", "a", "shim")  # mounted by running containers, or needed when they restart


class SweepError(Exception):
    """Something cannot be removed; the message says what to do."""


@dataclass(slots=True)
class SweepResult:
    """Paths on the host."""

    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def sweep(root: Path, *, keep_running: bool, kubelet: Path = Path("/var/lib/kubelet")) -> SweepResult:
    """Remove all of it; with `keep_running` only what no container needs. `root` is the host's root folder.

    Idempotent. Raises SweepError.
    """
    plugins = kubelet / "device-plugins"
    places = (SYSTEM_RUN, SYSTEM_STATE, plugins / RUN_IN_PLUGINS, plugins / STATE_IN_PLUGINS)
    folders = [root / Path(folder).relative_to("/") for folder in places]
    swept = SweepResult()
    try:
        for run, state in (folders[:2], folders[2:]):
            _refuse_held(Home(str(run), str(state)))
        for path in _leftovers(root, folders, kubelet):
            shown = f"/{path.relative_to(root)}"
            needed = path.name in _OF_PODS or path.suffix == ".yaml" or _keeps_memory(path)
            if (keep_running and needed) or _is_simulator(path):
                swept.kept.append(shown)
                continue
            _remove(path)
            swept.removed.append(shown)
        for folder in (*folders, folders[2].parent, root / Path(_VENDOR_STATE).relative_to("/")):
            with contextlib.suppress(OSError):  # not empty, or a mount point
                folder.rmdir()
    except OSError as error:
        raise SweepError(
            f"{error.filename}: {error.strerror}: run this as root, with the host's folders mounted"
        ) from error
    return swept


def _leftovers(root: Path, folders: Sequence[Path], kubelet: Path) -> Iterator[Path]:
    for folder in folders:
        if folder.is_dir():
            yield from sorted(folder.iterdir())
    vendors = root / Path(_VENDOR_STATE).relative_to("/")
    if (vendors / "shim").is_dir() and examine(vendors / "meta.db") != FOREIGN:
        yield from sorted(path for path in vendors.iterdir() if path.name in _IN_VENDOR_STATE)
    sockets = root / kubelet.relative_to("/")
    yield from sorted((sockets / "device-plugins").glob(_SOCKETS))
    yield from sorted((sockets / "plugins_registry").glob(_REGISTRATIONS))
    yield from sorted((sockets / "plugins").glob(_DRA_FOLDER))
    for pattern in _SPECS:
        yield from sorted((root / "var/run/cdi").glob(pattern))
    pools = root / Path(POOLS).relative_to("/")
    for state in (folders[1], folders[3], vendors):  # agents run as root
        pool = pools / pool_name(f"/{state.relative_to(root)}", 0)
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(pool)  # every user may make folders there: one that is not the agent's stays
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                yield pool


def _refuse_held(home: Home) -> None:
    """Raise SweepError while a daemon holds the lock: it would create everything again."""
    try:
        handle = os.open(home.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        pid = os.read(handle, 32).decode(errors="replace").strip() or "?"
        raise SweepError(f"an agent, or `aliquot up`, runs on this host (pid {pid}): stop it first") from error
    finally:
        os.close(handle)


def _keeps_memory(path: Path) -> bool:
    """Whether it is a pool with memory of Pods that are parked."""
    return (path / "parked").is_dir() and any((path / "parked").iterdir())


def _is_simulator(path: Path) -> bool:
    """Whether it belongs to a simulator that answers."""
    if path.name not in ("player", "player.json", "player.state"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(str(path.with_name("player") / "sock"))
        except OSError:
            return False
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_whole(path)  # Pods' processes may have put anything there
    else:
        path.unlink(missing_ok=True)
