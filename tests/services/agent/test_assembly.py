"""An agent's parts, put together as the command line says."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.gpu.nvml import NvmlError
from aliquot.adapters.kubelet import deviceplugin_pb2 as wire
from aliquot.adapters.kubernetes.kube import Server
from aliquot.adapters.storage.cdifolder import CdiFolder
from aliquot.dialects.wire.cdi import name_of, parse_spec, render_spec
from aliquot.model.containers.edits import Edits, Mount, Spec
from aliquot.services.agent import assembly
from aliquot.services.agent.assembly import run_agent, sweep_shims
from aliquot.services.agent.settings import Settings
from kit.values.manifests import QGPU_CORE


def test_run_agent_passes_ignored_xids_to_card_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    class NoCards:
        cards = ()

        def __init__(self, nvml: object, **options: Any) -> None:
            made.append(options)

    monkeypatch.setattr(assembly, "Nvml", object)
    monkeypatch.setattr(assembly, "CardHealth", NoCards)
    settings = Settings("n1", tmp_path / "t", tmp_path / "a")
    with pytest.raises(NvmlError, match="no card"):
        run_agent(
            Server("http://nowhere"),
            settings,
            database=tmp_path / "state.db",
            playing=None,
            driver="runtime",
            ignored_xids={94},
        )
    assert made == [{"remembered": (), "ignored": {94}}]


class TestSweepShims:
    """0.1 to 0.3 are there, and new containers get the last one."""

    @pytest.fixture
    def node(self, tmp_path: Path) -> Settings:
        for version in ("0.1", "0.2", "0.3"):
            (tmp_path / "shim" / version).mkdir(parents=True)
        (tmp_path / "shim" / "current").symlink_to("0.3")
        for name in ("cdi", "a", "kubelet/device-plugins"):
            (tmp_path / name).mkdir(parents=True)
        return Settings("n1", tmp_path / "t", tmp_path / "a", cdi_folder=tmp_path / "cdi", kubelet=tmp_path / "kubelet")

    def noted(self, node: Settings, *answers: str) -> None:
        """What the kubelet keeps of what we answered."""
        entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": QGPU_CORE, "DeviceIDs": {"-1": ["a"]}}
        data = {"PodDeviceEntries": [{**entry, "AllocResp": answer} for answer in answers]}
        path = node.kubelet / "device-plugins" / "kubelet_internal_checkpoint"
        path.write_text(json.dumps({"Data": data, "Checksum": 1}))

    def by_mounts(self, tmp_path: Path, version: str) -> str:
        mount = wire.Mount(host_path=str(tmp_path / "shim" / version / "libaliquot.so"), container_path="/there")
        return base64.b64encode(wire.ContainerAllocateResponse(mounts=[mount]).SerializeToString()).decode()

    def left(self, node: Settings, state: Path) -> list[str]:
        sweep_shims(node, state)
        return sorted(path.name for path in (state / "shim").iterdir() if not path.is_symlink())

    def test_sweep_shims_removes_unused_versions(self, node: Settings, tmp_path: Path) -> None:
        self.noted(node)
        assert self.left(node, tmp_path) == ["0.3"]

    def test_sweep_shims_keeps_versions_of_cdi_specs(self, node: Settings, tmp_path: Path) -> None:
        self.noted(node)
        edits = Edits({}, mounts=(Mount(str(tmp_path / "shim/0.2/libaliquot.so"), "/there"),))
        spec = Spec(name_of(QGPU_CORE, frozenset({"a"})), edits, "u", "ns", "p", "c")
        CdiFolder(node.cdi_folder, render_spec, parse_spec).write(spec)
        assert self.left(node, tmp_path) == ["0.2", "0.3"]

    def test_sweep_shims_keeps_versions_of_checkpoint_responses(self, node: Settings, tmp_path: Path) -> None:
        """The links are on a tmpfs; the kubelet gives a container what was answered when its Pod came."""
        self.noted(node, self.by_mounts(tmp_path, "0.1"))
        assert list(node.links.iterdir()) == []
        assert self.left(node, tmp_path) == ["0.1", "0.3"]

    @pytest.mark.parametrize("answer", ["no base64!", None])
    def test_sweep_shims_keeps_all_without_checkpoint(self, node: Settings, tmp_path: Path, answer: str | None) -> None:
        if answer is not None:
            self.noted(node, answer)
        assert self.left(node, tmp_path) == ["0.1", "0.2", "0.3"]
