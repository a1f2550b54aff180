"""Whether a tree is ready to be released: one version everywhere, a day in the changelog, nothing uncommitted."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from imagebuild.image import project_version

CHART = Path("deploy/chart/aliquot")
INSTALL = Path("deploy/install.yaml")
_MANIFESTS = (str(INSTALL), "deploy/dropin/**/*.yaml", "examples/seeds/*.yaml")  # they name the image
_IMAGE = re.compile(r"^\s*(?:- )?image: [\"']?aliquot/aliquot:([^\s\"'@]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Obstacles:
    """Why this tree is no release: `wrong` has no way around it, `early` has --dirty."""

    wrong: tuple[str, ...]
    early: tuple[str, ...]


def obstacles(root: Path) -> Obstacles:
    version = project_version(root)
    early = [*unwritten(root, version), *uncommitted(root)]
    return Obstacles(tuple(other_versions(root, version)), tuple(early))


def other_versions(root: Path, version: str) -> list[str]:
    """pyproject.toml says the version; wherever else it is written, it is the same."""
    lines = [
        ("src/aliquot/__init__.py", "__version__", _found(root / "src/aliquot/__init__.py", r'^__version__ = "(.*)"$')),
        (f"{CHART}/Chart.yaml", "version", _found(root / CHART / "Chart.yaml", r"^version: \"?([^\s\"]+)\"?$")),
        (f"{CHART}/Chart.yaml", "appVersion", _found(root / CHART / "Chart.yaml", r"^appVersion: \"?([^\s\"]+)\"?$")),
    ]
    for path in sorted(path for pattern in _MANIFESTS for path in root.glob(pattern)):
        tags = sorted(set(_IMAGE.findall(path.read_text())))
        lines += [(str(path.relative_to(root)), "image", tag) for tag in tags]
    return [
        f"{where}: {what} is {said or 'not there'}, and pyproject.toml's version is {version}: they are one"
        for where, what, said in lines
        if said != version
    ]


def _found(path: Path, pattern: str) -> str | None:
    found = re.search(pattern, path.read_text(), re.MULTILINE)
    return found[1] if found else None


def unwritten(root: Path, version: str) -> list[str]:
    heading = rf"^## \[?{re.escape(version)}\]? - \d{{4}}-\d{{2}}-\d{{2}}$"
    if re.search(heading, (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        return []
    return [f"CHANGELOG.md has no heading `## {version} - YYYY-MM-DD`: write what changed for those who use it"]


def uncommitted(root: Path) -> list[str]:
    command = ["git", "-C", str(root), "status", "--porcelain"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    if done.returncode:
        return [f"git does not know this tree ({done.stderr.strip()}): a release is made of a commit"]
    changed = len(done.stdout.splitlines())
    return (
        [f"{changed} files differ from the last commit: commit them, a release is made of a commit"] if changed else []
    )
