"""Debian's packages of the image: resolved and fetched by apt in a root of its own, unpacked by dpkg-deb.

apt takes the machine's own sources (or --sources), so that no server is named here, and checks their signatures as
always. Nothing is installed on this machine, and root is not needed.
"""

from __future__ import annotations

import subprocess
import tempfile
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from imagebuild import entries
from imagebuild.entries import Entry
from imagebuild.errors import CannotBuildError
from imagebuild.lock import Locked, checksum

SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """packages.txt: the packages asked for, and those of their dependencies that are left out."""

    asked: tuple[str, ...]
    left_out: frozenset[str]


def parse(text: str) -> Wanted:
    names = [line.partition("#")[0].strip() for line in text.splitlines()]
    left_out = frozenset(name.removeprefix("-") for name in names if name.startswith("-"))
    return Wanted(tuple(name for name in names if name and not name.startswith("-")), left_out)


@dataclass(frozen=True)
class Package:
    """One package as it was fetched."""

    locked: Locked
    file: Path

    @cached_property
    def control(self) -> dict[str, str]:
        """The fields that people and scanners ask for; without the lines that continue them."""
        lines = _said(["dpkg-deb", "--field", str(self.file)]).splitlines()
        return {
            name: value.strip()
            for name, _, value in (line.partition(":") for line in lines if not line.startswith(" "))
        }

    @property
    def source(self) -> str:
        return self.control.get("Source", self.locked.name).split()[0]

    def entries(self) -> dict[str, Entry]:
        """Its files, and the record of it that scanners of images read where there is no dpkg."""
        done = subprocess.run(["dpkg-deb", "--fsys-tarfile", self.file], capture_output=True, check=True)  # noqa: S603, S607 - from PATH: of the machine that builds
        fields = ("Package", "Version", "Architecture", "Source", "Maintainer", "Homepage")
        record = "".join(f"{name}: {self.control[name]}\n" for name in fields if name in self.control)
        status = record.replace("\n", "\nStatus: install ok installed\n", 1)
        return entries.of_tar(done.stdout) | {f"var/lib/dpkg/status.d/{self.locked.name}": Entry(data=status.encode())}


class Apt:
    """apt-get with its lists in a folder of ours, for one architecture, knowing of nothing installed."""

    def __init__(self, cache: Path, *, arch: str, sources: Path | None) -> None:
        self._home, self._arch, self._sources, self._fresh = cache / f"apt-{arch}", arch, sources, False
        for folder in ("lists/partial", "archives/partial", "debs"):
            (self._home / folder).mkdir(parents=True, exist_ok=True)
        (self._home / "status").write_text("")

    def resolved(self, wanted: Wanted) -> list[tuple[str, str]]:
        """Name and version of all that is asked for and what that needs, as of today."""
        printed = self._asked("install", "--yes", "--no-install-recommends", "--print-uris", *wanted.asked)
        files = [line.split()[1] for line in printed.splitlines() if line.startswith("'")]
        named = [(name, urllib.parse.unquote(version)) for name, version, _ in (file.split("_") for file in files)]
        return sorted((name, version) for name, version in named if name not in wanted.left_out)

    def fetched(self, name: str, version: str, *, sha256: str | None = None) -> Package:
        """That version, from the cache or the mirror. What in the cache is not what is wanted is fetched again."""
        file = self._home / "debs" / f"{name}_{urllib.parse.quote(version, safe='+~')}.deb"
        if not file.exists() or sha256 not in (None, checksum(file)):
            self._download(name, version, file)
        found = checksum(file)
        if sha256 not in (None, found):
            raise CannotBuildError(
                f"{name} {version} is {found} at the mirror and {sha256} in the lock: these are not the same package"
            )
        return Package(Locked("deb", name, version, found), file)

    def _download(self, name: str, version: str, into: Path) -> None:
        with tempfile.TemporaryDirectory(dir=self._home) as folder:
            self._asked("download", f"{name}={version}", cwd=Path(folder))
            (file,) = Path(folder).glob("*.deb")
            file.replace(into)

    def _asked(self, *words: str, cwd: Path | None = None) -> str:
        if not self._fresh:
            _said(self._command("update", "--error-on=any"))
            self._fresh = True
        return _said(self._command(*words), cwd=cwd)

    def _command(self, *words: str) -> list[str]:
        sources = self._sources or next((path for path in SOURCES if path.exists()), None)
        if sources is None:
            raise CannotBuildError(
                f"no sources of Debian 12 here ({', '.join(map(str, SOURCES))}): name a file with --sources"
            )
        options = {
            "Dir::State": self._home,
            "Dir::State::lists": self._home / "lists",
            "Dir::State::status": self._home / "status",
            "Dir::Cache": self._home,
            "Dir::Etc::sourcelist": sources.resolve(),
            "Dir::Etc::sourceparts": "/dev/null",
            "APT::Architecture": self._arch,
            "APT::Architectures": self._arch,
            "APT::Sandbox::User": "",  # the folder is this user's, and apt's own may not enter it
            "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "Acquire::Retries": "3",
        }
        return ["apt-get", *(f"-o{name}={value}" for name, value in options.items()), *words]


def _said(command: Sequence[str], *, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)  # noqa: S603 - our own words
    except FileNotFoundError as error:
        raise CannotBuildError(
            f"{command[0]} is not here: Debian's packages are fetched and unpacked with it"
        ) from error
    if done.returncode:
        raise CannotBuildError(f"{' '.join(command)}:\n{done.stderr.strip()}")
    return done.stdout
