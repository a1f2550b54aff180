"""The kubelet's two records of device holders, at their paths under its root directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.holders import Kubelet
from aliquot.adapters.kubelet.podresources import Holder
from kit.agents.kubelet import FakePodResources, a_folder, play


def test_holders_come_from_pod_resources() -> None:
    async def scene(folder: Path) -> list[Holder]:
        (folder / "pod-resources").mkdir()
        server = FakePodResources(folder / "pod-resources" / "kubelet.sock")
        server.hold("web-0", "main", {"aliyun.com/gpu-mem": ["GPU-0-_-1"]})
        await server.start()
        kubelet = Kubelet(folder)
        try:
            return await kubelet.holders()
        finally:
            await kubelet.close()
            await server.stop()

    with a_folder() as folder:
        (holder,) = play(scene(folder))
    assert (holder.name, holder.devices) == ("web-0", {"aliyun.com/gpu-mem": frozenset({"GPU-0-_-1"})})


def test_checkpoint_is_read_from_the_device_plugins_folder(tmp_path: Path) -> None:
    (tmp_path / "device-plugins").mkdir()
    entry = {"PodUID": "u1", "ContainerName": "main", "ResourceName": "r", "DeviceIDs": {"-1": ["a"]}}
    path = tmp_path / "device-plugins" / "kubelet_internal_checkpoint"
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1}))
    found = Kubelet(tmp_path).checkpoint()
    assert found is not None
    assert [(entry.pod_uid, entry.ids) for entry in found] == [("u1", frozenset({"a"}))]


def test_missing_checkpoint_is_none(tmp_path: Path) -> None:
    assert Kubelet(tmp_path).checkpoint() is None


def test_absent_kubelet_is_an_error_that_names_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aliquot.adapters.kubelet.podresources._TRIES", 1)

    async def scene(folder: Path) -> None:
        kubelet = Kubelet(folder)
        try:
            await kubelet.holders()
        finally:
            await kubelet.close()

    with a_folder() as folder:
        (folder / "pod-resources").mkdir()
        with pytest.raises(KubeletError, match=r"pod-resources/kubelet\.sock"):
            play(scene(folder))


def test_container_without_the_folder_of_pod_resources_lists_no_holders(tmp_path: Path) -> None:
    assert play(Kubelet(tmp_path).holders()) == []
