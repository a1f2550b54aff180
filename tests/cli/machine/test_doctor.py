"""`aliquot doctor` without Kubernetes, on a machine with a daemon."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from kit.machines.machine import ALIQUOT, Machine


def doctor(machine: Machine, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Without a cluster: neither a kubectl nor its configuration."""
    environment = {**machine.environment, "HOME": str(folder), "KUBECTL": str(folder / "kubectl")}
    environment.pop("KUBECONFIG", None)
    return subprocess.run(
        [*ALIQUOT, "doctor", *words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_doctor_without_a_cluster_checks_this_machine(machine: Machine, tmp_path: Path) -> None:
    findings = json.loads(doctor(machine, tmp_path, "--no-node", "-o", "json").stdout)
    levels = {finding["check"]: finding["level"] for finding in findings}
    assert {"driver", "shim", "daemon", "folders", "port", "control"} <= set(levels)
    assert (levels["daemon"], levels["folders"]) == ("ok", "ok")
    assert all(finding["fix"] for finding in findings if finding["level"] != "ok")


def test_doctor_finds_a_database_that_others_can_read(own: Machine, tmp_path: Path) -> None:
    own.up()
    database = own.home / "state.db"
    os.chmod(database, 0o644)
    result = doctor(own, tmp_path, "--machine")
    assert result.returncode == 1
    assert f"{database}: has mode 0644: other users can read it" in result.stdout
    assert f"-> chmod 600 {database}" in result.stdout


def test_doctor_of_a_cluster_that_does_not_answer_names_the_other_way(machine: Machine, tmp_path: Path) -> None:
    result = doctor(machine, tmp_path, "--no-node", "--context", "x")
    assert result.returncode == 2
    assert "aliquot doctor --machine" in result.stderr


@pytest.mark.parametrize("words", [["--machin"], ["--machine", "--outptu", "json"]])
def test_misspelled_option_is_corrected(machine: Machine, tmp_path: Path, words: list[str]) -> None:
    result = doctor(machine, tmp_path, *words)
    assert result.returncode == 2
    assert "Did you mean" in result.stderr or "did you mean" in result.stderr
