"""`make audit`: what we ship, its licences, and what is known against it.

Needs pip-audit (`make audit` installs it), npm, and the services that these two ask: so it is no part of CI. What could
not be asked is said, and is a failure: no answer is not a good answer.

    0  nothing is known against anything      1  something is      2  not all could be asked
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PIP_AUDIT = ROOT / "out/audit/bin/pip-audit"  # an environment of its own: it brings packages that are not ours
OURS = "aliquot"
# Those that ask for no more than their own text beside what is shipped; read another before you add it.
ALLOWED = re.compile(
    r"(0BSD|Apache|BSD|CC0-1\.0|MIT|PSF-2\.0|Python Software Foundation|Zlib|Unlicense)", re.IGNORECASE
)
COPYLEFT = re.compile(r"(GPL|AGPL|SSPL|EUPL|MPL)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Shipped:
    """A package that our own needs, directly or not."""

    name: str
    version: str
    licence: str


def shipped() -> list[Shipped]:
    """All that is installed with ours, without the tools of development."""
    waiting, seen = [OURS], dict[str, importlib.metadata.Distribution]()
    while waiting:
        name = _plain(waiting.pop())
        if name in seen:
            continue
        try:
            seen[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another Python, or another system
        waiting += [need for line in seen[name].requires or () if (need := _need(line)) is not None]
    return [
        Shipped(name, distribution.version, _licence(distribution))
        for name, distribution in sorted(seen.items())
        if name != OURS
    ]


def _need(line: str) -> str | None:
    found = re.match(r"[A-Za-z0-9._-]+", line)
    return None if found is None or "extra ==" in line else found[0]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _licence(package: importlib.metadata.Distribution) -> str:
    metadata: Any = package.metadata
    classes = [
        classifier.rpartition(" :: ")[2]
        for classifier in metadata.get_all("Classifier") or ()
        if classifier.startswith("License")
    ]
    text = metadata.get("License-Expression") or " and ".join(classes) or metadata.get("License") or "not told"
    return str(text).partition("\n")[0][:60]


# --- what is asked of others ------------------------------------------------------------------------------------------


def _ran(*words: str, folder: Path = ROOT) -> str:
    try:
        return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False).stdout  # noqa: S603  # ours
    except FileNotFoundError:
        return ""


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}


def python_findings(packages: list[Shipped]) -> tuple[list[str], list[str]]:
    """What is known against them; and those without an answer."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{package.name}=={package.version}\n" for package in packages))
        file.flush()
        asked = (str(PIP_AUDIT), "--no-deps", "--disable-pip", "--progress-spinner=off")
        report = _read(_ran(*asked, "--format=json", f"--requirement={file.name}"))
    answers = {_plain(dependency["name"]): dependency for dependency in report.get("dependencies", ())}
    known = [
        f"{name} {answer['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no version yet'}"
        for name, answer in answers.items()
        for found in answer.get("vulns", ())
    ]
    return known, [package.name for package in packages if "vulns" not in answers.get(package.name, {})]


def web_findings() -> tuple[list[str], list[str]]:
    """The same of what is built into the dashboard."""
    report = _read(_ran("npm", "audit", "--omit=dev", "--json", folder=ROOT / "web"))
    names = [*_read((ROOT / "web/package.json").read_text())["dependencies"]]
    if "vulnerabilities" not in report:
        return [], names
    return [f"{name}: {finding['severity']}" for name, finding in report["vulnerabilities"].items()], []


def main() -> int:
    """See the head of the file."""
    packages = shipped()
    wrong = []
    for package in packages:
        fine = ALLOWED.search(package.licence) and not COPYLEFT.search(package.licence)
        print(f"{package.name:20} {package.version:14} {package.licence}" + ("" if fine else "   <- read it"))
        wrong += [] if fine else [f"{package.name}: the licence {package.licence!r} is not one of those we know"]
    print("asking what is known against them ...", flush=True)
    known, unasked = python_findings(packages)
    of_web, unasked_of_web = web_findings()
    for line in (*wrong, *known, *of_web):
        print(f"found: {line}")
    lost = [*unasked, *unasked_of_web]
    if lost:
        print(f"NOT AUDITED, the service did not answer: {', '.join(lost)}")
    print(f"{len(packages)} packages, {len(wrong + known + of_web)} findings, {len(lost)} not audited")
    return 1 if wrong or known or of_web else 2 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
