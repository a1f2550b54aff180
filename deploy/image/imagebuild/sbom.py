"""The components as a document of SPDX 2.3; the same components, the same bytes."""

from __future__ import annotations

import hashlib
import json
import re
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any

from imagebuild.licences import OURS, Component

_REFERENCE = re.compile(r"LicenseRef-[A-Za-z0-9.-]+")
_WHERE = {
    "LicenseRef-public-domain": "In the public domain; see the component's copyright file.",
    "LicenseRef-media-types": "No restrictions, as of the component's copyright file.",
}


def document(components: Sequence[Component], *, version: str, arch: str, made_at: int) -> bytes:
    """Of an image: one package that contains all others."""
    packages = [_package(component, arch) for component in components]
    image = {
        "SPDXID": "SPDXRef-image",
        "name": "aliquot/aliquot",
        "versionInfo": version,
        "primaryPackagePurpose": "CONTAINER",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": OURS,
        "copyrightText": "NOASSERTION",
    }
    contains = [_related("SPDXRef-image", "CONTAINS", package["SPDXID"]) for package in packages]
    whole = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"aliquot-{version}-{arch}",
        "documentNamespace": f"https://spdx.org/spdxdocs/aliquot-{version}-{arch}-{_told(packages)[:32]}",
        "creationInfo": {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(made_at)),
            "creators": ["Tool: aliquot-deploy-image"],
        },
        "packages": [image, *packages],
        "relationships": [_related("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-image"), *contains],
        "hasExtractedLicensingInfos": _extracted(components),
    }
    return (json.dumps(whole, indent=1, sort_keys=True) + "\n").encode()


def _package(component: Component, arch: str) -> dict[str, Any]:
    found = {
        "SPDXID": f"SPDXRef-{component.kind}-{re.sub(r'[^A-Za-z0-9.-]', '-', component.name)}",
        "name": component.name,
        "versionInfo": component.version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": component.licence,
        "licenseDeclared": component.licence,
        "copyrightText": "NOASSERTION",
        "externalRefs": [_reference(component, arch)],
    }
    if component.sha256:
        found["checksums"] = [{"algorithm": "SHA256", "checksumValue": component.sha256}]
    if component.supplier:
        found["supplier"] = f"Organization: {component.supplier}"
    if component.source:
        found["sourceInfo"] = f"built from Debian's source package {component.source}"
    return found


def _reference(component: Component, arch: str) -> dict[str, str]:
    """The package URL, by which scanners look for known faults."""
    version = urllib.parse.quote(component.version, safe="")
    name = urllib.parse.quote(component.name, safe="")
    kind = {"deb": "deb/debian", "wheel": "pypi", "npm": "npm", "ours": "generic"}[component.kind]
    more = f"?arch={arch}&distro=debian-12" if component.kind == "deb" else ""
    locator = f"pkg:{kind}/{name}@{version}{more}"
    return {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}


def _extracted(components: Sequence[Component]) -> list[dict[str, str]]:
    named = {found for component in components for found in _REFERENCE.findall(component.licence)}
    return [{"licenseId": name, "extractedText": _WHERE[name]} for name in sorted(named)]


def _related(element: str, how: str, other: str) -> dict[str, str]:
    return {"spdxElementId": element, "relationshipType": how, "relatedSpdxElement": other}


def _told(packages: Sequence[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()
