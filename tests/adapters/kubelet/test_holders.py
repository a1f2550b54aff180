"""Both of the kubelet's accounts, at their places under its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.holders import Books
from aliquot.adapters.kubelet.podresources import Holder
from kit.kubelet import FakePodResources, a_folder, play


def test_who_holds_devices_is_asked_of_pod_resources() -> None:
    async def scene(folder: Path) -> list[Holder]:
        (folder / "pod-resources").mkdir()
        kubelet = FakePodResources(folder / "pod-resources" / "kubelet.sock")
        kubelet.hold("web-0", "main", {"aliyun.com/gpu-mem": ["GPU-0-_-1"]})
        await kubelet.start()
        books = Books(folder)
        try:
            return await books.holders()
        finally:
            await books.close()
            await kubelet.stop()

    with a_folder() as folder:
        (holder,) = play(scene(folder))
    assert (holder.name, holder.devices) == ("web-0", {"aliyun.com/gpu-mem": frozenset({"GPU-0-_-1"})})


def test_what_it_noted_for_itself_is_read_beside_its_plugins(tmp_path: Path) -> None:
    (tmp_path / "device-plugins").mkdir()
    entry = {"PodUID": "u1", "ContainerName": "main", "ResourceName": "r", "DeviceIDs": {"-1": ["a"]}}
    path = tmp_path / "device-plugins" / "kubelet_internal_checkpoint"
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1}))
    found = Books(tmp_path).checkpoint()
    assert found is not None
    assert [(each.pod_uid, each.ids) for each in found] == [("u1", frozenset({"a"}))]


def test_what_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert Books(tmp_path).checkpoint() is None


def test_a_kubelet_that_is_not_there_is_an_error_that_names_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aliquot.adapters.kubelet.podresources._TRIES", 1)

    async def scene(folder: Path) -> None:
        books = Books(folder)
        try:
            await books.holders()
        finally:
            await books.close()

    with a_folder() as folder, pytest.raises(KubeletError, match=r"pod-resources/kubelet\.sock"):
        play(scene(folder))
