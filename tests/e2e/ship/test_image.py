"""The image as it is built: for both architectures, small, whole, and the programs in it run; and both as one.

Fetches from Debian's mirror and from PyPI what is not in the cache; the first build takes some minutes.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from packaging.licenses import canonicalize_license_expression

from imagebuild import bytecode, image, index, main, oci, wheels
from imagebuild.debian import Apt
from imagebuild.errors import CannotBuildError
from imagebuild.inputs import Shop, Versions
from kit.values.archives import read_member
from testbed.build import CannotBuildError as CannotBuildTestbedError
from testbed.realnodes.lone import LoneContainerd
from testbed.registries.depot import Depot

ROOT = image.ROOT
MACHINES = {"amd64": 62, "arm64": 183}  # e_machine in the header of an ELF file
LIMIT = 64e6  # bytes of an archive: amd64 has 57 MB, arm64 55 MB; numpy, grpcio and cryptography are half of them
PROGRAMS = (
    *("aliquot", "qgpu-scheduler", "qgpu-manager", "kubectl-aliquot", "kubectl-inspect-gpushare"),
    *("gpushare-sche-extender", "gpushare-device-plugin-v2"),
)
_ENTER = """
root=$1 user=$2; shift 2
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
exec chroot --userspec="$user" "$root" "$@"
"""
IMPORT_ALL = """
import importlib, pkgutil, aliquot, grpc, cryptography.x509, numpy.linalg
found = [module.name for module in pkgutil.walk_packages(aliquot.__path__, "aliquot.")]
for name in found:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(found))
"""


@dataclass(frozen=True)
class Built:
    """One archive, read back."""

    path: Path
    arch: str

    @cached_property
    def blobs(self) -> dict[str, bytes]:
        with tarfile.open(self.path) as tar:
            return {member.name: read_member(tar, member) for member in tar if member.isfile()}

    @cached_property
    def layers(self) -> list[bytes]:
        (manifest_entry,) = json.loads(self.blobs["manifest.json"])
        return [self.blobs[name] for name in manifest_entry["Layers"]]

    @cached_property
    def members(self) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
        """Of all layers, the last of each path."""
        found = {}
        for layer in self.layers:
            with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
                found.update(
                    {member.name: (member, read_member(tar, member) if member.isfile() else b"") for member in tar}
                )
        return found

    @property
    def binaries(self) -> dict[str, bytes]:
        return {path: data for path, (_, data) in self.members.items() if data.startswith(b"\x7fELF")}

    @cached_property
    def sbom(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.path.with_suffix(".spdx.json").read_text())
        return found


def _build(out: Path, arch: str, *more: str) -> Built:
    # Unlocked: on the day on which Debian publishes a fix these tests still say whether the image is good.
    command: list[str | Path] = [
        sys.executable,
        ROOT / "deploy" / "image" / "build.py",
        "--arch",
        arch,
        "--unlocked",
        "--out",
        out,
        *more,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Built(out, arch)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    folder = tmp_path_factory.mktemp("images")
    return {arch: _build(folder / f"{arch}.tar", arch) for arch in MACHINES}


@pytest.fixture(params=sorted(MACHINES))
def built(request: pytest.FixtureRequest, images: Mapping[str, Built]) -> Built:
    return images[request.param]


@pytest.fixture(scope="session")
def root(images: Mapping[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this machine's image."""
    if os.geteuid():
        pytest.fail("entering an image needs root: run as root", pytrace=False)
    folder = tmp_path_factory.mktemp("root")
    folder.chmod(0o755)
    for layer in images[_here()].layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
            tar.extraction_filter = lambda member, _path: member  # the parameter `filter` needs Python 3.11.4
            tar.extractall(folder)
    return folder


def _here() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


