"""The kubelet's checkpoint: what it says of devices, or nothing at all; an error only where no file is left."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.adapters.kubelet import deviceplugin_pb2 as wire
from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.checkpoint import CachedResponse, Entry, device_resources, read_checkpoint
from kit.running.scarcefiles import scarce_files
from kit.values.anyjson import any_json

CORE = "tke.cloud.tencent.com/qgpu-core"
ENTRY = {
    "PodUID": "5c1f0d2e-0000-4000-8000-000000000001",
    "ContainerName": "init",
    "ResourceName": CORE,
    "DeviceIDs": {"-1": ["GPU-1-_-4", "GPU-1-_-7"]},
    "AllocResp": "Ogw=",
}


def written(folder: Path, entries: Any, **more: Any) -> Path:
    """As kubelet 1.36 writes it."""
    path = folder / "kubelet_internal_checkpoint"
    data = {"PodDeviceEntries": entries, "RegisteredDevices": {CORE: ["GPU-1-_-4"]}}
    path.write_text(json.dumps({"Data": data, "Checksum": 1234567890, **more}))
    return path


def test_checkpoint_has_pod_container_resource_and_devices(tmp_path: Path) -> None:
    read_back = read_checkpoint(written(tmp_path, [ENTRY]))
    assert read_back == (Entry(ENTRY["PodUID"], "init", CORE, frozenset({"GPU-1-_-4", "GPU-1-_-7"})),)  # type: ignore[arg-type]  # the entry is of many types


def test_checkpoint_joins_devices_of_several_numa_nodes(tmp_path: Path) -> None:
    (entry,) = read_checkpoint(written(tmp_path, [{**ENTRY, "DeviceIDs": {"0": ["a"], "1": ["b", "c"]}}])) or ()
    assert entry.ids == {"a", "b", "c"}


@pytest.mark.parametrize("none", [None, []])
def test_checkpoint_before_the_first_pod_is_empty(tmp_path: Path, none: object) -> None:
    assert read_checkpoint(written(tmp_path, none)) == ()


def test_checkpoint_has_the_resources_of_registered_and_of_held_devices(tmp_path: Path) -> None:
    path = written(tmp_path, [{**ENTRY, "ResourceName": "aliyun.com/gpu-mem"}])
    assert device_resources(path) == {CORE, "aliyun.com/gpu-mem"}
    assert device_resources(tmp_path / "missing") == frozenset()
    path.write_text('{"Data": {"PodDeviceEntries": null, "RegisteredDevices": {"aliyun.com/gpu-mem": []}}}')
    assert device_resources(path) == {"aliyun.com/gpu-mem"}  # its plugin has withdrawn them


def test_checkpoint_keeps_the_plugins_response(tmp_path: Path) -> None:
    answer = wire.ContainerAllocateResponse(
        envs={"A": "b"},
        mounts=[wire.Mount(container_path="/there", host_path="/here")],
        cdi_devices=[wire.CDIDevice(name="x.dev/y=z")],
    )
    kept = base64.b64encode(answer.SerializeToString()).decode()
    (entry,) = read_checkpoint(written(tmp_path, [{**ENTRY, "AllocResp": kept}])) or ()
    assert entry.response() == CachedResponse({"A": "b"}, ("x.dev/y=z",), ("/here",))


@pytest.mark.parametrize("answer", [None, "", "no base64!", "Ogw=", "////"])
def test_checkpoint_with_an_unreadable_response_keeps_the_rest(tmp_path: Path, answer: str | None) -> None:
    (entry,) = read_checkpoint(written(tmp_path, [{**ENTRY, "AllocResp": answer}])) or ()
    assert entry.response() is None
    assert entry.container == "init"


def test_checkpoint_ignores_unknown_fields(tmp_path: Path) -> None:
    assert read_checkpoint(written(tmp_path, [{**ENTRY, "New": [1]}], Version="v3")) is not None


def test_checkpoint_without_file_is_none(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "kubelet_internal_checkpoint") is None
    assert read_checkpoint(tmp_path) is None


@pytest.mark.parametrize(
    "entries",
    [
        {"a": ENTRY},
        [{**ENTRY, "DeviceIDs": ["GPU-1-_-4"]}],
        [{**ENTRY, "DeviceIDs": {"-1": "GPU-1-_-4"}}],
        [{**ENTRY, "PodUID": 7}],
        [{key: value for key, value in ENTRY.items() if key != "ContainerName"}],
    ],
    ids=["a mapping of entries", "devices of kubelet 1.19", "one device", "a number for a Pod", "no container"],
)
def test_checkpoint_of_unknown_form_is_none(tmp_path: Path, entries: object) -> None:
    assert read_checkpoint(written(tmp_path, entries)) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary()
    | any_json(keys=st.sampled_from(["Data", "PodDeviceEntries", *ENTRY]) | st.text(), most=None, leaves=100).map(
        lambda value: json.dumps(value).encode()
    )
)
def test_checkpoint_never_raises(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    read_back = read_checkpoint(path)
    assert read_back is None or all(isinstance(entry, Entry) for entry in read_back)


def test_checkpoint_of_endless_brackets_is_none(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b'{"Data":' + b"[" * 200_000)
    assert read_checkpoint(path) is None


def test_checkpoint_is_not_taken_for_missing_while_no_file_is_left(tmp_path: Path) -> None:
    """The cards that another plugin gave away would look free."""
    path = written(tmp_path, [ENTRY])
    for read in (read_checkpoint, device_resources):
        with scarce_files(0), pytest.raises(KubeletError, match="Too many open files"):
            read(path)
        assert read(path)
