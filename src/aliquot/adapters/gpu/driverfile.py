"""NVIDIA's own CDI file, if the node has one: it lists what a container needs of the driver."""

from __future__ import annotations

from pathlib import Path

import yaml

# Where people have `nvidia-ctk cdi generate` write it.
PLACES = tuple(Path(folder, f"nvidia.{end}") for folder in ("/var/run/cdi", "/etc/cdi") for end in ("yaml", "json"))


class DriverFileError(Exception):
    """The file is missing, or not YAML; the message says what to do."""


class DriverFile:
    """Read again when it has changed: drivers are updated while we run. Parsing is the most expensive part."""

    def __init__(self, *, wanted: bool, places: tuple[Path, ...] = PLACES) -> None:
        self.wanted, self._places = wanted, places
        self._seen: tuple[Path, int, int] | None = None
        self._content: object = None

    def read(self) -> object:
        """Its content; None if there is no file. Raises DriverFileError."""
        for path in self._places:
            try:
                found = path.stat()
                mark = (path, found.st_mtime_ns, found.st_size)
                if mark != self._seen:
                    self._content, self._seen = yaml.safe_load(path.read_text()), mark
                return self._content
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
                raise DriverFileError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
        if self.wanted:
            places = ", ".join(map(str, self._places))
            raise DriverFileError(f"--driver cdi: none of {places} is there: run `nvidia-ctk cdi generate` on the node")
        return None
