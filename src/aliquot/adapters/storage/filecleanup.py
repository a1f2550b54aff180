"""What an agent leaves on its host, taken away: sockets, folders of Pods, CDI specs, the database, the shim.

Nothing that others made is touched: files of ours have names of their own where a folder is shared. A player of
simulated cards that still answers is no part of the agent, and stays with its two files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aliquot.adapters.host.home import SYSTEM_RUN, SYSTEM_STATE, Home
from aliquot.adapters.storage.database import FOREIGN
from aliquot.adapters.storage.podstore import examine

_SOCKETS = "aliquot-*.sock"
_SPECS = ("aliquot.*.yaml", ".aliquot-*")
_VENDOR_STATE = "/var/lib/qgpu"  # where the vendor's DaemonSet has the database (--dbfile), if it is ours
_IN_VENDOR_STATE = {"shim", "meta.db", "meta.db-wal", "meta.db-shm", "player.log"}  # beside what the vendor left there
_OF_PODS = ("t", "a", "shim")  # what containers that run have mounted, or find again when they restart


class SweepError(Exception):
    """It cannot be taken away; the message says what to do."""


@dataclass(slots=True)
class Swept:
    """By their names on the host."""

    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def sweep(root: Path, *, keep_running: bool, kubelet: Path = Path("/var/lib/kubelet")) -> Swept:
    """All of it, where `root` is the host's root folder; with `keep_running` all that no container needs.

    Raises SweepError. Saying it twice changes nothing.
    """
    run, state = (root / Path(each).relative_to("/") for each in (SYSTEM_RUN, SYSTEM_STATE))
    swept = Swept()
    try:
        _refuse_held(Home(str(run), str(state)))
        for path in _doomed(root, run, state, kubelet):
            shown = f"/{path.relative_to(root)}"
            if (keep_running and (path.name in _OF_PODS or path.suffix == ".yaml")) or _is_played(path):
                swept.kept.append(shown)
                continue
            _remove(path)
            swept.removed.append(shown)
        for folder in (run, state, root / Path(_VENDOR_STATE).relative_to("/")):
            with contextlib.suppress(OSError):  # what is kept is in it, or it is a mount of somebody's
                folder.rmdir()
    except OSError as error:
        raise SweepError(
            f"{error.filename}: {error.strerror}: run it as root, with the host's folders mounted"
        ) from error
    return swept


def _doomed(root: Path, run: Path, state: Path, kubelet: Path) -> Iterator[Path]:
    for folder in (run, state):
        if folder.is_dir():
            yield from sorted(folder.iterdir())
    vendors = root / Path(_VENDOR_STATE).relative_to("/")
    if (vendors / "shim").is_dir() and examine(vendors / "meta.db") != FOREIGN:
        yield from sorted(path for path in vendors.iterdir() if path.name in _IN_VENDOR_STATE)
    yield from sorted((root / kubelet.relative_to("/") / "device-plugins").glob(_SOCKETS))
    for pattern in _SPECS:
        yield from sorted((root / "var/run/cdi").glob(pattern))


def _refuse_held(home: Home) -> None:
    """Whoever holds the lock would make it all anew."""
    try:
        handle = os.open(home.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        who = os.read(handle, 32).decode(errors="replace").strip() or "?"
        raise SweepError(f"an agent, or `aliquot up`, runs on this host (pid {who}): end it first") from error
    finally:
        os.close(handle)


def _is_played(path: Path) -> bool:
    """Whether it is of a player that answers."""
    if path.name not in ("player.json", "player.sock"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(str(path.with_name("player.sock")))
        except OSError:
            return False
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
