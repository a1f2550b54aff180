"""Installs the shim on the host, from where containers mount it. Pods keep their version: several exist side by side.

    shim/0.1.0-3f2a9c1e/libaliquot.so    what is mounted into containers
                        ld.so.preload    lists it by its path in the container
    shim/current                         link to the version that new containers get

A version is written to a folder of another name and renamed, so that it is complete or absent. It never changes
afterwards: its name has a hash of its contents.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIBRARY = "libaliquot.so"
PRELOAD = "ld.so.preload"
IN_CONTAINERS = "/usr/local/lib/aliquot"  # where the libraries are, as containers see them

_CURRENT = "current"
_DRAFT = ".new-"
_STALE = 3600.0  # seconds after which a draft is left over from a killed installer
_MACHINES = {62: "x86_64", 183: "aarch64", 3: "i386", 40: "arm", 21: "ppc64le", 22: "s390x", 243: "riscv64"}
_WHAT_TO_DO = {
    errno.ENOSPC: "free some space on that disk",
    errno.EROFS: "mount the host's folder writable",
    errno.EACCES: "run this as root",
    errno.EPERM: "run this as root",
}


class ShimError(Exception):
    """The shim cannot be installed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A version on the host. `fresh`: it was not installed before."""

    folder: Path
    fresh: bool

    @property
    def library(self) -> Path:
        """What is mounted at IN_CONTAINERS/libaliquot.so."""
        return self.folder / LIBRARY

    @property
    def preload(self) -> Path:
        """What is mounted at /etc/ld.so.preload."""
        return self.folder / PRELOAD


def install(
    source: Path,
    state: Path,
    version: str,
    *,
    more: Sequence[str] = (),
    beside: Sequence[str] = (),
    machine: str | None = None,
) -> Installed:
    """Install the libraries of `source` under `state` for new containers. Idempotent. Raises ShimError.

    `more` are preloaded after the shim, in this order; `beside` are only installed. Both are paths in `source` and are
    installed under their last part. `machine` is the host's architecture, as of uname.
    """
    try:
        contents = {Path(name).name: _library(source / name, machine) for name in (LIBRARY, *more, *beside)}
        preloaded = (LIBRARY, *(Path(name).name for name in more))
        contents[PRELOAD] = "".join(f"{IN_CONTAINERS}/{name}\n" for name in preloaded).encode()
        versions = state / "shim"
        versions.mkdir(parents=True, exist_ok=True)
        folder = versions / f"{version}-{_hash(contents)}"
        fresh = not _holds(folder, contents)
        if fresh:
            _put(folder, contents)
        _link(versions / _CURRENT, folder.name)
    except OSError as error:
        advice = _WHAT_TO_DO.get(error.errno or 0)
        why = f"{error.filename or state}: {error.strerror or error}"
        raise ShimError(f"{why}: {advice}" if advice else why) from error
    return Installed(folder, fresh)


def sweep(state: Path, keep: Collection[Path]) -> list[str]:
    """Remove the versions that are neither in `keep` nor current. Returns their names."""
    versions = state / "shim"
    kept = {folder.name for folder in keep}
    with contextlib.suppress(OSError):
        kept.add(os.readlink(versions / _CURRENT))
    removed = []
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(versions.iterdir()):
            if path.name.startswith(_DRAFT):
                if time.time() - path.lstat().st_mtime > _STALE:  # a younger one may be in use
                    _remove(path)
            elif path.name not in {*kept, _CURRENT}:
                _remove(path)
                removed.append(path.name)
    return removed


def examine(state: Path, *, machine: str | None = None) -> str | None:
    """What is wrong with the version that new containers get; None: nothing."""
    current = state / "shim" / _CURRENT
    try:
        os.readlink(current)
        _library(current / LIBRARY, machine)
        named = (current / PRELOAD).read_text().split()
    except ShimError as error:
        return str(error).partition(": build it")[0]
    except OSError as error:
        return f"{error.filename or current}: {error.strerror or error}"
    here = [f"{IN_CONTAINERS}/{path.name}" for path in current.iterdir()]
    lost = next((name for name in named if name not in here), None)
    return None if lost is None else f"{current / PRELOAD} names {lost}, which is missing in the same folder"


def _remove(path: Path) -> None:
    """A folder or a link."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _library(path: Path, machine: str | None) -> bytes:
    """Its bytes, if it is for this host: a library of another architecture stops every program of a container."""
    host = machine or platform.machine()
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ShimError(f"{path} is not there: build it with `make native`") from error
    if data[:4] != b"\x7fELF" or len(data) < 64:
        raise ShimError(f"{path} is not an ELF library: build it again with `make native`")
    number = int.from_bytes(data[18:20], "little" if data[5] == 1 else "big")
    built_for = _MACHINES.get(number, f"machine {number}")
    if built_for != host:
        raise ShimError(f"{path} is for {built_for}, and this host is {host}: use the package or the image for {host}")
    return data


def _hash(contents: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name, data in sorted(contents.items()):
        whole.update(f"{name} {len(data)}\n".encode() + data)
    return whole.hexdigest()[:8]


def _holds(folder: Path, contents: Mapping[str, bytes]) -> bool:
    """Whether the folder has exactly these contents."""
    try:
        return all((folder / name).read_bytes() == data for name, data in contents.items())
    except OSError:
        return False


def _put(folder: Path, contents: Mapping[str, bytes]) -> None:
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=folder.parent))
    damaged = draft.with_name(f"{draft.name}-damaged")
    try:
        for name, data in contents.items():
            with open(draft / name, "wb") as file:
                os.fchmod(file.fileno(), 0o644 if name == PRELOAD else 0o755)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        draft.chmod(0o755)
        _sync(draft)
        with contextlib.suppress(FileNotFoundError):  # damaged: containers keep the files that they have mounted
            folder.rename(damaged)
        try:
            draft.rename(folder)
        except OSError:
            if not _holds(folder, contents):  # another installer was faster
                raise
        _sync(folder.parent)
    finally:
        for leftover in (draft, damaged):
            shutil.rmtree(leftover, ignore_errors=True)


def _link(link: Path, target: str) -> None:
    """Replace the link atomically."""
    with contextlib.suppress(OSError):
        if os.readlink(link) == target:
            return
    fresh = link.with_name(f"{_DRAFT}{link.name}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    try:
        fresh.replace(link)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    _sync(link.parent)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
