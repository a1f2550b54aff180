"""The SBOM names every component with its licence, and no component is in the image without the text of one."""

from __future__ import annotations

import json
from typing import Any

from imagebuild import licences, sbom
from imagebuild.entries import Entry
from imagebuild.licences import Component

SUM = "ab" * 32
LIBC = Component("deb", "libc6", "2.36-9+deb12u14", "LGPL-2.1-or-later", SUM, "Debian", "glibc")
XZ = Component("deb", "liblzma5", "5.4", "LicenseRef-public-domain", SUM, "Debian", "xz-utils")
RICH = Component("wheel", "rich", "15.0.0", "MIT", SUM)
PREACT = Component("npm", "preact", "11.2.0", "MIT")
TEXT = Entry(data=b"Permission is hereby granted")


def _document(*components: Component) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sbom.document(components, version="1.2.3", arch="amd64", made_at=0))
    return found


def test_every_component_is_a_package_that_the_image_contains() -> None:
    listing = _document(LIBC, RICH)

    contained = {
        relationship["relatedSpdxElement"]
        for relationship in listing["relationships"]
        if relationship["relationshipType"] == "CONTAINS"
    }
    assert contained == {"SPDXRef-deb-libc6", "SPDXRef-wheel-rich"}
    assert contained < {package["SPDXID"] for package in listing["packages"]}


def test_a_component_is_found_by_scanners_under_its_package_url() -> None:
    listing = {package["name"]: package for package in _document(LIBC, RICH, PREACT)["packages"]}

    assert [listing[name]["externalRefs"][0]["referenceLocator"] for name in ("libc6", "rich", "preact")] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64&distro=debian-12",
        "pkg:pypi/rich@15.0.0",
        "pkg:npm/preact@11.2.0",
    ]


def test_a_component_has_its_licence_and_the_checksum_of_what_was_fetched() -> None:
    listing = next(package for package in _document(LIBC)["packages"] if package["name"] == "libc6")

    assert listing["licenseDeclared"] == "LGPL-2.1-or-later"
    assert listing["checksums"] == [{"algorithm": "SHA256", "checksumValue": SUM}]


def test_a_licence_that_spdx_does_not_know_is_explained_in_the_document() -> None:
    assert [
        hasextractedlicensinginfo["licenseId"]
        for hasextractedlicensinginfo in _document(XZ, RICH)["hasExtractedLicensingInfos"]
    ] == ["LicenseRef-public-domain"]


def test_other_components_make_another_document() -> None:
    assert _document(LIBC)["documentNamespace"] != _document(RICH)["documentNamespace"]
    assert sbom.document([LIBC], version="1", arch="amd64", made_at=0) == sbom.document(
        [LIBC], version="1", arch="amd64", made_at=0
    )


def test_a_package_has_its_text_in_its_own_folder_or_in_that_of_another_by_a_link() -> None:
    there = {"usr/share/doc/gcc-12-base/copyright": TEXT, "usr/share/doc/libc6": Entry(link="gcc-12-base")}

    assert licences.without_text([LIBC], there) == []


def test_a_package_whose_link_leads_nowhere_has_no_text() -> None:
    assert licences.without_text([LIBC], {"usr/share/doc/libc6": Entry(link="gcc-12-base")}) == ["libc6"]


def test_a_wheel_has_its_text_in_its_dist_info_or_beside_ours() -> None:
    in_wheel = {"usr/lib/python3/dist-packages/rich-15.0.0.dist-info/licenses/LICENSE": TEXT}
    beside = {"usr/share/doc/aliquot/licences/rich.txt": TEXT}

    assert licences.without_text([RICH], in_wheel) == []
    assert licences.without_text([RICH], beside) == []


def test_a_component_without_a_text_is_named() -> None:
    there = {"usr/lib/python3/dist-packages/rich-15.0.0.dist-info/METADATA": TEXT}

    assert licences.without_text([RICH, PREACT], there) == ["rich", "preact"]
