"""The folder from which container runtimes read CDI specs: one file per device of ours, written atomically.

A file is written under a dot-name in the same folder and renamed. Runtimes watch the folder and read what appears in
it; containerd does not notice a file that is moved in from another folder. dialects/wire/cdi.py knows the format.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from aliquot.model.containers.edits import CdiName, Spec

_DOT = ".aliquot-"  # our files before the rename; runtimes read only names that end in .json or .yaml
_OURS = "aliquot.*.yaml"
_MODE = 0o644  # a runtime may not be root

_WHAT_TO_DO = {
    errno.ENOSPC: "free some space on its disk",
    errno.EDQUOT: "free some space on its disk, or raise the quota",
    errno.EROFS: "mount it writable into the agent",
    errno.EACCES: "let the agent write there",
    errno.EPERM: "let the agent write there",
    errno.ENOENT: "create it and add it to the container runtime's cdi_spec_dirs; for an agent in a Pod, mount the "
    "host's folder there",
    errno.ENOTDIR: "it must be a folder that is listed in the container runtime's cdi_spec_dirs",
}


class CdiError(Exception):
    """The folder cannot be read or written; the message says what to do."""


class CdiFolder:
    """See the head of the file. One agent writes there; other programs have their own files in it."""

    def __init__(
        self, path: Path | str, render: Callable[[Spec], bytes], parse: Callable[[bytes], Spec | None]
    ) -> None:
        self.path = Path(path)
        self._render, self._parse = render, parse

    def write(self, spec: Spec) -> bool:
        """Write the spec to the disk. False: it was there already, byte for byte. Raises CdiError."""
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
            raise self._cdi_error(error) from error
        return True

    def remove(self, name: CdiName) -> None:
        """Remove the spec, if it is there. Raises CdiError."""
        try:
            with contextlib.suppress(FileNotFoundError):
                (self.path / name.file).unlink()
        except OSError as error:
            raise self._cdi_error(error) from error

    def specs(self) -> list[Spec]:
        """All our specs, by name. Removes files that a killed agent had not renamed. Raises CdiError."""
        found = []
        try:
            for path in sorted(self.path.iterdir()):
                if path.name.startswith(_DOT):
                    path.unlink(missing_ok=True)
                elif path.match(_OURS):
                    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                        found.append(self._parse(path.read_bytes()))
        except OSError as error:
            raise self._cdi_error(error) from error
        return [spec for spec in found if spec is not None]

    def _sync(self) -> None:
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _cdi_error(self, error: OSError) -> CdiError:
        advice = _WHAT_TO_DO.get(error.errno or 0)
        return CdiError(f"{self.path}: {error.strerror or error}" + (f": {advice}" if advice else ""))


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        os.fchmod(file.fileno(), _MODE)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
