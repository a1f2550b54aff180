"""Which packages and wheels: lock/ARCH.txt, one line each with kind, name, version and checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from imagebuild.errors import CannotBuildError

KINDS = ("deb", "wheel")
_HEAD = "# Made by `python deploy/image/build.py --arch {arch} --refresh`: what the image is made of.\n"


@dataclass(frozen=True, slots=True, order=True)
class Locked:
    """One package or wheel, known by its content."""

    kind: str
    name: str
    version: str
    sha256: str


def parse(text: str, *, where: str) -> tuple[Locked, ...]:
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 4 or words[0] not in KINDS or len(words[3]) != 64:
            raise CannotBuildError(
                f"{where}:{number}: {line!r}: wanted is KIND NAME VERSION SHA256, with a kind of {KINDS}"
            )
        found.append(Locked(*words))
    return tuple(found)


def render(locked: Iterable[Locked], *, arch: str) -> str:
    lines = (f"{item.kind} {item.name} {item.version} {item.sha256}\n" for item in sorted(locked))
    return _HEAD.format(arch=arch) + "".join(lines)


def checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
