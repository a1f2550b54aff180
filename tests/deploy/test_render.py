"""Which Helm renders deploy/install.yaml: version 3 makes the same objects, but not the same file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from kit.values.chart import ROOT


@pytest.fixture
def render() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render", ROOT / "deploy" / "chart" / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _helm(folder: Path, version: str) -> Path:
    folder.mkdir(exist_ok=True)
    script = folder / "helm"
    script.write_text(f"#!/bin/sh\necho {version}\n")
    script.chmod(0o755)
    return script


def test_the_helm_4_on_the_path_is_taken(render: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _helm(tmp_path / "bin", "v4.3.1")
    monkeypatch.delenv("HELM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert render.find_helm() == str(found)


def test_a_helm_3_on_the_path_is_passed_over_for_the_one_that_the_tests_built(
    render: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _helm(tmp_path / "bin", "v3.22.0")
    built = _helm(tmp_path / "assets", "v4.3.1")
    monkeypatch.delenv("HELM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assert render.find_helm() == str(built)


def test_a_helm_3_that_is_named_is_refused_with_its_version(
    render: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELM", str(_helm(tmp_path / "bin", "v3.22.0")))
    with pytest.raises(SystemExit, match=r"helm', which says it is v3\.22\.0: helm 4 is needed"):
        render.find_helm()
