"""The packages and wheels of one build: those of the lock, or today's."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from imagebuild import debian, lock, wheels
from imagebuild.debian import Apt, Package, Wanted
from imagebuild.errors import CannotBuildError
from imagebuild.lock import Locked
from imagebuild.wheels import Pip, Wheel


class Versions(enum.Enum):
    """Which versions a build takes."""

    LOCKED = "locked"  # those of the lock, or none
    UNLOCKED = "unlocked"  # those of the lock; today's where it cannot be followed any more
    REFRESHED = "refreshed"  # today's, and the lock is written again


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is fetched."""

    packages: tuple[Package, ...]
    wheels: tuple[Wheel, ...]

    def locked(self) -> list[Locked]:
        return [*(package.locked for package in self.packages), *(wheel.locked for wheel in self.wheels)]


@dataclass(frozen=True, slots=True)
class Shop:
    """Where they come from, and the lists that say which."""

    apt: Apt
    pip: Pip
    packages: Path  # packages.txt
    constraints: Path
    lock: Path  # lock/ARCH.txt
    arch: str

    def taken(self, versions: Versions, say: Callable[[str], None]) -> Inputs:
        if versions is Versions.REFRESHED:
            found = self._todays()
            self.lock.parent.mkdir(exist_ok=True)
            self.lock.write_text(lock.render(found.locked(), arch=self.arch))
            return found
        try:
            return self._locked()
        except CannotBuildError as error:
            if versions is Versions.LOCKED:
                hint = f"`--refresh` writes today's into {self.lock.name}; `--unlocked` takes them for this build alone"
                raise CannotBuildError(f"{error}\nThe lock cannot be followed. {hint}") from error
            say(f"the lock cannot be followed, today's versions are taken: {error}")
            return self._todays()

    def _todays(self) -> Inputs:
        wanted = debian.parse(self.packages.read_text())
        packages = tuple(self.apt.fetched(name, version) for name, version in self.apt.resolved(wanted))
        return Inputs(packages, tuple(self.pip.resolved()))

    def _locked(self) -> Inputs:
        if not self.lock.exists():
            raise CannotBuildError(f"there is no {self.lock}")
        locked = lock.parse(self.lock.read_text(), where=self.lock.name)
        disagreed = disagreements(
            locked, debian.parse(self.packages.read_text()), wheels.pins(self.constraints.read_text())
        )
        if disagreed:
            raise CannotBuildError("; ".join(disagreed))
        debs = [item for item in locked if item.kind == "deb"]
        packages = tuple(self.apt.fetched(deb.name, deb.version, sha256=deb.sha256) for deb in debs)
        return Inputs(packages, tuple(self.pip.fetched([item for item in locked if item.kind == "wheel"])))


def disagreements(locked: tuple[Locked, ...], wanted: Wanted, pinned: dict[str, str]) -> list[str]:
    """Where the lock is older than the lists that it was made of."""
    names = {item.name for item in locked if item.kind == "deb"}
    found = [f"packages.txt asks for {name}, the lock has none" for name in wanted.asked if name not in names]
    found += [f"packages.txt leaves {name} out, the lock has it" for name in sorted(names & wanted.left_out)]
    for item in locked:
        if item.kind == "wheel" and pinned.get(item.name) != item.version:
            found.append(f"constraints.txt has {item.name} {pinned.get(item.name)}, the lock {item.version}")
    return found
