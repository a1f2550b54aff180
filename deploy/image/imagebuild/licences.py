"""Under which licence each component is, and that its text is in the image."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from imagebuild.debian import Package
from imagebuild.entries import Entry
from imagebuild.errors import CannotBuildError
from imagebuild.wheels import SITE, Wheel, normal

OURS = "Apache-2.0"
DOCUMENTS = "usr/share/doc/aliquot"
_TEXTS = ("licen", "copying", "notice")


@dataclass(frozen=True, slots=True)
class Component:
    """One line of the SBOM."""

    kind: str  # deb, wheel, npm, or ours
    name: str
    version: str
    licence: str
    sha256: str | None = None
    supplier: str | None = None
    source: str | None = None  # the Debian source package


def parse(text: str) -> dict[tuple[str, str], str]:
    """licences.txt: kind and name to an SPDX expression."""
    found = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split(maxsplit=2)
        if words:
            kind, name, expression = words
            found[kind, name] = " ".join(expression.split())
    return found


def of_package(package: Package, known: Mapping[tuple[str, str], str]) -> Component:
    licence = known.get(("deb", package.source))
    if licence is None:
        raise CannotBuildError(
            f"no licence is known of {package.locked.name}: "
            f"add `deb {package.source} EXPRESSION` to licences.txt, by its copyright file"
        )
    maintainer = package.control.get("Maintainer")
    locked = package.locked
    return Component("deb", locked.name, locked.version, licence, locked.sha256, maintainer, package.source)


def of_wheel(wheel: Wheel, known: Mapping[tuple[str, str], str]) -> Component:
    locked, metadata = wheel.locked, wheel.metadata()
    licence = known.get(("wheel", locked.name)) or metadata["License-Expression"]
    if licence is None:
        raise CannotBuildError(
            f"{locked.name} does not say its licence: add `wheel {locked.name} EXPRESSION` to licences.txt"
        )
    return Component(
        "wheel", locked.name, locked.version, licence, locked.sha256, metadata["Author"] or metadata["Author-email"]
    )


def without_text(components: Iterable[Component], entries: Mapping[str, Entry]) -> list[str]:
    """Those of which the image holds no licence: none may be."""
    there = _by_distribution(entries)
    return [component.name for component in components if not _has_text(component, entries, there)]


def _has_text(component: Component, entries: Mapping[str, Entry], there: set[str]) -> bool:
    if component.kind == "deb":
        return _resolved(f"usr/share/doc/{component.name}", entries) is not None
    if component.kind == "wheel" and component.name in there:
        return True
    return f"{DOCUMENTS}/licences/{component.name}.txt" in entries or component.kind == "ours"


def _resolved(folder: str, entries: Mapping[str, Entry]) -> str | None:
    """The copyright file of a package: some packages share the folder of another by a link."""
    link = entries[folder].link if folder in entries else ""
    if link:
        folder = posixpath.normpath(posixpath.join(posixpath.dirname(folder), link))
    path = f"{folder}/copyright"
    return path if path in entries else None


def _by_distribution(entries: Mapping[str, Entry]) -> set[str]:
    """Distributions whose dist-info has a licence's text."""
    found = set()
    for path in entries:
        folder, _, rest = path.removeprefix(f"{SITE}/").partition("/")
        if folder.endswith(".dist-info") and any(word in rest.lower() for word in _TEXTS):
            found.add(normal(folder.partition("-")[0]))
    return found
