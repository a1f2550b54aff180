"""deploy/install.yaml: every object is what its program needs, and no more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import aliquot
from aliquot.cli.cluster.agent import agent
from aliquot.cli.cluster.installshim import install_shim
from aliquot.cli.cluster.scheduler import scheduler
from aliquot.cli.main import COMMANDS
from aliquot.dialects import gpushare, hami, kai, qgpu, t9k
from aliquot.dialects.wire import schedulerconfig
from aliquot.dialects.wire.webhook.configuration import CONFIGURATION, SECRET, VERBS_SECRET
from kit.values.chart import CHART, ROOT, Json, Objects, containers

NAMESPACE = "aliquot-system"


def test_chart_and_package_are_of_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (aliquot.__version__, aliquot.__version__)


def test_the_file_is_of_this_version(objects: Objects) -> None:
    assert {item["metadata"]["labels"]["app.kubernetes.io/version"] for item in objects.all} == {aliquot.__version__}


def test_no_image_names_a_registry(objects: Objects) -> None:
    """A vendor puts a registry of its own before the name."""
    images = {container["image"] for spec in objects.pods().values() for container in containers(spec)}
    assert images == {f"aliquot/aliquot:{aliquot.__version__}", "kube-scheduler:v1.36.4"}


def test_every_object_is_in_its_namespace_or_of_the_whole_cluster(objects: Objects) -> None:
    outside = {
        (item["kind"], item["metadata"]["name"])
        for item in objects.all
        if item["metadata"].get("namespace", NAMESPACE) != NAMESPACE
    }
    name = "aliquot-scheduler-gpushare"
    assert outside == {("Role", name), ("RoleBinding", name)}, "gpushare's ConfigMaps"


def test_the_namespace_lets_the_agent_in_and_warns_of_others_like_it(objects: Objects) -> None:
    labels = objects.one("Namespace", NAMESPACE)["metadata"]["labels"]
    levels = {key.rpartition("/")[2]: value for key, value in labels.items() if key.startswith("pod-security")}
    assert levels == {"enforce": "privileged", "warn": "restricted", "audit": "restricted"}


# --- programs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("maker", "container", "command"),
    [
        ("aliquot-scheduler", "scheduler", scheduler),
        ("aliquot-agent", "agent", agent),
        ("aliquot-agent", "install-shim", install_shim),
    ],
)
def test_every_flag_is_one_that_the_program_knows(
    objects: Objects, maker: str, container: str, command: click.Command
) -> None:
    name, *words = objects.args(maker, container)
    assert name in {command for command, _, _ in COMMANDS}
    known = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
    assert {word.partition("=")[0] for word in words} <= known


def test_kube_scheduler_is_configured_as_the_program_itself_says(objects: Objects) -> None:
    made = schedulerconfig.KubeSchedulerSettings(
        version=(1, 36), url="http://127.0.0.1:12345/aliquot", second=True, lease_namespace=NAMESPACE
    )
    config = objects.one("ConfigMap", "aliquot-kube-scheduler")["data"]["config.yaml"]
    assert yaml.safe_load(config) == schedulerconfig.render_config(made)


def test_the_webhook_sends_pods_to_the_profiles_that_are_served(objects: Objects) -> None:
    (names,) = (
        word.partition("=")[2]
        for word in objects.args("aliquot-scheduler", "scheduler")
        if word.startswith("--scheduler-name=")
    )
    config = yaml.safe_load(objects.one("ConfigMap", "aliquot-kube-scheduler")["data"]["config.yaml"])
    served = [profile["schedulerName"] for profile in config["profiles"]]
    assert names == f"{served[0]},t9k={served[1]}"


def test_what_the_leader_fills_in_is_made_empty_so_that_no_upgrade_resets_it(objects: Objects) -> None:
    assert not any("data" in objects.one("Secret", name) for name in (SECRET, VERBS_SECRET))
    assert "webhooks" not in objects.one("MutatingWebhookConfiguration", CONFIGURATION)
    leases = objects.of("Lease")
    assert {lease["metadata"]["name"] for lease in leases} == {"aliquot-scheduler", schedulerconfig.SECOND_LEASE}
    assert not any("spec" in lease for lease in leases)


def test_services_lead_to_ports_that_are_there(objects: Objects) -> None:
    spec = objects.pods()["aliquot-scheduler"]
    named = {port["name"] for container in containers(spec) for port in container.get("ports", ())}
    pointed = {port["targetPort"] for service in objects.of("Service") for port in service["spec"]["ports"]}
    assert pointed == {"extender", "metrics", "webhook"} <= named


def test_verbs_without_tls_are_on_loopback_and_no_service_leads_there(objects: Objects) -> None:
    words = objects.args("aliquot-scheduler", "scheduler")
    assert {"--port=12345", "--tls-port=12348"} <= set(words)
    assert not [word for word in words if word.startswith(("--bind-address", "--insecure-verbs"))]
    ports = {
        port["name"]: port["containerPort"]
        for container in containers(objects.pods()["aliquot-scheduler"])
        for port in container["ports"]
    }
    assert ports == {"extender": 12348, "metrics": 12347, "webhook": 9443, "health": 10259}


def test_who_reads_metrics_reaches_no_verb(objects: Objects) -> None:
    rules = objects.one("NetworkPolicy", "aliquot-scheduler")["spec"]["ingress"]
    monitoring = [rule for rule in rules if "monitoring" in str(rule.get("from"))]
    assert [rule["ports"] for rule in monitoring] == [[{"port": "metrics"}]]
    (monitor,) = (item for item in objects.of("ServiceMonitor"))
    assert [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]] == ["metrics"]


# --- who may do what -------------------------------------------------------------------------------------------------


def _careless(container: Json) -> list[str]:
    security = container.get("securityContext", {})
    wanted = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    return [key for key, value in wanted.items() if security.get(key) != value] + [
        key for key in ("privileged",) if security.get(key)
    ]


def test_no_container_has_a_capability_or_writes_its_own_files(objects: Objects) -> None:
    specs = objects.pods().values()
    assert {
        container["name"]: _careless(container)
        for spec in specs
        for container in containers(spec)
        if _careless(container)
    } == {}


def test_the_scheduler_keeps_to_the_strictest_level_of_pod_security(objects: Objects) -> None:
    spec = objects.pods()["aliquot-scheduler"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any(spec.get(key) for key in ("hostPID", "hostNetwork", "hostIPC"))
    assert all(set(volume) <= {"name", "configMap"} for volume in spec["volumes"])


def test_the_agent_has_of_the_host_what_the_document_lists(objects: Objects) -> None:
    page = (ROOT / "docs" / "agent.md").read_text()
    needs = page[page.index("## What the agent needs of the host") :]
    for volume in objects.pods()["aliquot-agent"]["volumes"]:
        assert f"`{volume['hostPath']['path']}`" in needs


def test_the_agents_folders_have_in_the_container_the_names_they_have_on_the_host(objects: Objects) -> None:
    """Containers with a card are given them by these names."""
    spec = objects.pods()["aliquot-agent"]
    (main,) = spec["containers"]
    mounted = {volume_mount["name"]: volume_mount["mountPath"] for volume_mount in main["volumeMounts"]}
    assert mounted == {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}


def _rules(objects: Objects) -> list[tuple[str, Json]]:
    roles = objects.of("Role", "ClusterRole")
    return [(f"{role['kind']} {role['metadata']['name']}", rule) for role in roles for rule in role["rules"]]


def test_no_rule_is_for_everything(objects: Objects) -> None:
    for role, rule in _rules(objects):
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]], role


def test_secrets_and_webhooks_are_ours_by_name_only(objects: Objects) -> None:
    for role, rule in _rules(objects):
        if {"secrets", "mutatingwebhookconfigurations"} & set(rule["resources"]):
            assert rule["resourceNames"], role
            assert set(rule["verbs"]) <= {"create", "get", "patch"}, role  # create: by server-side apply, with a name


def test_agents_delete_nothing_and_create_nothing_but_events(objects: Objects) -> None:
    role = objects.one("ClusterRole", "aliquot-agent")
    assert not any("delete" in rule["verbs"] for rule in role["rules"])
    assert [rule["resources"] for rule in role["rules"] if "create" in rule["verbs"]] == [["events"]]


ROLES = [path for path in sorted(CHART.rglob("templates/**/*.yaml")) if "kind: ClusterRole\n" in path.read_text()]


@pytest.mark.parametrize("path", ROLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_rule_of_a_role_says_why_it_is_there(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.strip().startswith("{{")]
    rules = [at for at, line in enumerate(lines) if line.startswith("  - apiGroups:")]
    assert rules
    assert [lines[at] for at in rules if not lines[at - 1].startswith("  # ")] == []


# --- one table, two places -------------------------------------------------------------------------------------------


def _table(name: str) -> dict[str, Any]:
    text = (CHART / "templates" / "_helpers.tpl").read_text()
    found = re.search(rf'define "aliquot\.{name}" -}}}}\n(.*?)\n{{{{- end', text, re.DOTALL)
    assert found
    table: dict[str, Any] = yaml.safe_load(found[1])
    return table


def test_the_chart_knows_the_resources_of_each_dialect() -> None:
    assert {name: tuple(resources) for name, resources in _table("resources").items()} == schedulerconfig.DIALECTS


def test_the_chart_knows_the_label_of_each_dialects_nodes() -> None:
    found = {name: (label["key"], *label["values"]) for name, label in _table("nodeLabels").items()}
    assert found == {
        qgpu.DIALECT: (qgpu.ENABLE_LABEL, "enable"),
        t9k.DIALECT: (t9k.ACCELERATOR_LABEL, "nvidia-gpu"),
        gpushare.DIALECT: (gpushare.NODE_LABEL, "true"),
        hami.DIALECT: (hami.LABEL, "true"),
        kai.DIALECT: (kai.LABEL, "true"),
    }


def _keys(values: object, path: str = "") -> set[str]:
    if not isinstance(values, dict):
        return {path}
    return {path} | {key for name, value in values.items() for key in _keys(value, f"{path}.{name}")}


def _allowed(schema: Json, path: str = "") -> set[str]:
    below = schema.get("properties", {})
    return {path} | {key for name, value in below.items() for key in _allowed(value, f"{path}.{name}")}


def test_every_value_is_in_the_schema_and_nothing_else_is() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    allowed = _allowed(schema)
    free = re.compile(
        r"\.(resources|seLinuxOptions|nodeSelector|metricsFrom|dashboard\.labels)\."
    )  # whose words are Kubernetes' own
    documented = {key for key in _keys(values) if not free.search(key)}
    assert documented - allowed == set()
    assert {key for key in allowed - documented if not free.search(key)} == {".global", ".nameOverride"}


def test_every_value_is_documented_on_the_page() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    documented = set(re.findall(r"`([\w.]+)`", page))
    flat = {f"{name}.{key}" for name, value in values.items() if isinstance(value, dict) for key in value}
    plain = {name for name, value in values.items() if not isinstance(value, dict)}
    assert flat | plain <= documented


def test_nothing_of_dra_is_there_unless_it_is_enabled(objects: Objects) -> None:
    assert "DeviceClass" not in {item["kind"] for item in objects.all}
    rules = objects.one("ClusterRole", "aliquot-agent")["rules"]
    assert [rule["verbs"] for rule in rules if "resource.k8s.io" in rule["apiGroups"]] == [["list"]]
    volumes = objects.pods()["aliquot-agent"]["volumes"]
    assert not [volume for volume in volumes if volume["name"].startswith("plugins")]
