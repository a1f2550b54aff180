"""An agent in a container that was given too little of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.services.agent.hostaccess import HostAccess, acquire_host_access, host_names
from aliquot.services.daemon.home import mount_points, point_of

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
