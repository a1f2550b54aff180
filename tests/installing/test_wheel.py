"""What `pipx install` and `uvx` get: a wheel that needs no compiler, no checkout and no folder to stand in."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
import urllib.request
import zipfile
from pathlib import Path

import pytest

from installing.wheels import MACHINES, ROOT, binaries, build, installed, names, unpacked
from kit.running.ports import free_port

OLDEST_GLIBC = (2, 17)
# What is in the package beside Python: the demo's Pods, what `aliquot uninstall` removes, the kubelet's messages,
# machine code, and the dashboard.
DATA = re.compile(
    r"aliquot/(cli/demo/\w+\.yaml|manifests/install\.yaml|adapters/kubelet/\w+\.(proto|pyi)|lib/.+|static/.+)"
)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {arch: build("wheel", tmp_path_factory.mktemp(arch), arch=arch) for arch in MACHINES}


@pytest.mark.parametrize("arch", MACHINES)
def test_a_wheel_holds_code_for_the_machine_in_its_name(wheels: dict[str, Path], arch: str) -> None:
    assert wheels[arch].name.endswith(f"-py3-none-manylinux_2_17_{arch}.whl")
    found = {binary.name: binary.machine for binary in binaries(wheels[arch])}
    assert "aliquot/lib/libaliquot.so" in found
    assert "aliquot/lib/liblists.so" in found
    assert "aliquot/lib/simgpu/player" in found
    assert set(found.values()) == {MACHINES[arch]}


@pytest.mark.parametrize("arch", MACHINES)
def test_wheel_code_runs_with_the_glibc_in_its_name(wheels: dict[str, Path], arch: str, tmp_path: Path) -> None:
    asked = {binary.name: max(binary.glibc(tmp_path)) for binary in binaries(wheels[arch])}
    assert {name: version for name, version in asked.items() if version > OLDEST_GLIBC} == {}


def test_both_wheels_hold_the_same_files(wheels: dict[str, Path]) -> None:
    assert names(wheels["x86_64"]) == names(wheels["aarch64"])


def test_a_wheel_holds_the_package_and_nothing_else(wheels: dict[str, Path]) -> None:
    tree = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    found = {name for name in names(wheels[platform.machine()]) if ".dist-info/" not in name}
    assert {name for name in found if name.endswith(".py")} == tree
    assert [name for name in found if not name.endswith(".py") and not DATA.fullmatch(name)] == []


def test_a_wheel_holds_the_manifest_that_uninstall_removes(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels[platform.machine()]) as wheel:
        packaged = wheel.read("aliquot/manifests/install.yaml")
    assert packaged == (ROOT / "deploy" / "install.yaml").read_bytes()


def test_a_wheel_holds_the_whole_dashboard(wheels: dict[str, Path]) -> None:
    static = ROOT / "src" / "aliquot" / "static"
    tree = {f"aliquot/static/{path.relative_to(static)}" for path in static.rglob("*") if path.is_file()}
    assert "aliquot/static/index.html" in tree
    assert tree <= names(wheels[platform.machine()])


def test_the_sources_build_the_same_wheel_again(wheels: dict[str, Path], tmp_path: Path) -> None:
    tree = unpacked(build("sdist", tmp_path / "sdist"), tmp_path / "tree")
    again = build("wheel", tmp_path / "wheel", arch="aarch64", tree=tree)
    assert again.name == wheels["aarch64"].name
    assert names(again) == names(wheels["aarch64"])
    assert again.read_bytes() == wheels["aarch64"].read_bytes()  # in another folder: so releases are checked


def test_an_installed_wheel_runs_from_any_folder_with_nothing_set_up(wheels: dict[str, Path], tmp_path: Path) -> None:
    programs = installed(wheels[platform.machine()], tmp_path / "venv")
    home = tempfile.mkdtemp(prefix="alq")  # short enough for sockets
    environment = {"PATH": f"{programs}:{os.defpath}", "ALIQUOT_HOME": home, "LANG": "C.UTF-8"}

    def aliquot(*words: str) -> str:
        done = subprocess.run(
            ["aliquot", *words],
            executable=programs / "aliquot",
            env=environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    load = ("--", "aliquot", "burn", "load", "--seconds", "0.5")
    port = free_port()
    try:
        assert re.fullmatch(r"aliquot, version \d+\.\d+\.\d+\n", aliquot("--version"))
        assert "starting the daemon with simulated cards, 1x8GiB" in aliquot("run", "--simulate", "1x8GiB", *load)
        aliquot("down")
        aliquot("up", "--detach", "--simulate", "1x8GiB", "--listen", str(port))
        assert re.search(r"\d%", aliquot("run", "--memory", "2", *load))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as page:
            assert page.headers["Content-Type"].startswith("text/html")
            assert b'<script type="module"' in page.read()
        assert "daemon stopped" in aliquot("down")
    finally:
        aliquot("down")
        shutil.rmtree(home, ignore_errors=True)
