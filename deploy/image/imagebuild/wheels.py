"""Python's packages: fetched by pip in the versions of constraints.txt, unpacked as an installer would; and our own."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

from imagebuild.entries import Entry
from imagebuild.errors import CannotBuildError
from imagebuild.lock import Locked, checksum

SITE = "usr/lib/python3/dist-packages"  # where Debian's Python looks
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# -I: nothing of the environment or the current folder is imported. -B: no bytecode is written, all of it is there.
SHEBANG = "#!/usr/bin/python3.11 -IB"
_GLIBC = 36  # Debian 12's is 2.36


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel as it was fetched, or built."""

    locked: Locked
    file: Path

    def metadata(self) -> Message:
        with zipfile.ZipFile(self.file) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return Parser().parsestr(archive.read(name).decode())


def of_file(file: Path) -> Wheel:
    name, version, *_ = file.name.split("-")
    return Wheel(Locked("wheel", normal(name), version, checksum(file)), file)


def normal(name: str) -> str:
    """One spelling for prometheus_client and prometheus-client."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(constraints: str) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", constraints, re.MULTILINE)
    return {normal(name): version for name, version in found}


class Pip:
    """`pip download` for Python 3.11 on another machine than this."""

    def __init__(self, root: Path, cache: Path, *, arch: str) -> None:
        self._root, self._folder, self._arch = root, cache / f"wheels-{arch}", arch
        self._folder.mkdir(parents=True, exist_ok=True)

    def resolved(self) -> list[Wheel]:
        """What pyproject.toml depends on and all that this needs. What constraints.txt does not pin is refused."""
        project = tomllib.loads((self._root / "pyproject.toml").read_text())["project"]
        pinned = pins((self._root / "constraints.txt").read_text())
        found = self._download("--constraint", str(self._root / "constraints.txt"), *project["dependencies"])
        loose = [wheel.locked.name for wheel in found if pinned.get(wheel.locked.name) != wheel.locked.version]
        if loose:
            raise CannotBuildError(
                f"constraints.txt does not pin {', '.join(loose)}, which the image would hold: pin them"
            )
        return found

    def fetched(self, locked: Sequence[Locked]) -> list[Wheel]:
        """Exactly these, from the cache or the index."""
        there = {wheel.locked: wheel for wheel in map(of_file, self._folder.glob("*.whl")) if wheel.locked in locked}
        missing = [wheel for wheel in locked if wheel not in there]
        if missing:
            names = [f"{wheel.name}=={wheel.version}" for wheel in missing]
            there |= {wheel.locked: wheel for wheel in self._download("--no-deps", *names)}
        for wheel in missing:
            if wheel not in there:
                raise CannotBuildError(
                    f"the index has another {wheel.name} {wheel.version} than the lock: checksum {wheel.sha256}"
                )
        return [there[wheel] for wheel in locked]

    def _download(self, *words: str) -> list[Wheel]:
        machine = MACHINES[self._arch]
        platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(_GLIBC, 16, -1)] + [f"manylinux2014_{machine}"]
        options = ["--quiet", "--only-binary=:all:", "--python-version=3.11", "--implementation=cp"]
        options += ["--abi=cp311", "--abi=abi3", "--abi=none", *(f"--platform={platform}" for platform in platforms)]
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            command = [
                sys.executable,
                "-m",
                "pip",
                "--disable-pip-version-check",
                "download",
                *options,
                "--dest",
                folder,
            ]
            run([*command, *words])
            kept = [file.replace(self._folder / file.name) for file in sorted(Path(folder).glob("*.whl"))]
        return [of_file(file) for file in kept]


def unpacked(wheel: Wheel) -> dict[str, Entry]:
    """The files where an installer puts them."""
    found: dict[str, Entry] = {}
    with zipfile.ZipFile(wheel.file) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                executable = (info.external_attr >> 16) & 0o111
                found[_place(info.filename)] = Entry(mode=0o755 if executable else 0o644, data=archive.read(info))
    return found


def _place(name: str) -> str:
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return f"{SITE}/{name}"
    kind, _, path = rest.partition("/")
    places = {"scripts": "usr/bin", "purelib": SITE, "platlib": SITE, "data": "usr"}
    if kind not in places:
        raise CannotBuildError(
            f"{name}: a wheel's {kind} has no place in the image; places are for {', '.join(places)}"
        )
    return f"{places[kind]}/{path}"


def programs(found: Mapping[str, Entry]) -> dict[str, Entry]:
    """What the entry points of an unpacked wheel declare. Those of the other wheels are not called."""
    for path, entry in found.items():
        if path.endswith(".dist-info/entry_points.txt"):
            declared = configparser.RawConfigParser(delimiters=("=",))
            declared.read_string(entry.data.decode())
            return {f"usr/bin/{name}": _program(value) for name, value in declared.items("console_scripts")}
    return {}


def _program(entry_point: str) -> Entry:
    module, _, function = entry_point.strip().partition(":")
    text = f"{SHEBANG}\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
    return Entry(mode=0o755, data=text.encode())


def built(root: Path, *, arch: str, out: Path) -> Wheel:
    """Our own, from the tree as it lies there."""
    environment = {**os.environ, "ALIQUOT_ARCH": MACHINES[arch]}
    run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out)],
        cwd=root,
        env=environment,
    )
    (file,) = out.glob(f"*{MACHINES[arch]}.whl")
    return of_file(file)


def stamped(found: Mapping[str, Entry], *, was: str, version: str) -> dict[str, Entry]:
    """The same package as another version: in its metadata, and where the program reads it. For tests of upgrades."""
    init, metadata = f"{SITE}/aliquot/__init__.py", f"{SITE}/aliquot-{was}.dist-info/METADATA"
    said = {init: f'__version__ = "{was}"', metadata: f"\nVersion: {was}\n"}
    changed = {}
    for path, entry in found.items():
        data = entry.data
        if old := said.get(path):
            if old.encode() not in data:
                raise CannotBuildError(f"{path} does not say {old.strip()!r}: there is nothing to stamp {version} over")
            data = data.replace(old.encode(), old.replace(was, version).encode(), 1)
        changed[path.replace(f"/aliquot-{was}.dist-info/", f"/aliquot-{version}.dist-info/")] = Entry(
            mode=entry.mode, data=data
        )
    return changed


def run(command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env)  # noqa: S603 - our own words
    if done.returncode:
        raise CannotBuildError(f"{' '.join(command)}:\n{(done.stderr or done.stdout).strip()}")
