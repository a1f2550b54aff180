"""An agent in a container that was given too little of the host."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.host.hostmounts import HostAccessError
from aliquot.services.agent import hostaccess
from aliquot.services.agent.hostaccess import HostAccess, acquire_host_access, host_names, is_at_host_path
from aliquot.services.daemon.home import StartError, mount_points, point_of

MOUNTS = """\
36 22 0:31 / / rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u
37 36 0:26 / /proc rw - proc proc rw
41 36 8:1 /var /host/var rw shared:5 - ext4 /dev/sda1 rw
42 36 8:1 /var/lib/kubelet/device-plugins /var/lib/kubelet/device-plugins rw - ext4 /dev/sda1 rw
"""


def test_mount_points_have_the_type_of_the_last_mount() -> None:
    again = "50 37 0:99 / / rw shared:1 master:2 - tmpfs tmpfs rw"
    assert mount_points(MOUNTS)["/"] == "overlay"
    assert mount_points(f"{MOUNTS}{again}")["/"] == "tmpfs"


@pytest.mark.parametrize(
    ("folder", "point"),
    [
        ("/host/var/lib/qgpu", "/host/var"),
        ("/host/variable", None),
        ("/run/aliquot", None),
        ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins"),
    ],
)
def test_point_of_finds_the_mount_of_a_folder(folder: str, point: str | None) -> None:
    assert point_of(folder, mount_points(MOUNTS)) == point


def test_host_names_of_a_mount_point() -> None:
    assert host_names("/host/var") == ["/host/var", "/var"]


def test_host_access_outside_a_pod_mounts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert acquire_host_access([str(tmp_path)], tmp_path / "kubelet.sock") == HostAccess()


def test_host_access_is_inherited_over_exec(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounted = '{"names": {"/host/var/lib/qgpu": "/var/lib/qgpu"}, "mounted": ["/var/lib/qgpu"], "processes": true}'
    monkeypatch.setenv("ALIQUOT_MOVED_IN", mounted)
    host_access = acquire_host_access(["/host/var/lib/qgpu"], tmp_path / "kubelet.sock")
    assert host_access.name("/host/var/lib/qgpu") == "/var/lib/qgpu"
    assert host_access.name("/run/aliquot") == "/run/aliquot"
    assert host_access.processes


@pytest.mark.parametrize(
    ("inner", "same"),
    [
        ("/var/lib/kubelet/device-plugins", True),
        ("/lib/kubelet/device-plugins", True),  # /var is a file system of its own
        ("/nodes/n1/var/lib/kubelet/device-plugins", True),  # the host's root is a folder
        ("/data/kubelet/device-plugins", False),
        ("/", False),
    ],
)
def test_mount_at_its_host_path_is_recognised(inner: str, same: bool) -> None:
    folder = "/var/lib/kubelet/device-plugins"
    mounts = f"42 36 8:1 {inner} {folder} rw - ext4 /dev/sda1 rw"
    assert is_at_host_path(folder, mounts) is same
    assert not is_at_host_path("/run/aliquot", mounts)


class TestWithoutPrivilege:
    """gpushare's DaemonSet: of the host it has the kubelet's device-plugins folder, and nothing else."""

    @pytest.fixture
    def plugins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        def refuse(*_: object) -> None:
            raise HostAccessError("the container is not privileged")

        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        monkeypatch.setattr(hostaccess, "_mount", refuse)
        monkeypatch.setattr(hostaccess, "_sees_host", lambda kubelet: False)
        folder = tmp_path / "k" / "device-plugins"
        folder.mkdir(parents=True)
        self.mountinfo = tmp_path / "mountinfo"
        self.mountinfo.write_text(
            f"36 22 0:31 / / rw - overlay overlay rw\n42 36 8:1 {folder} {folder} rw - ext4 x rw\n"
        )
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.bind(str(folder / "kubelet.sock"))
            kubelet.listen()
            yield folder
        os.environ.pop("ALIQUOT_MOVED_IN", None)

    def test_missing_folders_are_in_the_plugins_folder_and_each_is_named(self, plugins: Path, tmp_path: Path) -> None:
        run, state, cdi = (str(tmp_path / name) for name in ("r", "s", "c"))
        access = acquire_host_access([run, state, cdi], plugins / "kubelet.sock", cdi=cdi, mountinfo=self.mountinfo)
        assert (access.name(run), access.name(state)) == (f"{plugins}/aliquot/run", f"{plugins}/aliquot/state")
        assert access.mounted == ()
        resources = str(plugins.parent / "pod-resources")
        assert [lack.missing for lack in access.lacking] == [run, state, cdi, resources, "hostPID"]
        assert f"hostPath: {{path: {cdi}, type: DirectoryOrCreate}}" in access.lacking[2].add
        assert Path(run).readlink() == plugins / "aliquot" / "run"
        again = acquire_host_access([run, state, cdi], plugins / "kubelet.sock", cdi=cdi, mountinfo=self.mountinfo)
        assert again == access, "over an exec"

    def test_cdi_that_was_asked_for_is_not_given_up(self, plugins: Path, tmp_path: Path) -> None:
        folders = [str(tmp_path / name) for name in ("r", "s", "c")]
        with pytest.raises(StartError, match="not privileged"):
            acquire_host_access(folders, plugins / "kubelet.sock", cdi=None, mountinfo=self.mountinfo)

    def test_plugins_folder_at_another_path_is_no_place(self, plugins: Path, tmp_path: Path) -> None:
        self.mountinfo.write_text(self.mountinfo.read_text().replace(f"8:1 {plugins}", "8:1 /data/device-plugins-x"))
        with pytest.raises(StartError, match="hostPID: true"):
            acquire_host_access([str(tmp_path / "r")], plugins / "kubelet.sock", mountinfo=self.mountinfo)