def _inside(root: Path, *command: str, user: str = "0:0") -> str:
    """With the image read-only, as a runtime gives it to a container; the mount ends with the command."""
    environment = {"PATH": oci.ENVIRONMENT["PATH"]}
    whole: list[str | Path] = ["unshare", "--mount", "sh", "-ec", _ENTER, "sh", root, user, *command]
    done = subprocess.run(whole, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_program_and_library_is_of_the_images_machine(built: Built) -> None:
    machines = {path: int.from_bytes(data[18:20], "little") for path, data in built.binaries.items()}

    assert len(machines) > 50
    assert {path for path, machine in machines.items() if machine != MACHINES[built.arch]} == set()


def test_every_library_that_is_asked_for_is_there(built: Built, tmp_path: Path) -> None:
    """What packages.txt leaves out is left out rightly."""
    names = {os.path.basename(path) for path in built.members}
    missing: dict[str, str] = {}
    for path, data in built.binaries.items():
        file = tmp_path / "file"
        file.write_bytes(data)
        said = subprocess.run(["readelf", "-dW", file], capture_output=True, text=True, check=True).stdout
        missing |= {name: path for name in re.findall(r"\(NEEDED\).*\[(.*)\]", said) if name not in names}

    assert missing == {}


def test_no_file_changes_who_runs_it_and_none_can_be_written_by_others(built: Built) -> None:
    files = {path: member.mode for path, (member, _) in built.members.items() if not member.issym()}

    assert {path for path, mode in files.items() if mode & 0o6000} == set()
    assert {path for path, mode in files.items() if mode & 0o022} == {"tmp", "var/tmp"}
    assert {(member.uid, member.gid) for member, _ in built.members.values()} == {(0, 0)}


def test_it_is_small(built: Built) -> None:
    assert built.path.stat().st_size < LIMIT


def test_there_is_nothing_to_install_packages_with(built: Built) -> None:
    """Nor perl, nor pip: what is not there needs no patches, and helps no attacker."""
    files = {path for path, (member, _) in built.members.items() if member.mode & 0o111 and not member.isdir()}
    names = {os.path.basename(path) for path in files}

    assert names & {"dpkg", "apt-get", "perl", "pip", "pip3", "tar", "curl", "wget", "gcc"} == set()


def test_every_module_has_its_bytecode(built: Built) -> None:
    sources = {path for path, (member, _) in built.members.items() if path.endswith(".py") and member.isfile()}
    compiled = {path for path in built.members if path.endswith(".pyc")}

    assert {bytecode.cached(path) for path in sources} == compiled


def test_every_component_has_a_licence_that_spdx_understands(built: Built) -> None:
    packages = built.sbom["packages"]
    assert isinstance(packages, list)
    said = {package["name"]: package["licenseDeclared"] for package in packages}

    assert {"libc6", "python3.11-minimal", "numpy", "grpcio", "preact", "aliquot", "libaliquot.so"} < set(said)
    assert {name for name, licence in said.items() if not canonicalize_license_expression(licence)} == set()


def test_every_package_and_distribution_in_it_is_in_its_sbom(built: Built) -> None:
    packages = built.sbom["packages"]
    assert isinstance(packages, list)
    manifest_entry = {(package["name"], package["versionInfo"]) for package in packages}
    debian = {_debian(data) for path, (_, data) in built.members.items() if "/dpkg/status.d/" in path and data}
    python = {_python(data) for path, (_, data) in built.members.items() if path.endswith(".dist-info/METADATA")}

    assert debian | python <= manifest_entry
    assert len(debian) > 15
    assert len(python) > 20


def _debian(record: bytes) -> tuple[str, str]:
    fields = dict(line.split(": ", 1) for line in record.decode().splitlines())
    return fields["Package"], fields["Version"]


def _python(metadata: bytes) -> tuple[str, str]:
    fields = dict(line.split(": ", 1) for line in metadata.decode().splitlines() if re.match(r"(Name|Version): ", line))
    return wheels.normal(fields["Name"]), fields["Version"]


def test_the_sbom_beside_the_archive_is_the_one_inside(built: Built) -> None:
    inside = built.members["usr/share/doc/aliquot/sbom.spdx.json"][1]

    assert json.loads(inside) == built.sbom


@pytest.fixture
def outdated(tmp_path: Path) -> Shop:
    """Whose lock has a package that Debian's mirror no longer has."""
    text = (image.HERE / "lock" / "amd64.txt").read_text()
    (tmp_path / "amd64.txt").write_text(re.sub(r"^deb dash \S+", "deb dash 0.0.1-1", text, flags=re.MULTILINE))
    return Shop(
        apt=Apt(main.cache_home(), arch="amd64", sources=None),
        pip=wheels.Pip(ROOT, main.cache_home(), arch="amd64"),
        packages=image.HERE / "packages.txt",
        constraints=ROOT / "constraints.txt",
        lock=tmp_path / "amd64.txt",
        arch="amd64",
    )


def test_a_lock_that_cannot_be_followed_ends_the_build_and_says_what_to_do(outdated: Shop) -> None:
    with pytest.raises(CannotBuildError, match=r"(?s)'0.0.1-1' for 'dash'.*`--refresh` writes today's into amd64.txt"):
        outdated.taken(Versions.LOCKED, print)


def test_an_unlocked_build_takes_todays_instead_and_leaves_the_lock_alone(outdated: Shop) -> None:
    before, said = outdated.lock.read_text(), list[str]()

    found = outdated.taken(Versions.UNLOCKED, said.append)

    assert "dash" in {package.locked.name for package in found.packages}
    assert said[0].startswith("the lock cannot be followed, today's versions are taken")
    assert outdated.lock.read_text() == before


def test_a_refreshed_lock_is_followed_by_the_next_build(outdated: Shop) -> None:
    refreshed = outdated.taken(Versions.REFRESHED, print)

    assert outdated.taken(Versions.LOCKED, print).locked() == refreshed.locked()


def test_another_version_and_another_variable_change_our_layer_alone(
    images: Mapping[str, Built], tmp_path: Path
) -> None:
    other = _build(tmp_path / "other.tar", "amd64", "--version", "9.9.9", "--env", "ALIQUOT_SIMULATE=4x16GiB")

    same = [one == two for one, two in zip(images["amd64"].layers, other.layers, strict=True)]
    assert same == [True, True, False]
    assert b'__version__ = "9.9.9"' in other.members["usr/lib/python3/dist-packages/aliquot/__init__.py"][1]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_answers_as_root_and_as_the_schedulers_user(root: Path, program: str) -> None:
    for user in ("0:0", "65532:65532"):
        assert "Usage:" in _inside(root, program, "--help", user=user)


def test_the_init_containers_program_is_there_by_the_vendors_name(root: Path) -> None:
    assert "install-shim" in _inside(root, "install.sh", "--help")


def test_its_version_is_the_projects(root: Path) -> None:
    assert image.project_version() in _inside(root, "aliquot", "--version", user="65532:65532")


def test_every_module_of_ours_can_be_imported_without_a_disk_to_write_to(root: Path) -> None:
    assert int(_inside(root, "/usr/bin/python3.11", "-IB", "-c", IMPORT_ALL, user="65532:65532")) > 100


# --- both as one -----------------------------------------------------------------------------------------------------

NAME = f"aliquot/aliquot:{image.project_version()}"


@pytest.fixture(scope="session")
def both(images: Mapping[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("both") / "both.tar"
    assert index.main(["--out", str(archive), *(str(image.path) for image in images.values())]) == 0
    return archive


@pytest.fixture
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneContainerd]:
    if os.geteuid():
        pytest.fail("containerd needs root: run as root", pytrace=False)
    try:
        running = LoneContainerd(tmp_path_factory.mktemp("runtime"))  # a socket's path is short
    except CannotBuildTestbedError as error:
        pytest.exit(f"no runtime to test with: {error}", returncode=1)
    with running:
        yield running


def _runs_as_its_own(runtime: LoneContainerd, name: str) -> None:
    root = runtime.unpacked(name)
    assert runtime.run("od", "-An", "-tu2", "-j18", "-N2", root / "usr/bin/python3.11").split() == [
        str(MACHINES[_here()])
    ]
    assert image.project_version() in runtime.run("chroot", root, "aliquot", "--version")


def test_a_runtime_that_is_given_both_has_both_and_runs_its_own(
    both: Path, runtime: LoneContainerd, images: Mapping[str, Built]
) -> None:
    runtime.ctr("images", "import", "--all-platforms", both)

    assert runtime.names() == [f"docker.io/{NAME}"]
    layers = {oci.digest(layer) for built in images.values() for layer in built.layers}
    assert layers <= runtime.blobs()
    _runs_as_its_own(runtime, f"docker.io/{NAME}")


def test_both_are_pushed_by_one_name_and_a_runtime_pulls_its_own(
    both: Path, runtime: LoneContainerd, depot: Depot, tmp_path: Path, images: Mapping[str, Built]
) -> None:
    """As docs/releasing.md says for crane."""
    layout, name = tmp_path / "layout", f"{depot.host}/{NAME}"
    with tarfile.open(both) as tar:
        tar.extraction_filter = lambda member, _path: member
        tar.extractall(layout)
    depot.crane("push", layout, name)

    depot.crane("validate", "--fast", "--remote", name)  # everything that is named is there
    listed = json.loads(depot.crane("manifest", name))["manifests"]
    assert {manifest["platform"]["architecture"] for manifest in listed} == set(MACHINES)
    runtime.ctr("images", "pull", "--plain-http", name)
    assert {oci.digest(layer) for layer in images[_here()].layers} <= runtime.blobs()
    _runs_as_its_own(runtime, name)
