"""Removes folders whose owners may have put anything into them: deep trees, many files, large files, links, mounts.

A small folder is gone when the call returns. A larger one is renamed aside at once, and a thread of its own removes it:
no caller, and no start of a daemon, waits for it or fails by it. What a killed process left aside is found by the next
one, which removes all folders that it does not know. The same for single files: the kernel takes 0.2 s to free 1 GiB.
Where no file is left to open a folder, it is put aside as well, and tried again.

What somebody has mounted over a folder, or within it, is never looked into (adapters/host/samemount.py): the server of
such a file system may never answer. If we are root, a second thread takes such mounts away: only folders with mounts
wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from aliquot.adapters.host import samemount
from aliquot.adapters.host.process.processes import is_shortage

_LOG = logging.getLogger(__name__)

ASIDE = ".removed."  # how the names of folders begin that are being removed
_AT_ONCE = 64  # files and folders that a caller removes itself
_BYTES_AT_ONCE = 4 << 20  # of all these files together
_AGAIN = 1.0  # seconds until the next attempt where no file is left
_LONGEST = 120.0  # seconds for one folder: its owner may fill it faster than we empty it
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def remove_folder(path: Path) -> None:
    """Remove the folder with all that is in it; the folder that it lies in must be ours. Never raises; logs what cannot
    be removed."""
    try:
        try:
            if _Emptying(path, most=_AT_ONCE, most_bytes=_BYTES_AT_ONCE).run():
                return
        except OSError as error:
            if not is_shortage(error):
                raise
        aside = path if path.name.startswith(ASIDE) else path.with_name(ASIDE + secrets.token_hex(8))
        if aside != path:
            os.rename(path, aside)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EBUSY) and os.geteuid() == 0:  # mounted before we looked, or after
            _unmounter.put(path)
        else:
            _log_left(path, str(error))
        return
    _remover.put(aside)


def remove_file(path: Path) -> None:
    """Remove what has this name, which is no folder, in a folder of ours. Raises OSError."""
    if not put_aside_if_large(path):
        path.unlink()


def put_aside_if_large(path: Path) -> bool:
    """Whether this was a large file. Then nothing has this name now, and the thread removes it. Raises OSError."""
    if _size(samemount.lstat(path)) <= _BYTES_AT_ONCE:
        return False
    aside = path.with_name(ASIDE + secrets.token_hex(8))
    os.rename(path, aside)
    _remover.put(aside)
    return True


def _size(found: os.stat_result) -> int:
    """Bytes that are freed with it."""
    return found.st_blocks * 512 if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 else 0


def remove_whole(path: Path) -> None:
    """Remove the folder with all that is in it, and return once it is gone. Raises OSError if some of it is left. The
    folder itself may be a mount, and is emptied then."""
    emptying = _Emptying(path, mounted=True)
    if not emptying.run():
        why = emptying.why or f"it was not empty after {_LONGEST:g} s"
        raise OSError(errno.ENOTEMPTY, f"not removed as a whole: {why}", str(path))


class _Emptying:
    """Removes one folder without recursion: folders inside of folders are moved up to the first one. `mounted`: it may
    be a mount; `unmounts`: what is mounted in its place and within it is taken away."""

    def __init__(
        self,
        path: Path,
        *,
        most: int | None = None,
        most_bytes: int | None = None,
        seconds: float = _LONGEST,
        mounted: bool = False,
        unmounts: bool = False,
    ) -> None:
        self._path, self._left, self._left_bytes = path, most, most_bytes
        self._until = time.monotonic() + seconds
        self._moved = 0
        self._mounted, self._unmounts = mounted, unmounts
        self.met_mount = self.lacked_files = False
        self.why = ""  # what could not be removed

    def run(self) -> bool:
        """Whether it is gone; otherwise some of it is left. Raises OSError if it cannot be opened."""
        place = os.open(self._path.parent, _PLACE)
        try:
            return self._run(place, self._path.name)
        finally:
            os.close(place)

    def _run(self, place: int, name: str) -> bool:
        try:
            top = os.open(self._path, _OPEN) if self._mounted else self._opened(name, place)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            os.unlink(name, dir_fd=place)
            return True
        try:
            removed = 1
            while removed and self._has_room():
                removed = self._pass(top)
        finally:
            os.close(top)
        try:
            os.rmdir(name, dir_fd=place)
        except FileNotFoundError:
            return True
        except OSError as error:  # a mount, or not empty
            self.why = self.why or str(error)
            return False
        return True

    def _pass(self, top: int) -> int:
        """Remove what is in the first folder now. Returns how much was removed or moved."""
        done = 0
        for entry in self._entries(top):
            if not entry.is_dir(follow_symlinks=False):
                done += self._unlink(entry.name, top)
            elif self._empty_quietly(entry.name, top):
                done += 1
        return done

    def _empty_quietly(self, name: str, top: int) -> bool:
        """Remove a folder of the first one: its files are removed, its folders moved up. Whether anything was done."""
        try:
            inner = self._opened(name, top)
        except OSError as error:
            return bool(self._failed(error, name, top))
        done = 0
        try:
            for entry in self._entries(inner):
                if entry.is_dir(follow_symlinks=False):
                    self._moved += 1
                    try:
                        os.rename(
                            entry.name, f"{ASIDE}{secrets.token_hex(8)}{self._moved}", src_dir_fd=inner, dst_dir_fd=top
                        )
                        done += 1
                    except OSError as error:
                        done += self._failed(error, entry.name, inner)
                else:
                    done += self._unlink(entry.name, inner)
        finally:
            os.close(inner)
        with contextlib.suppress(OSError):  # not empty: the next pass goes on
            os.rmdir(name, dir_fd=top)
            done += 1
        return bool(done)

    def _unlink(self, name: str, folder: int) -> int:
        try:
            if self._left_bytes is not None:
                self._left_bytes -= _size(samemount.lstat_in(folder, name))
                if self._left_bytes < 0:
                    return 0
            os.unlink(name, dir_fd=folder)
            return 1
        except FileNotFoundError:
            return 0
        except OSError as error:
            return self._failed(error, name, folder)

    def _failed(self, error: OSError, name: str, folder: int) -> int:
        """Note why something is left. 1 if it was a mount, which is gone now."""
        self.why = str(error)
        self.lacked_files |= is_shortage(error)
        if error.errno not in (errno.EXDEV, errno.EBUSY):
            return 0
        self.met_mount = True
        return int(self._unmounts and samemount.detach(folder, name))

    def _opened(self, name: str, folder: int) -> int:
        try:
            return samemount.open_in(folder, name, _OPEN)
        except PermissionError:
            if os.geteuid() == 0:  # chmod would follow a link that was put there meanwhile
                raise
            os.chmod(name, 0o700, dir_fd=folder)
            return samemount.open_in(folder, name, _OPEN)
        except OSError as error:
            if not self._failed(error, name, folder):
                raise
            return samemount.open_in(folder, name, _OPEN)

    def _entries(self, folder: int) -> Iterator[os.DirEntry[str]]:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not self._has_room():
                    return
                if self._left is not None:
                    self._left -= 1
                yield entry

    def _has_room(self) -> bool:
        full = (self._left is not None and self._left <= 0) or (self._left_bytes is not None and self._left_bytes < 0)
        return not full and time.monotonic() < self._until


class _Worker:
    """A thread that does the work for one path after the other; for the whole process, started when it is needed first.
    Where that lacked files, it is done again a little later: `work` returns False then."""

    def __init__(self, work: Callable[[Path], bool], name: str) -> None:
        self._work, self._name = work, name
        self._paths: queue.Queue[Path] = queue.Queue()
        self._lock = threading.Lock()
        self._is_started = False

    def put(self, path: Path) -> None:
        with self._lock:
            if not self._is_started:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._is_started = True
        self._paths.put(path)

    def join(self) -> None:
        """Wait until all is done."""
        self._paths.join()

    def _run(self) -> None:
        while True:
            path = self._paths.get()
            if not self._work(path):
                time.sleep(_AGAIN)
                self._paths.put(path)
            self._paths.task_done()


def _remove(path: Path) -> bool:
    emptying = _Emptying(path)
    if not _emptied(emptying):
        if emptying.lacked_files:
            return False
        if emptying.met_mount and os.geteuid() == 0:
            _unmounter.put(path)
        else:
            _log_left(path, emptying.why)
    return True


def _unmount(path: Path) -> bool:
    emptying = _Emptying(path, unmounts=True)
    if not _emptied(emptying):
        if emptying.lacked_files:
            return False
        _log_left(path, emptying.why)
    return True


_remover, _unmounter = _Worker(_remove, "folders"), _Worker(_unmount, "mounts")


def _emptied(emptying: _Emptying) -> bool:
    try:
        return emptying.run()
    except FileNotFoundError:
        return True
    except OSError as error:
        emptying.why, emptying.lacked_files = str(error), is_shortage(error)
        return False


def _log_left(path: Path, why: str) -> None:
    _LOG.warning("folder_not_removed", extra={"data": {"path": str(path), "why": why}})


def wait_removed() -> None:
    """Wait until everything that was put aside is removed, or given up."""
    _remover.join()
    _unmounter.join()
