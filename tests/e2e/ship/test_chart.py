"""The chart before a real API server: what it renders and refuses, what its accounts may do, what an upgrade keeps.

What an agent's account may write of which node: tests/e2e/test_compromised_node.py.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.dialects.wire import schedulerconfig
from kit.values.chart import CHART, INSTALL, MODES, ROOT, Objects, containers, runs_on
from testbed.build import CannotBuildError, binaries
from testbed.plane import ControlPlane
from testbed.processes import wait_until

NAMESPACE = "aliquot-system"
IMAGE = "--set=kubeScheduler.image=kube-scheduler:v1.36.4"
OWN = ("--set=kubeScheduler.enabled=false", "--set=webhook.setSchedulerName=false")
LINUX = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
Labels = dict[str, dict[str, str]]
NODES: Labels = {
    "qgpu": {"qgpu-device-enable": "enable"},
    "t9k": {"sched.tensorstack.dev/accelerator": "nvidia-gpu", "sched.tensorstack.dev/node-alloc-mode": "sgn"},
    "gpushare": {"gpushare": "true"},
    "hami": {"aliquot.dev/serve-nvidia-gpu": "true"},
    "kai": {"aliquot.dev/serve-kai": "true"},
}
OTHERS: Labels = {
    "amd": {"sched.tensorstack.dev/accelerator": "amd-gpu", "gpushare": "true"},
    "huawei": {"sched.tensorstack.dev/accelerator": "huawei-npu"},
    "plain": {"sched.tensorstack.dev/node-alloc-mode": "sgn"},
}

Helm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without nodes."""
    try:
        plane = ControlPlane(tmp_path_factory.mktemp("chart-plane"))
    except CannotBuildError as error:
        pytest.exit(f"no control plane to test on: {error}", returncode=1)
    with plane:
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("warn", "audit")}
        plane.api("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
        yield plane


@pytest.fixture(scope="module")
def helm(api: ControlPlane) -> Helm:
    program = binaries(("helm",))["helm"]
    environment = {**os.environ, "KUBECONFIG": str(api.kubeconfig), "HOME": str(api.folder)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *words], env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return run


def done(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 0, run.stderr
    return run.stdout


@functools.cache
def render(helm: Helm, *words: str) -> str:
    image = () if any("kubeScheduler" in word for word in words) else (IMAGE,)
    return done(helm("template", "aliquot", str(CHART), f"--namespace={NAMESPACE}", *image, *words))


# --- what it renders -------------------------------------------------------------------------------------------------


def test_helm_lint_passes(helm: Helm) -> None:
    assert "0 chart(s) failed" in done(helm("lint", "--strict", str(CHART), IMAGE))


def test_install_yaml_is_what_the_chart_renders(helm: Helm) -> None:
    spec = importlib.util.spec_from_file_location("render", ROOT / "deploy" / "chart" / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.render(str(binaries(("helm",))["helm"])) == INSTALL.read_text(), "run make chart"


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_serves_its_dialects_and_says_nothing_of_others(helm: Helm, mode: str) -> None:
    text = render(helm, f"--set=mode={mode}", "--no-hooks")
    made, served = Objects(text), MODES[mode]
    for maker, container in (("aliquot-scheduler", "scheduler"), ("aliquot-agent", "agent")):
        assert f"--dialects={','.join(served)}" in made.args(maker, container)
    config = yaml.safe_load(made.one("ConfigMap", "aliquot-kube-scheduler")["data"]["config.yaml"])
    url = "http://127.0.0.1:12345/aliquot"
    wired = schedulerconfig.KubeSchedulerSettings(
        version=(1, 36), url=url, dialects=served, second=True, lease_namespace=NAMESPACE
    )
    assert config == schedulerconfig.render_config(wired)
    unspoken = [name for name, names in schedulerconfig.DIALECTS.items() if name not in served for name in names]
    assert [resource for resource in unspoken if f"{resource}\n" in text] == []


def test_digest_of_the_image_wins_over_its_tag(helm: Helm) -> None:
    made = Objects(render(helm, f"--set=image.digest={DIGEST},image.tag=other"))
    images = {container["image"] for spec in made.pods().values() for container in containers(spec)}
    assert f"aliquot/aliquot@{DIGEST}" in images
    assert not [image for image in images if image.startswith("aliquot/aliquot:")]


@pytest.mark.parametrize(
    ("values", "mounted", "memory"),
    [
        ("agent.hostPool=0", False, ("1Gi", "96Mi")),
        ("agent.hostPool=64GiB", True, ("66560Mi", "65632Mi")),
        ("agent.hostPool=1.5,agent.resources.limits.memory=1Gi", True, ("2560Mi", "1632Mi")),
        ("agent.hostPool=64GiB,agent.simulate=1x16GiB", True, ("1Gi", "96Mi")),
    ],
)
def test_the_agent_has_and_pays_for_the_pool_of_parked_memory(
    helm: Helm, values: str, mounted: bool, memory: tuple[str, str]
) -> None:
    spec = Objects(render(helm, f"--set-string={values}")).pods()["aliquot-agent"]
    (main,) = spec["containers"]
    assert ("/dev/shm" in str(main["volumeMounts"]), "/dev/shm" in str(spec["volumes"])) == (mounted, mounted)
    assert (main["resources"]["limits"]["memory"], main["resources"]["requests"]["memory"]) == memory
    capabilities = [one["value"] for one in main["env"] if one["name"] == "NVIDIA_DRIVER_CAPABILITIES"]
    assert capabilities == (["compute,utility"] if mounted else [])


@pytest.mark.parametrize("hard", [False, True], ids=["", "hardLimits"])
@pytest.mark.parametrize("kill", [False, True], ids=["", "kill"])
def test_the_agent_has_the_rights_of_enforcement_only_where_it_enforces(helm: Helm, kill: bool, hard: bool) -> None:
    killing = ["--set=agent.enforce=kill,agent.enforceGrace=7s"] if kill else []
    made = Objects(render(helm, *killing, *(["--set=agent.hardLimits=true"] if hard else [])))
    flags = [word for word in made.args("aliquot-agent", "agent") if word.startswith("--enforce")]
    assert flags == (["--enforce=kill", "--enforce-grace=7s"] if kill else [])
    spec = made.pods()["aliquot-agent"]
    (agent,) = spec["containers"]
    rights = agent["securityContext"]
    assert rights["capabilities"]["drop"] == ["ALL"]
    added = [*(["KILL"] if kill else []), *(["SYS_ADMIN"] if hard else [])]
    assert rights["capabilities"].get("add", []) == added
    assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (hard, True)
    assert "privileged" not in rights
    assert ("/sys/fs/cgroup" in {mount["mountPath"] for mount in agent["volumeMounts"]}) is hard
    assert ("/sys/fs/cgroup" in {volume["hostPath"]["path"] for volume in spec["volumes"]}) is hard
    others = [one["securityContext"] for one in containers(spec) if one["name"] != "agent"]
    assert not [one for one in others if one["capabilities"].get("add")]


@pytest.mark.parametrize("mode", MODES)
def test_the_agents_of_a_mode_run_on_its_nodes(helm: Helm, mode: str) -> None:
    spec = Objects(render(helm, f"--set=mode={mode}")).pods()["aliquot-agent"]
    assert [name for name, labels in NODES.items() if runs_on(spec, {**LINUX, **labels})] == list(MODES[mode])


@pytest.mark.parametrize("mode", MODES)
def test_kube_systems_config_maps_are_read_for_gpushare_only(helm: Helm, mode: str) -> None:
    roles = [
        role for role in Objects(render(helm, f"--set=mode={mode}")).of("Role") if "configmaps" in str(role["rules"])
    ]
    here = [role["metadata"]["namespace"] for role in roles if role["metadata"]["name"] == "aliquot-scheduler-gpushare"]
    assert here == (["kube-system"] if "gpushare" in MODES[mode] else [])


@pytest.mark.parametrize("on", [True, False])
def test_chart_grants_evictions_only_with_preemption(helm: Helm, on: bool) -> None:
    made = Objects(render(helm, f"--set=scheduler.preemption={str(on).lower()}"))
    assert ("pods/eviction" in str(made.one("ClusterRole", "aliquot-scheduler"))) is on
    assert ("--preemption" in made.args("aliquot-scheduler", "scheduler")) is on


@pytest.mark.parametrize(
    ("image", "release", "known"),
    [
        ("registry:5000/kube-scheduler:v1.36.4", "1.30", True),
        ("kube-scheduler:v1.32.9@sha256:0", "1.36", False),
        ("kube-scheduler:ours", "1.33", True),
        ("kube-scheduler", "1.32", False),
    ],
)
def test_kube_scheduler_gets_the_gate_of_its_queue_where_it_knows_it(
    helm: Helm, image: str, release: str, known: bool
) -> None:
    made = Objects(render(helm, f"--set=kubeScheduler.image={image}", f"--kube-version={release}"))
    words = made.args("aliquot-scheduler", "kube-scheduler")
    assert ("--feature-gates=SchedulerPopFromBackoffQ=false" in words) is known


def test_agent_stays_on_a_node_whose_label_of_dra_is_false(helm: Helm) -> None:
    """Without it, Pods with claims would not end: the kubelet asks the agent first."""
    made = Objects(render(helm, "--set=dra.enabled=true,mode=gpushare", "--kube-version=1.36"))
    affinity = made.one("DaemonSet", "aliquot-agent")["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    wanted = {"key": "aliquot.dev/dra", "operator": "In", "values": ["true", "false"]}
    assert [term["matchExpressions"][0] for term in terms].count(wanted) == 1


@pytest.mark.parametrize("on", [True, False])
def test_chart_lets_the_scheduler_read_claims_only_with_dra(helm: Helm, on: bool) -> None:
    made = Objects(render(helm, f"--set=dra.enabled={str(on).lower()}", "--kube-version=1.36"))
    rules = made.one("ClusterRole", "aliquot-scheduler")["rules"]
    assert [rule["verbs"] for rule in rules if "resourceclaims" in rule["resources"]] == [["list", "watch"]] * on


@pytest.mark.parametrize(("pods", "kept"), [("keep", {"DaemonSet", "Namespace"}), ("refuse", set())])
def test_helm_leaves_simulated_cards_to_pods_that_are_kept(helm: Helm, pods: str, kept: set[str]) -> None:
    made = render(helm, f"--set=uninstall.runningPods={pods},agent.simulate=1x2GiB,namespace.create=true", "--no-hooks")
    found = [item for item in yaml.safe_load_all(made) if item and "helm.sh/resource-policy" in json.dumps(item)]
    assert {item["kind"] for item in found} == kept
    assert len(found) == len(kept)


def test_values_of_a_release_without_groups_of_pods_render(helm: Helm) -> None:
    """As `helm upgrade --reuse-values` has them."""
    assert render(helm, "--set=agent.together=null") == render(helm)


def test_chart_package_has_only_chart_files(helm: Helm, tmp_path: Path) -> None:
    done(helm("package", str(CHART), f"--destination={tmp_path}"))
    (archive,) = tmp_path.glob("aliquot-*.tgz")
    assert render(helm) == done(helm("template", "aliquot", str(archive), f"--namespace={NAMESPACE}", IMAGE))


# --- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((IMAGE, "--set=mode=nano"), "'/mode': value must be one of 'all', 'qgpu', 't9k', 'gpushare'"),
        ((IMAGE, "--set=agents.simulate=4x16GiB"), "additional properties 'agents' not allowed"),
        ((IMAGE, "--set=agent.simulated=4x16GiB"), "additional properties 'simulated' not allowed"),
        ((IMAGE, "--set=agent.simulate=four"), "/agent/simulate"),
        ((IMAGE, "--set=scheduler.replicas=0"), "/scheduler/replicas"),
        ((IMAGE, "--set=scheduler.priority=best"), "/scheduler/priority"),
        ((IMAGE, "--set=webhook.port=443"), "/webhook/port"),
        ((IMAGE, "--set=image.repository=aliquot:1"), "/image/repository"),
        ((IMAGE, "--set=image.digest=sha256:1"), "/image/digest"),
        ((IMAGE, "--set=webhook.clientCA=mine"), "webhook.clientCA and webhook.clientNames need each other"),
        ((IMAGE, "--set=nameOverride=mine"), "/nameOverride"),
        ((IMAGE, "--set-string=agent.hostPool=much"), "/agent/hostPool"),
        ((IMAGE, "--set-string=agent.oversubscribe=9"), "/agent/oversubscribe"),
        ((IMAGE, "--set-string=agent.hostPool=1GiB,agent.resources.limits.memory=1e9"), "memory 1e9 is not allowed"),
        ((IMAGE, "--set=dra.enabled=true", "--kube-version=1.33"), "dra.enabled needs Kubernetes 1.34 or later"),
        ((), "kubectl get pods -n kube-system -l component=kube-scheduler"),
        (("--set=kubeScheduler.enabled=false",), "set webhook.setSchedulerName=false too"),
        ((IMAGE, "--set=webhook.port=12347"), "webhook.port 12347 is another port of the scheduler's Pod"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_invalid_chart_values_are_refused(helm: Helm, words: tuple[str, ...], message: str) -> None:
    refused = helm("template", "aliquot", str(CHART), *words)
    assert refused.returncode != 0
    assert message in refused.stderr


# --- what the API server says ----------------------------------------------------------------------------------------

DIGEST = f"sha256:{'a' * 64}"
VARIANTS: dict[str, tuple[str, ...]] = {
    **{mode: (f"--set=mode={mode}",) for mode in MODES},
    "beside the cluster's own kube-scheduler": OWN,
    "one replica without a webhook": ("--set=scheduler.replicas=1", "--set=webhook.enabled=false"),
    "with groups of Pods that share a card in space": ("--set=agent.together.enabled=true",),
    "without agents": ("--set=agent.enabled=false",),
    "with everything that may be said": (
        "--set=agent.simulate=4x16GiB,agent.runtimeClassName=nvidia,agent.driverFolder=/etc/cdi,agent.ignoreXids=94",
        "--set=agent.enforce=kill,agent.enforceGrace=30s,agent.hardLimits=true",
        "--set-string=agent.hostPool=8GiB,agent.oversubscribe=1.5",
        "--set=agent.seLinuxOptions.type=spc_t,agent.seLinuxOptions.level=s0",
        "--set=agent.maxUnavailable=1,agent.cdi=off,webhook.envByAnnotation=true,webhook.failurePolicy=ignore",
        "--set=imagePullSecrets[0].name=mine,scheduler.extraArgs={--shortlist=0},agent.extraArgs={--log-level=debug}",
        "--set=agent.tolerations[0].operator=Exists,agent.nodeLabels[0].key=gpu,agent.nodeLabels[0].values={a,b}",
        "--set=scheduler.podLabels.team=a,scheduler.podAnnotations.b=c,agent.podLabels.team=a,agent.nodeSelector.d=e",
        f"--set=webhook.clientCA=mine,webhook.clientNames={{a,b}},image.digest={DIGEST}",
        "--set=uninstall.runningPods=delete,scheduler.nodeSelector.f=g,scheduler.tolerations[0].operator=Exists",
    ),
}


@pytest.mark.parametrize("words", VARIANTS.values(), ids=VARIANTS.keys())
def test_the_api_server_takes_every_object_and_the_scheduler_as_restricted(
    api: ControlPlane, helm: Helm, words: tuple[str, ...]
) -> None:
    text = render(helm, *words)
    said = api.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=text, check=False)
    assert said.count("(server dry run)") == len(Objects(text).all), said
    warned = [line for line in said.splitlines() if "would violate PodSecurity" in line]
    agents = 0 if "--set=agent.enabled=false" in words else 1
    players = 1 if agents and any("agent.simulate=" in word for word in words) else 0
    assert len(warned) == agents + players, "only the agent, and what plays its simulated cards, need the host"
    assert all("hostPath" in line for line in warned)


@pytest.fixture(scope="module")
def installed(api: ControlPlane, helm: Helm) -> Iterator[ControlPlane]:
    """The chart's objects; nobody runs them, but its controllers are there."""
    for name, labels in {**NODES, **OTHERS}.items():
        made = {"metadata": {"name": name, "labels": {**LINUX, **labels}}, "spec": {}, "status": {}}
        api.api("POST", "/api/v1/nodes", made)
    done(helm("install", "aliquot", str(CHART), f"--namespace={NAMESPACE}", IMAGE, "--wait=hookOnly"))
    yield api
    done(helm("uninstall", "aliquot", f"--namespace={NAMESPACE}", "--no-hooks"))


def test_kubernetes_itself_sends_agents_to_nvidias_nodes_and_to_no_others(installed: ControlPlane) -> None:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/aliquot-agent"
    wait_until(lambda: "observedGeneration" in installed.api("GET", path)["status"], 20, "the DaemonSet is looked at")
    assert installed.api("GET", path)["status"]["desiredNumberScheduled"] == len(MODES["all"]), (
        "HAMi's and KAI's must be asked for"
    )


@pytest.mark.parametrize(("release", "namespace"), [("second", NAMESPACE), ("aliquot", "elsewhere")])
def test_a_second_release_is_refused_with_the_name_of_the_first(
    installed: ControlPlane, helm: Helm, release: str, namespace: str
) -> None:
    refused = helm("install", release, str(CHART), f"--namespace={namespace}", "--create-namespace", IMAGE)
    assert refused.returncode != 0
    assert f"release aliquot in namespace {NAMESPACE} is installed in this cluster already" in refused.stderr


@pytest.mark.parametrize("server_side", ["true", "false"])
def test_an_upgrade_leaves_what_the_leader_wrote(installed: ControlPlane, helm: Helm, server_side: str) -> None:
    """As the scheduler writes it: the Secret's data, the webhook by server-side apply, the Lease by replacement."""
    call = installed.api
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/aliquot-webhook-tls"
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/aliquot-scheduler"
    webhook = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/aliquot"
    call("PATCH", secret, {"data": {"tls.crt": "a2V5"}}, content_type="application/merge-patch+json")
    call("PUT", lease, {**call("GET", lease), "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15}})
    client = {"caBundle": "", "service": {"namespace": NAMESPACE, "name": "aliquot-webhook"}}
    hook = {
        "name": "pods.aliquot.dev",
        "clientConfig": client,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
    }
    body = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "webhooks": [hook]}
    params = {"fieldManager": "aliquot", "force": "true"}
    call("PATCH", webhook, {**body, "metadata": {"name": "aliquot"}}, content_type=APPLY, params=params)

    def kept() -> list[Any]:
        return [call("GET", secret)["data"], call("GET", lease)["spec"], call("GET", webhook)["webhooks"]]

    before = kept()
    words = ["--reuse-values", "--wait=hookOnly", f"--server-side={server_side}"]
    words += [f"--set=scheduler.podLabels.upgraded=side-{server_side}"]
    done(helm("upgrade", "aliquot", str(CHART), f"--namespace={NAMESPACE}", *words))
    assert kept() == before
    made = call("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/aliquot-scheduler")
    assert made["spec"]["template"]["metadata"]["labels"]["upgraded"] == f"side-{server_side}"


APPLY = "application/apply-patch+yaml"


# --- what its accounts may do ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("account", "what", "may"),
    [
        ("scheduler", "get secret/aliquot-webhook-tls", True),
        ("scheduler", "create secret/aliquot-extender-tls", True),
        ("scheduler", "get secrets", False),
        ("scheduler", "create secrets", False),
        ("scheduler", "create secret/aliquot-webhook-tls", True),
        ("scheduler", "create secret/others", False),
        ("scheduler", "patch mutatingwebhookconfiguration/aliquot", True),
        ("scheduler", "patch mutatingwebhookconfiguration/others", False),
        ("scheduler", "create mutatingwebhookconfigurations", False),
        ("scheduler", "create mutatingwebhookconfiguration/aliquot", True),
        ("scheduler", "create mutatingwebhookconfiguration/others", False),
        ("scheduler", "update lease/aliquot-scheduler", True),
        ("scheduler", "update lease/aliquot-kube-scheduler", True),
        ("scheduler", "update lease/others", False),
        ("scheduler", "create daemonsets", False),
        ("agent", "get secrets", False),
        ("agent", "list pods", True),
        ("agent", "create pods", False),
        ("agent", "delete pods", False),
        ("agent", "patch nodes", False),
        ("agent", "patch nodes/status", True),
        ("agent", "list resourceslices", True),
        ("agent", "get configmaps", False),
        ("agent", "get leases", False),
    ],
)
def test_service_account_rights_are_minimal(installed: ControlPlane, account: str, what: str, may: bool) -> None:
    verb, resource = what.split()
    words = ["can-i", verb, resource, f"--namespace={NAMESPACE}"]
    if resource == "nodes/status":
        words = ["can-i", verb, "nodes", "--subresource=status"]
    user = f"--as=system:serviceaccount:{NAMESPACE}:aliquot-{account}"
    assert installed.kubectl("auth", *words, user, check=False).split()[0] == ("yes" if may else "no")
