"""Reads what one machine shows of its daemon: driver, shim, socket, folders, port. machine.py judges it.

Nothing is changed, and nothing here may fail: what cannot be read becomes a `..._problem`.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

import aliquot
from aliquot.adapters.gpu import player
from aliquot.adapters.gpu.page import VERSION
from aliquot.adapters.host.control import AnswerError, ControlError, NoDaemonError, ask
from aliquot.adapters.host.home import Home, HomeError
from aliquot.adapters.host.process import ourselves
from aliquot.model.status.machine import Status

PORT = 9478  # of the dashboard, unless --listen says otherwise
_PATIENCE = 10.0
_DRIVER = Path("/proc/driver/nvidia/version")
_DEVICE = "/dev/nvidiactl"
# Loads the shim as a tenant does, and prints which version it is.
_LOAD = "import ctypes, sys; print(ctypes.c_uint32.in_dll(ctypes.CDLL(sys.argv[1]), 'aliquot_abi_version').value)"


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder or file of the daemon."""

    path: str
    mode: int = 0
    uid: int = 0
    free: int = 0  # bytes on its disk
    inodes: int | None = None  # left there; None: no limit
    read_only: bool = False
    is_folder: bool = True


@dataclass(frozen=True, slots=True)
class MachineSite:
    """All that was seen. A `..._problem` is a sentence on why there is no more; None: there is."""

    home: Home
    uid: int  # ours
    version: str = aliquot.__version__
    home_problem: str | None = None
    unmakeable: str | None = None  # why the folders of a daemon cannot be made
    status: Status | None = None
    no_daemon: bool = False
    daemon_problem: str | None = None
    socket_mode: int | None = None
    driver: str | None = None
    device_problem: str | None = None
    nvml_problem: str | None = None
    nvml_cards: int = 0
    shim: str = ""
    shim_problem: str | None = None
    shim_version: int | None = None
    wanted_version: int = VERSION
    shim_hidden: str | None = None  # the folder that other users cannot pass
    entries: tuple[Entry, ...] = ()
    port_problem: str | None = None


def look(homes: Sequence[Home]) -> MachineSite:
    """At the first home with a daemon, else at the one where a daemon of this user would be."""
    home, status, no_daemon, daemon_problem = _daemon(homes)
    simulated = status is not None and bool(status.daemon.simulated)
    nvml_cards, nvml_problem = (0, None) if simulated else _nvml()
    shim_version, shim_problem = _load(player.shim())
    url = status.daemon.dashboard if status is not None else None
    return MachineSite(
        home,
        os.geteuid(),
        home_problem=_home_problem(home),
        unmakeable=_unmakeable(home),
        status=status,
        no_daemon=no_daemon,
        daemon_problem=daemon_problem,
        socket_mode=_mode(home.control),
        driver=_driver(),
        device_problem=_device_problem(),
        nvml_problem=nvml_problem,
        nvml_cards=nvml_cards,
        shim=player.shim(),
        shim_problem=shim_problem,
        shim_version=shim_version,
        shim_hidden=_hidden(player.shim()),
        entries=tuple(_entries(home)),
        port_problem=_unreachable(str(url)) if url else _taken() if status is None else None,
    )


def _daemon(homes: Sequence[Home]) -> tuple[Home, Status | None, bool, str | None]:
    for home in homes:
        try:
            return home, msgspec.convert(ask([home], {"op": "status"}, _PATIENCE), Status), False, None
        except NoDaemonError:
            continue
        except (ControlError, AnswerError, TimeoutError, msgspec.ValidationError) as error:
            return home, None, False, str(error) or "it does not answer"
    return homes[-1], None, True, None


def _home_problem(home: Home) -> str | None:
    try:
        home.check()
    except HomeError as error:
        return str(error)
    return None


def _mode(path: str) -> int | None:
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return None


def _driver() -> str | None:
    """As in `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ...`."""
    try:
        line = _DRIVER.read_text(errors="replace").splitlines()[0]
    except (OSError, IndexError):
        return None
    return next((word for word in line.split() if word[:1].isdigit() and "." in word), line)


def _device_problem() -> str | None:
    if not os.path.exists(_DEVICE):
        return f"{_DEVICE} is not there"
    return None if os.access(_DEVICE, os.R_OK | os.W_OK) else f"{_DEVICE}: Permission denied"


def _nvml() -> tuple[int, str | None]:
    from aliquot.adapters.gpu.nvml import Nvml, NvmlError

    try:
        nvml = Nvml()
        try:
            return len(nvml.cards()), None
        finally:
            nvml.close()
    except NvmlError as error:
        return 0, str(error)


def _load(path: str) -> tuple[int | None, str | None]:
    """The shim's version. In a process of its own: this one must not have the shim in it."""
    if not os.path.exists(path):
        return None, "it is not there"
    try:
        done = subprocess.run(  # noqa: S603 - ourselves
            ourselves.code(_LOAD, path), capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode == 0 and done.stdout.strip().isdigit():
        return int(done.stdout), None
    lines = done.stderr.strip().splitlines()
    if lines and "undefined symbol" in lines[-1]:
        return 0, None  # of a release that did not say
    return None, lines[-1] if lines else f"exit code {done.returncode}"


def _unmakeable(home: Home) -> str | None:
    for folder in map(Path, dict.fromkeys((home.run, home.state))):
        there = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), Path("/"))
        if not there.is_dir():
            return f"cannot be made: {there} is not a folder"
        if there != folder and not os.access(there, os.W_OK | os.X_OK):
            return f"cannot be made: you may not write to {there}"
    return None


def _hidden(path: str) -> str | None:
    for folder in Path(path).resolve().parents:
        if not (_mode(str(folder)) or 0) & 0o001:
            return str(folder)
    return None


def _entries(home: Home) -> list[Entry]:
    paths = (home.run, home.state, home.tenants, home.logs, home.database, home.lock, home.daemon_log, home.player_log)
    found = []
    for path in dict.fromkeys(paths):
        try:
            seen = os.stat(path)
            disk = os.statvfs(path)
        except OSError:  # not made yet, or not for us to see
            continue
        found.append(
            Entry(
                path,
                stat.S_IMODE(seen.st_mode),
                seen.st_uid,
                disk.f_bavail * disk.f_frsize,
                disk.f_favail if disk.f_files else None,
                bool(disk.f_flag & os.ST_RDONLY),
                stat.S_ISDIR(seen.st_mode),
            )
        )
    return found


def _unreachable(url: str) -> str | None:
    address, _, port = url.partition("//")[2].rstrip("/").rpartition(":")
    try:
        socket.create_connection((address.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except (OSError, ValueError) as error:
        return f"{url} does not answer: {error}"
    return None


def _taken() -> str | None:
    try:
        socket.create_server(("127.0.0.1", PORT)).close()
    except OSError as error:
        return f"127.0.0.1:{PORT}: {os.strerror(error.errno) if error.errno else error}"
    return None
