"""The folder from which container runtimes read CDI: one file per device of ours, there whole or not at all.

A file is written under a dot-name in the same folder and renamed: runtimes watch the folder and read what appears in
it, and a file that comes from another folder goes unnoticed by containerd. How a file is spelled is not known here:
dialects/wire/cdi.py renders and parses.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from aliquot.model.edits import CdiName, Spec

_DOT = ".aliquot-"  # files of ours that were not renamed yet; runtimes read no name without .json or .yaml at its end
_OURS = "aliquot.*.yaml"
_MODE = 0o644  # a runtime need not be root

_WHAT_TO_DO = {
    errno.ENOSPC: "free some space on its disk",
    errno.EDQUOT: "free some space on its disk, or raise the quota",
    errno.EROFS: "mount it writable into the agent",
    errno.EACCES: "let the agent write there",
    errno.EPERM: "let the agent write there",
    errno.ENOENT: "make it, and name it in the container runtime's cdi_spec_dirs; for an agent in a Pod, mount the "
    "host's there",
    errno.ENOTDIR: "it must be a folder, and be named in the container runtime's cdi_spec_dirs",
}


class CdiError(Exception):
    """The folder cannot be read or written; the message says what to do."""


class CdiFolder:
    """See the head of the file. One agent writes there; others have files of their own in it."""

    def __init__(
        self, path: Path | str, render: Callable[[Spec], bytes], parse: Callable[[bytes], Spec | None]
    ) -> None:
        self.path = Path(path)
        self._render, self._parse = render, parse

    def write(self, spec: Spec) -> bool:
        """It is there, on the disk, when this returns. False: it was there already, byte for byte. Raises CdiError."""
        target, data = self.path / spec.name.file, self._render(spec)
        draft = self.path / f"{_DOT}{spec.name.device}.{os.getpid()}"
        try:
            with contextlib.suppress(FileNotFoundError):
                if target.read_bytes() == data:
                    return False
            try:
                _write(draft, data)
                os.replace(draft, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    draft.unlink()
                raise
            self._sync()
        except OSError as error:
            raise self._told(error) from error
        return True

    def remove(self, name: CdiName) -> None:
        """It is gone. Says nothing when it never was. Raises CdiError."""
        try:
            with contextlib.suppress(FileNotFoundError):
                (self.path / name.file).unlink()
        except OSError as error:
            raise self._told(error) from error

    def specs(self) -> list[Spec]:
        """Every spec of ours, by name. Sweeps out what an agent that was killed had not renamed. Raises CdiError."""
        found = []
        try:
            for path in sorted(self.path.iterdir()):
                if path.name.startswith(_DOT):
                    path.unlink(missing_ok=True)
                elif path.match(_OURS):
                    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                        found.append(self._parse(path.read_bytes()))
        except OSError as error:
            raise self._told(error) from error
        return [spec for spec in found if spec is not None]

    def _sync(self) -> None:
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _told(self, error: OSError) -> CdiError:
        advice = _WHAT_TO_DO.get(error.errno or 0)
        return CdiError(f"{self.path}: {error.strerror or error}" + (f": {advice}" if advice else ""))


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        os.fchmod(file.fileno(), _MODE)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
