"""What is in examples/ is what its READMEs say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from aliquot.adapters.gpu import player
from aliquot.cli.main import cli
from aliquot.dialects import Rules, parse_pod
from aliquot.dialects.kube.manifests import expand
from aliquot.dialects.rules import EVERY
from aliquot.model.claim import AppClass, Claim
from aliquot.model.refusal import Invalid
from kit.machines.machine import ALIQUOT, Machine

EXAMPLES = Path(__file__).parent.parent / "examples"
MANIFESTS = sorted(path for path in EXAMPLES.rglob("*.yaml") if path.name != "cluster.yaml")
DEPLOYED = ("qgpu-manager.yaml", "qgpu-scheduler.yaml")  # how the vendor deploys its own: no Pod of theirs has a card
WITH_PODS = [path for path in MANIFESTS if path.name not in DEPLOYED and path.parent.name != "explain"]
SCRIPTS = sorted(EXAMPLES.rglob("*.sh"))
PROGRAMS = sorted((EXAMPLES / "workloads").glob("*.py"))


def objects(path: Path) -> list[dict[str, Any]]:
    return [manifest for manifest in yaml.safe_load_all(path.read_text()) if manifest]


def claims(path: Path) -> list[Claim | tuple[Invalid, ...] | None]:
    made = [expand(manifest) for manifest in objects(path)]
    rules = Rules(served=frozenset(EVERY))
    return [parse_pod(pod, rules) for pods in made if not isinstance(pods, Invalid) for pod in pods]


def test_examples_exist() -> None:
    assert len(WITH_PODS) >= 12


@pytest.mark.parametrize("path", WITH_PODS, ids=lambda path: path.name)
def test_every_manifest_parses_to_claims(path: Path) -> None:
    parsed = claims(path)
    assert parsed
    assert all(isinstance(claim, Claim) for claim in parsed), parsed


@pytest.mark.parametrize("path", WITH_PODS, ids=lambda path: path.name)
def test_every_pod_fits_on_the_cluster_of_its_folder_or_of_the_seeds(path: Path) -> None:
    own = path.parent / "cluster.yaml"
    cluster = str(own if own.exists() else EXAMPLES / "seeds" / "cluster.yaml")
    result = CliRunner().invoke(cli, ["explain", "-f", str(path), "--cluster", cluster, "-o", "json"])
    assert [load["pod"] for load in json.loads(result.stdout) if not load["fits"]] == []
    assert result.exit_code == 0


@pytest.mark.parametrize("path", [path for path in MANIFESTS if path.name in DEPLOYED], ids=lambda path: path.name)
def test_manifests_of_the_vendors_programs_ask_for_no_card(path: Path) -> None:
    assert [claim for claim in claims(path) if claim is not None] == []


def test_app_class_matches_the_file_name() -> None:
    for path in WITH_PODS:
        for word, app_class in (("online", AppClass.ONLINE), ("offline", AppClass.OFFLINE)):
            if word in path.stem.split("-"):
                assert [claim.app_class for claim in claims(path) if isinstance(claim, Claim)] == [app_class]


def test_policy_file_for_old_kube_schedulers_is_what_the_command_prints() -> None:
    words = ["manifests", "scheduler-config", "--kubernetes", "1.22", "--dialect", "gpushare", "-o", "json"]
    printed = CliRunner().invoke(cli, words)
    assert (EXAMPLES / "seeds" / "scheduler-policy-config.json").read_text() == printed.stdout


def test_readme_of_the_seeds_shows_what_explain_prints() -> None:
    readme = (EXAMPLES / "seeds" / "README.md").read_text()
    shown = re.search(r"^\$ aliquot (explain [^\n]*)\n(.*?)\n```", readme, re.MULTILINE | re.DOTALL)
    assert shown
    words = shown[1].replace("examples/", f"{EXAMPLES}/").split()
    result = CliRunner().invoke(cli, words)
    assert result.stderr + result.stdout == shown[2] + "\n"


@pytest.mark.parametrize("folder", [EXAMPLES, *sorted(path for path in EXAMPLES.iterdir() if path.is_dir())], ids=str)
def test_readme_of_every_folder_names_its_files(folder: Path) -> None:
    readme = (folder / "README.md").read_text()
    there = [path.name for path in folder.iterdir() if path.name not in ("README.md", "__pycache__")]
    assert [name for name in there if f"`{name}`" not in readme] == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_program_that_needs_pytorch_says_so_without_it(program: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('torch')")
    done = subprocess.run(
        [sys.executable, program, "--help"], capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}
    )
    if "import torch" in program.read_text():
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"{program.name}: needs PyTorch, which is not installed here: pip install torch\n"
    else:
        assert done.returncode == 0


@pytest.mark.parametrize("path", WITH_PODS, ids=lambda path: path.name)
def test_programs_that_manifests_call_exist(path: Path) -> None:
    words = re.findall(r'"(examples/[^"]+)"', path.read_text())
    assert [word for word in words if not (EXAMPLES.parent / word).exists()] == []


@pytest.mark.parametrize("path", WITH_PODS, ids=lambda path: path.name)
def test_every_pod_with_a_command_is_a_run_on_one_machine(path: Path) -> None:
    """The vendors' name images alone, and workloads need Kubernetes: both are refused with a sentence."""
    done = subprocess.run([*ALIQUOT, "run", "--dry-run", "-f", path], capture_output=True, text=True, check=False)
    pods = [manifest for manifest in objects(path) if manifest["kind"] == "Pod"]
    commands = [container.get("command") for pod in pods for container in pod["spec"]["containers"]]
    if len(pods) == len(objects(path)) and all(commands):
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("aliquot run --name ") == len(commands)
    else:
        assert (done.returncode, done.stdout) == (2, "")
        assert "k3s" in done.stderr or ".command is missing" in done.stderr


@pytest.fixture(scope="module")
def simulated() -> Iterator[Machine]:
    if not os.path.exists(player.shim()):
        pytest.skip("the libraries are not built")
    machine = Machine([*ALIQUOT, "up", "--simulate", "1x80GiB", "--listen", "0"])
    machine.up()
    yield machine
    machine.aliquot("down")
    machine.close()


def test_every_script_runs_on_a_simulated_card_and_prints_what_it_did(simulated: Machine) -> None:
    own = {"PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]), "FOR": "0.3"}
    running = {
        path.name: subprocess.Popen(
            ["sh", path],
            env={**simulated.environment, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for path in SCRIPTS
    }
    programs = {"ci-runner.sh": 1, "eight-notebooks.sh": 8, "server-and-finetuning.sh": 2, "two-servers.sh": 2}
    assert running.keys() == programs.keys()
    for name, script in running.items():
        out, errors = script.communicate(timeout=120)
        assert script.returncode == 0, (name, errors)
        assert out.count("of the card") == programs[name], out
    assert simulated.names() == []
