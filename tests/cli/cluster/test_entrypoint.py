"""The program that a container without a command means, as gpushare's extender has none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.cli.cluster.entrypoint import is_unnamed, unnamed_words

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "PORT": "12345", "LOG_LEVEL": "info"}


@pytest.mark.parametrize(
    ("words", "unnamed"),
    [
        (["by-environment"], True),
        (["-logtostderr", "--v=5"], True),
        (["--help"], False),
        (["--version"], False),
        (["scheduler", "--port=1"], False),
        ([], False),
    ],
)
def test_container_without_a_program_is_recognised(words: list[str], unnamed: bool) -> None:
    assert is_unnamed(words, POD) is unnamed


def test_flags_on_a_machine_are_not_those_of_a_container() -> None:
    assert not is_unnamed(["-logtostderr"], {})


def test_image_outside_of_a_pod_prints_its_help(tmp_path: Path) -> None:
    assert unnamed_words(["by-environment"], {}, tmp_path) == ["--help"]


def test_container_with_the_kubelets_folder_is_the_device_plugin(tmp_path: Path) -> None:
    assert unnamed_words(["-logtostderr", "--memory-unit=MiB"], POD, tmp_path) == ["agent", "--memory-unit=MiB"]


def test_any_other_container_is_the_extender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in POD.items():
        monkeypatch.setenv(name, value)
    assert unnamed_words(["by-environment"], POD, tmp_path / "none") == ["scheduler", "--drop-in", "--log-level=info"]


def run_image(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the image runs, until it finds no API server."""
    command = [sys.executable, "-m", "aliquot", *words]
    env = {**os.environ, "KUBECONFIG": "/nowhere/kubelet.conf", "HOME": "/nowhere", **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_image_without_arguments_in_a_pod_starts_the_scheduler() -> None:
    done = run_image("by-environment", KUBERNETES_SERVICE_HOST="127.0.0.1", THREADNESS="8", PORT="0")
    warning, error = done.stderr.splitlines()
    assert json.loads(warning)["msg"] == "flag_without_effect"
    assert json.loads(warning)["flag"] == "$THREADNESS"
    assert '$PORT: "0" is not allowed' in error  # an option of the scheduler alone
    assert done.returncode == 2


def test_image_without_arguments_on_a_machine_prints_the_help() -> None:
    done = run_image("by-environment")
    assert done.stdout.startswith("Usage: aliquot [OPTIONS] COMMAND")
