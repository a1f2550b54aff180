"""What stands in for the vendors' own files: our image in them, and nothing that a command prints otherwise."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import aliquot
from aliquot.cli.main import cli

ROOT = Path(__file__).parent.parent
GPUSHARE = ROOT / "deploy" / "dropin" / "gpushare"
SEEDS = ROOT / "examples" / "seeds"
FILES = [SEEDS / "qgpu-scheduler.yaml", SEEDS / "qgpu-manager.yaml", *sorted(GPUSHARE.rglob("*.yaml"))]


def objects(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def pods() -> list[dict[str, Any]]:
    """The inner part of every workload."""
    found = [
        item["spec"]["template"]["spec"]
        for path in FILES
        for item in objects(path)
        if "template" in item.get("spec", {})
    ]
    assert len(found) == 5
    return found


def test_every_image_is_this_version_of_ours() -> None:
    containers = [container for pod in pods() for container in [*pod.get("initContainers", []), *pod["containers"]]]
    assert {container["image"] for container in containers} == {f"aliquot/aliquot:{aliquot.__version__}"}


@pytest.mark.parametrize(("folder", "scheme"), [(".", "http"), ("mtls", "https")])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("scheduler-policy-config.json", ["--kubernetes", "1.22", "-o", "json"]),
        ("scheduler-policy-config.yaml", ["--kubernetes", "1.36"]),
    ],
)
def test_kube_schedulers_file_is_what_the_command_prints_for_gpushares_node_port(
    name: str, words: list[str], folder: str, scheme: str
) -> None:
    url = ["--dialect", "gpushare", "--url", f"{scheme}://127.0.0.1:32766"]
    printed = CliRunner().invoke(cli, ["manifests", "scheduler-config", *words, *url])
    assert (GPUSHARE / folder / name).read_text() == printed.stdout


EXTENDER = "gpushare-schd-extender.yaml"


def test_safe_variant_of_the_extender_differs_in_its_ports_and_one_rule() -> None:
    plain, safe = (
        [line for line in (GPUSHARE / folder / EXTENDER).read_text().splitlines() if not line.startswith("#")]
        for folder in (".", "mtls")
    )
    changed = [line[2:].strip() for line in difflib.ndiff(plain, safe) if line.startswith(("- ", "+ "))]
    assert changed[:4] == [
        '- apiGroups: [""]',
        "resources: [secrets]",
        "resourceNames: [aliquot-extender-tls]",
        "verbs: [get, patch, create] # its keys and kube-scheduler's; created by server-side apply, which names it",
    ]
    assert changed[4:] == [
        'command: ["gpushare-sche-extender"]',
        'command: ["gpushare-sche-extender", "--tls-port=12348", "--metrics-port=12347"]',
        "httpGet: {path: /readyz, port: 12345}",
        "httpGet: {path: /readyz, port: 12347}",
        "httpGet: {path: /livez, port: 12345}",
        "httpGet: {path: /livez, port: 12347}",
        "- {name: http, port: 12345, targetPort: 12345, nodePort: 32766}",
        "- {name: https, port: 12348, targetPort: 12348, nodePort: 32766}",
    ]


def test_plain_variant_of_the_extender_says_what_it_exposes() -> None:
    head = (GPUSHARE / EXTENDER).read_text().partition("apiVersion")[0]
    assert "anybody who reaches port 12345" in head
    assert "mtls/" in head


@pytest.mark.parametrize("folder", [".", "mtls"])
def test_gpushares_node_port_leads_to_the_extender(folder: str) -> None:
    made = {item["kind"]: item for item in objects(GPUSHARE / folder / EXTENDER)}
    (port,) = made["Service"]["spec"]["ports"]
    assert port["nodePort"] == 32766
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert made["Service"]["spec"]["selector"].items() <= labels.items()


def test_the_device_plugin_has_the_hosts_folders_at_their_own_paths_and_no_privilege() -> None:
    """Containers are given them by the names they have in the agent."""
    (plugin,) = objects(GPUSHARE / "device-plugin-ds.yaml")
    pod = plugin["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    there = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert {volume_mount["name"]: volume_mount["mountPath"] for volume_mount in container["volumeMounts"]} == there
    assert pod["hostPID"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in container["securityContext"]


def test_the_device_plugin_is_asked_how_it_is_as_the_charts_agent_is() -> None:
    (plugin,) = objects(GPUSHARE / "device-plugin-ds.yaml")
    (agent,) = [item for item in objects(ROOT / "deploy" / "install.yaml") if item["kind"] == "DaemonSet"]
    theirs, ours = (daemon_set["spec"]["template"]["spec"]["containers"][0] for daemon_set in (plugin, agent))
    for name in ("livenessProbe", "readinessProbe"):
        assert theirs[name] == ours[name]
