"""The package as others get it: built into wheels, and put into an environment of its own, as pipx and uvx do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine in the header of an ELF file


def build(target: str, out: Path, *, arch: str | None = None, tree: Path = ROOT) -> Path:
    """The wheel, or the sdist, as `make wheel` builds it."""
    environment = {**os.environ, **({"ALIQUOT_ARCH": arch} if arch else {})}
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out)]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.iterdir()
    return made


def unpacked(sdist: Path, into: Path) -> Path:
    """The source tree in it."""
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = lambda member, _path: member  # the parameter `filter` needs Python 3.11.4
        archive.extractall(into)
    (tree,) = into.iterdir()
    return tree


@dataclass(frozen=True, slots=True)
class Binary:
    """A file of machine code in a wheel."""

    name: str
    content: bytes

    @property
    def machine(self) -> int:
        return int.from_bytes(self.content[18:20], "little")

    def glibc(self, folder: Path) -> set[tuple[int, ...]]:
        """The versions of glibc that it asks for."""
        file = folder / Path(self.name).name
        file.write_bytes(self.content)
        said = subprocess.run(["readelf", "-W", "-V", file], capture_output=True, text=True, check=True).stdout
        return {tuple(map(int, version.split("."))) for version in re.findall(r"Name: GLIBC_([\d.]+)", said)}


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def binaries(wheel: Path) -> list[Binary]:
    with zipfile.ZipFile(wheel) as archive:
        found = [Binary(name, archive.read(name)) for name in archive.namelist()]
    return [file for file in found if file.content.startswith(b"\x7fELF")]


def installed(wheel: Path, folder: Path) -> Path:
    """The programs of a fresh environment that holds the wheel and what it depends on, and nothing else."""
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    pip += ["--disable-pip-version-check", "--no-compile", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, str(wheel)], check=True)
    return folder / "bin"
