"""What every container on the cards gets: the shim, and the driver from the runtime that brings it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import aliquot
from aliquot.adapters.gpu import player
from aliquot.adapters.gpu.driverfile import DriverFile, DriverFileError
from aliquot.adapters.gpu.player import Playing
from aliquot.adapters.storage.shims import ShimError
from aliquot.model.containers.edits import Edits, Mount
from aliquot.services.agent.injection import Libraries
from aliquot.services.agent.libraries import install_libraries

NUMBERS = {"GPU-a": 0, "GPU-b": 1}
_MACHINES = {"x86_64": 62, "aarch64": 183}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Libraries, as far as they are looked at."""
    folder = tmp_path / "lib"
    names = ("libaliquot.so", "simgpu/libsimrm.so", "simgpu/libcuda.so.1", "simgpu/libnvidia-ml.so.1")
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        head = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + _MACHINES[platform.machine()].to_bytes(2, "little")
        path.write_bytes(head.ljust(64, b"\0") + name.encode())
    monkeypatch.setattr(player, "library", lambda: folder)
    return folder


def a_file(tmp_path: Path, content: object, *, wanted: bool) -> DriverFile:
    path = tmp_path / "nvidia.yaml"
    path.write_text(yaml.safe_dump(content))
    return DriverFile(wanted=wanted, places=(path,))


def nvidias(*devices: str) -> Mapping[str, Any]:
    """What its tool writes of such a node."""
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "containerEdits": {"mounts": [{"hostPath": "/usr/lib/libcuda.so", "containerPath": "/usr/lib/libcuda.so"}]},
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{at}"}]}}
            for at, name in enumerate(devices)
        ],
    }


def installed(tmp_path: Path, nvidia: DriverFile | None = None, playing: Playing | None = None) -> Libraries:
    return install_libraries(tmp_path / "state", playing, nvidia, NUMBERS)


class TestOnRealCards:
    def test_shim_and_preload_file_are_mounted_read_only(self, source: Path, tmp_path: Path) -> None:
        shim, preload = installed(tmp_path).mounts
        folder = Path(shim.host).parent
        assert folder.name.startswith(f"{aliquot.__version__}-")
        assert shim == Mount(str(folder / "libaliquot.so"), "/usr/local/lib/aliquot/libaliquot.so")
        assert preload == Mount(str(folder / "ld.so.preload"), "/etc/ld.so.preload")
        assert Path(preload.host).read_text() == "/usr/local/lib/aliquot/libaliquot.so\n"
        assert Path(shim.host).read_bytes() == (source / "libaliquot.so").read_bytes()

    def test_new_shim_version_is_installed_beside_the_old(self, source: Path, tmp_path: Path) -> None:
        before = installed(tmp_path).mounts[0].host
        (source / "libaliquot.so").write_bytes((source / "libaliquot.so").read_bytes() + b"newer")
        after = installed(tmp_path).mounts[0].host
        assert before != after
        assert Path(before).exists()
        assert Path(after).exists()

    def test_driver_edits_are_empty_without_nvidias_file(self, source: Path, tmp_path: Path) -> None:
        assert installed(tmp_path).driver(["GPU-a"]) == Edits({})

    def test_driver_edits_come_from_nvidias_file(self, source: Path, tmp_path: Path) -> None:
        libraries = installed(tmp_path, a_file(tmp_path, nvidias("GPU-a", "GPU-b"), wanted=True))
        extra = libraries.driver(["GPU-b"]).extra
        assert extra["deviceNodes"] == [{"path": "/dev/nvidia1"}]
        assert [mount["hostPath"] for mount in extra["mounts"]] == ["/usr/lib/libcuda.so"]

    def test_driver_file_with_numbers_is_read_by_current_numbers(self, source: Path, tmp_path: Path) -> None:
        libraries = installed(tmp_path, a_file(tmp_path, nvidias("0", "1"), wanted=True))
        assert libraries.driver(["GPU-b"]).extra["deviceNodes"] == [{"path": "/dev/nvidia1"}]

    def test_required_driver_file_without_the_card_is_an_error(self, source: Path, tmp_path: Path) -> None:
        libraries = installed(tmp_path, a_file(tmp_path, nvidias("GPU-a"), wanted=True))
        with pytest.raises(DriverFileError, match="has no entry for GPU-b: run `nvidia-ctk cdi generate` again"):
            libraries.driver(["GPU-b"])

    @pytest.mark.parametrize("content", [nvidias("GPU-a"), {"kind": "another.com/gpu"}, None])
    def test_optional_driver_file_without_the_card_is_ignored(
        self, source: Path, tmp_path: Path, content: object
    ) -> None:
        assert installed(tmp_path, a_file(tmp_path, content, wanted=False)).driver(["GPU-b"]) == Edits({})

    def test_driver_file_is_not_read_while_the_cards_are_unknown(self, source: Path, tmp_path: Path) -> None:
        nowhere = DriverFile(wanted=True, places=(tmp_path / "none",))
        assert installed(tmp_path, nowhere).driver([]) == Edits({})

    def test_missing_library_is_named(self, source: Path, tmp_path: Path) -> None:
        (source / "libaliquot.so").unlink()
        with pytest.raises(ShimError, match=r"libaliquot\.so"):
            installed(tmp_path)


class TestOnSimulatedCards:
    PLAYING = Playing(1, 2, 4, 16 * 1024, "/run/aliquot/sim/sock")

    def test_simulated_driver_is_installed_beside_the_shim_and_preloaded_after_it(
        self, source: Path, tmp_path: Path
    ) -> None:
        mounts = installed(tmp_path, playing=self.PLAYING).mounts
        assert [mount.container for mount in mounts] == [
            "/usr/local/lib/aliquot/libaliquot.so",
            "/usr/local/lib/aliquot/libsimrm.so",
            "/usr/local/lib/aliquot/libcuda.so.1",
            "/usr/local/lib/aliquot/libnvidia-ml.so.1",
            "/etc/ld.so.preload",
        ]
        assert all(Path(mount.host).is_file() and not mount.writable for mount in mounts)
        preloaded = Path(mounts[-1].host).read_text().split()
        assert preloaded == ["/usr/local/lib/aliquot/libaliquot.so", "/usr/local/lib/aliquot/libsimrm.so"]

    def test_simulated_container_gets_the_simulator_and_its_cards(self, source: Path, tmp_path: Path) -> None:
        edits = installed(tmp_path, playing=self.PLAYING).driver(["GPU-a", "GPU-b"])
        assert edits.env == {
            "ALIQUOT_SIMGPU": "/run/aliquot/sim/sock",
            "LD_LIBRARY_PATH": "/usr/local/lib/aliquot",
            "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        }
        assert edits.mounts == (Mount("/run/aliquot/sim", "/run/aliquot/sim"),)

    def test_simulated_cards_are_all_visible_while_the_cards_are_unknown(self, source: Path, tmp_path: Path) -> None:
        assert "NVIDIA_VISIBLE_DEVICES" not in installed(tmp_path, playing=self.PLAYING).driver([]).env
