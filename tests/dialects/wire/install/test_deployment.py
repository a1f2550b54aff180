"""The objects of an installation, adapted to its options."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aliquot import dialects
from aliquot.cli.install.options import packaged_objects
from aliquot.dialects.wire import schedulerconfig
from aliquot.dialects.wire.install import deployment
from aliquot.dialects.wire.install.deployment import Identity, Options, tailor_objects
from aliquot.model.claim import Claim

FILE = packaged_objects()
OPTIONS = Options(image="here/aliquot:9", kube_scheduler_image="kube-scheduler:9")


def _by_kind(**more: Any) -> dict[str, Any]:
    options = Options(**{"image": OPTIONS.image, "kube_scheduler_image": OPTIONS.kube_scheduler_image, **more})
    return {obj["kind"]: obj for obj in tailor_objects(FILE, options, "9.9.9")}


def _containers(workload: Any) -> dict[str, Any]:
    inner = workload["spec"]["template"]["spec"]
    return {obj["name"]: obj for obj in (*inner.get("initContainers", ()), *inner["containers"])}


# --- what is asked for -----------------------------------------------------------------------------------------------


def test_tailored_objects_use_the_namespace() -> None:
    whole = json.dumps(tailor_objects(FILE, Options("i", "k", namespace="elsewhere", monitoring=True), "1"))
    assert "aliquot-system" not in whole
    assert '"namespace": "elsewhere"' in whole


@pytest.mark.parametrize("namespace", ["aliquot-system", "kube-system"])
def test_no_two_objects_are_one(namespace: str) -> None:
    """In kube-system is also what gpushare's mode reads: one would overwrite the other."""
    found = [deployment.identity(obj) for obj in tailor_objects(FILE, Options("i", "k", namespace=namespace), "1")]
    assert len(found) == len(set(found))


def test_critical_pods_of_others_in_kube_system_get_no_quota() -> None:
    assert "ResourceQuota" in _by_kind()
    assert "ResourceQuota" not in _by_kind(namespace="kube-system")


def test_tailored_objects_have_images_version_and_manager() -> None:
    found = _by_kind()
    assert {container["image"] for container in _containers(found["DaemonSet"]).values()} == {"here/aliquot:9"}
    assert _containers(found["Deployment"])["kube-scheduler"]["image"] == "kube-scheduler:9"
    for obj in found.values():
        labels = obj["metadata"]["labels"]
        assert (labels[deployment.VERSION_LABEL], labels[deployment.MANAGED_LABEL]) == ("9.9.9", "aliquot"), obj["kind"]


@pytest.mark.parametrize(
    ("mode", "dialects"),
    [("all", "qgpu,t9k,gpushare"), ("t9k", "t9k"), ("hami", "hami"), ("all+hami+kai", "qgpu,t9k,gpushare,hami,kai")],
)
def test_tailored_programs_get_the_mode(mode: str, dialects: str) -> None:
    found = _by_kind(mode=mode)
    for kind, name in (("Deployment", "scheduler"), ("DaemonSet", "agent")):
        assert f"--dialects={dialects}" in _containers(found[kind])[name]["args"]


def test_kube_scheduler_config_has_resources_of_the_mode() -> None:
    def asked(mode: str) -> tuple[list[str], list[str]]:
        options = Options("i", "k", mode=mode)
        maps = [obj for obj in tailor_objects(FILE, options, "1") if "config.yaml" in obj.get("data", {})]
        config = json.loads(maps[0]["data"]["config.yaml"])
        names = [managed_resource["name"] for managed_resource in config["extenders"][0]["managedResources"]]
        return names, [profile["schedulerName"] for profile in config["profiles"]]

    assert asked("gpushare") == (
        ["aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage"],
        ["aliquot-scheduler"],
    )
    assert asked("all")[1] == ["aliquot-scheduler", "t9k-scheduler"]
    assert asked("kai") == (["aliquot.dev/card-place"], ["aliquot-scheduler", "kai-scheduler"])
    assert asked("hami")[1] == ["aliquot-scheduler", "hami-scheduler"]
    assert asked("all+hami+kai")[1] == ["aliquot-scheduler", "t9k-scheduler", "hami-scheduler", "kai-scheduler"]


def test_agents_select_nodes_of_the_mode() -> None:
    spec = _by_kind(mode="gpushare")["DaemonSet"]["spec"]["template"]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    keys = [term["matchExpressions"][0]["key"] for term in terms]
    share = "aliquot.dev/share-cards-with-other-plugins"
    found = ["nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present"]
    assert keys == ["gpushare", share, *found]


def test_agents_select_nodes_of_dialects_on_request_beside_all_others() -> None:
    spec = _by_kind(mode="all+hami+kai")["DaemonSet"]["spec"]["template"]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    first = [term["matchExpressions"][0] for term in terms[:5]]
    assert [expression["key"] for expression in first] == [
        "qgpu-device-enable",
        "sched.tensorstack.dev/accelerator",
        "gpushare",
        "aliquot.dev/serve-nvidia-gpu",
        "aliquot.dev/serve-kai",
    ]
    assert first[3] == {"key": "aliquot.dev/serve-nvidia-gpu", "operator": "In", "values": ["true"]}


def _daemon_sets(**options: Any) -> dict[str, Any]:
    objects = tailor_objects(FILE, Options("here/aliquot:9", "kube-scheduler:9", **options), "9.9.9")
    return {obj["metadata"]["name"]: obj for obj in objects if obj["kind"] == "DaemonSet"}


def test_simulated_cards_run_beside_the_agents_and_outlive_them() -> None:
    assert list(_daemon_sets()) == [deployment.DAEMON_SET]
    options: dict[str, Any] = {"runtime_class": "nvidia", "driver_folder": "/etc/cdi", "node_selector": {"a": "b"}}
    found = _daemon_sets(simulate="4x16GiB", mode="gpushare", **options)
    agents, cards = (found[name]["spec"]["template"] for name in (deployment.DAEMON_SET, deployment.SIMULATED_CARDS))
    assert found[deployment.SIMULATED_CARDS]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    (container,) = cards["spec"]["containers"]
    assert container["args"] == ["simulated-cards", "--nodename=$(NODE_NAME)", "4x16GiB"]
    assert container["image"] == "here/aliquot:9"
    assert cards["spec"]["hostPID"]
    assert not {"runtimeClassName", "hostNetwork", "initContainers"} & cards["spec"].keys()
    for where in ("affinity", "nodeSelector", "tolerations"):
        assert cards["spec"][where] == agents["spec"][where]
    assert not cards["metadata"]["labels"].items() <= agents["metadata"]["labels"].items()


def test_simulate_is_passed_to_agents() -> None:
    agents = _containers(_daemon_sets(simulate="4x16GiB")[deployment.DAEMON_SET])
    assert agents["agent"]["args"][-2] == "--simulate=4x16GiB"
    assert not any("--simulate" in word for word in agents["install-shim"]["args"])


def test_cluster_options_reach_their_objects() -> None:
    """Held to what the chart renders: tests/e2e/ship/test_install.py."""
    found = _by_kind(
        pull_secrets=("mine", "yours"),
        runtime_class="nvidia",
        memory_unit="MiB",
        driver_folder="/etc/cdi",
        node_selector={"pool": "gpu"},
        webhook_failure="ignore",
    )
    assert found["ServiceAccount"]["imagePullSecrets"] == [{"name": "mine"}, {"name": "yours"}]
    agent, scheduler = (found[kind]["spec"]["template"]["spec"] for kind in ("DaemonSet", "Deployment"))
    assert (agent["runtimeClassName"], agent["nodeSelector"]) == ("nvidia", {"pool": "gpu"})
    assert "runtimeClassName" not in scheduler
    assert "nodeSelector" not in scheduler
    assert "--memory-unit=MiB" in agent["containers"][0]["args"]
    assert "--memory-unit=MiB" in scheduler["containers"][0]["args"], "also while no node advertises it"
    assert "--webhook-failure=ignore" in scheduler["containers"][0]["args"]
    mounts = {mount["mountPath"]: mount["name"] for mount in agent["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in agent["volumes"]}
    assert volumes[mounts["/etc/cdi"]] == "/etc/cdi"


def test_optional_fields_are_absent_by_default() -> None:
    found = _by_kind()
    spec = found["DaemonSet"]["spec"]["template"]["spec"]
    assert not {"runtimeClassName", "nodeSelector"} & set(spec)
    assert "imagePullSecrets" not in found["ServiceAccount"]
    assert "--webhook-failure=fail" in _containers(found["Deployment"])["scheduler"]["args"]


def test_monitoring_objects_need_prometheus_operator() -> None:
    assert "PrometheusRule" in _by_kind(monitoring=True)
    assert "PrometheusRule" not in _by_kind(monitoring=False)


def test_policies_are_left_out_for_older_clusters() -> None:
    assert "ValidatingAdmissionPolicy" in _by_kind()
    assert not any(kind.startswith("Validating") for kind in _by_kind(policies=False))


def test_environment_comes_by_annotation_where_kubelets_drop_cdi() -> None:
    for wanted in (True, False):
        containers = _containers(_by_kind(env_by_annotation=wanted)["Deployment"])
        assert ("--env-by-annotation" in containers["scheduler"]["args"]) is wanted
        assert "--env-by-annotation" not in containers["kube-scheduler"].get("args", ())


def test_gate_of_the_scheduling_queue_is_left_out_where_kube_scheduler_does_not_know_it() -> None:
    for known in (True, False):
        (command,) = (
            container["command"]
            for container in _containers(_by_kind(pops_from_backoff=known)["Deployment"]).values()
            if container["name"] == "kube-scheduler"
        )
        assert ("--feature-gates=SchedulerPopFromBackoffQ=false" in command) is known


def test_gpushare_rights_are_given_only_in_its_mode() -> None:
    def rights(mode: str) -> str:
        return json.dumps([obj for obj in tailor_objects(FILE, Options("i", "k", mode=mode), "1") if "rules" in obj])

    marks = json.dumps({"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]})
    assert rights("gpushare").count(marks) == rights("qgpu").count(marks) + 1
    assert '"kube-system"' in rights("gpushare")
    assert '"kube-system"' not in rights("qgpu")


def test_tailor_objects_does_not_modify_input() -> None:
    before = json.dumps(FILE)
    tailor_objects(FILE, OPTIONS, "1")
    assert json.dumps(FILE) == before


def test_objects_are_in_apply_order() -> None:
    kinds = [obj["kind"] for obj in tailor_objects(FILE, OPTIONS, "1")]
    assert kinds[0] == "Namespace"
    assert kinds.index("ClusterRoleBinding") < kinds.index("DaemonSet") < kinds.index("Deployment")


@pytest.mark.parametrize(
    ("which", "path"),
    [
        (Identity("v1", "ConfigMap", "a", "b"), "/api/v1/namespaces/a/configmaps/b"),
        (Identity("policy/v1", "NetworkPolicy", "a", "b"), "/apis/policy/v1/namespaces/a/networkpolicies/b"),
        (Identity("scheduling.k8s.io/v1", "PriorityClass", "", "b"), "/apis/scheduling.k8s.io/v1/priorityclasses/b"),
    ],
)
def test_identity_path(which: Identity, path: str) -> None:
    assert which.path == path


@pytest.mark.parametrize("mode", deployment.MODES)
def test_example_pod_is_of_the_mode(mode: str) -> None:
    rules = dialects.Rules(served=frozenset(schedulerconfig.DIALECTS))
    claim = dialects.parse_pod(json.loads(deployment.example_pod(mode)), rules)
    assert isinstance(claim, Claim)
    assert claim.dialect == ("qgpu" if mode.startswith("all") else mode)
    assert deployment.label_arguments(mode)


def test_driver_folder_is_mounted_right_after_the_folder_of_specs() -> None:
    agent = _by_kind(driver_folder="/opt/driver")["DaemonSet"]["spec"]["template"]["spec"]
    for entries in (agent["containers"][0]["volumeMounts"], agent["volumes"]):
        names = [entry["name"] for entry in entries]
        assert names[names.index("cdi") + 1] == "driver-cdi"
        assert names.count("driver-cdi") == 1


def test_simulated_cards_mount_only_the_folder_of_sockets() -> None:
    cards = _daemon_sets(simulate="4x16GiB")[deployment.SIMULATED_CARDS]["spec"]["template"]["spec"]
    (container,) = cards["containers"]
    assert [mount["name"] for mount in container["volumeMounts"]] == ["run"]
    assert [volume["name"] for volume in cards["volumes"]] == ["run"]
    assert [variable["name"] for variable in container["env"]] == ["NODE_NAME"]


@pytest.mark.parametrize(
    ("mode", "names"),
    [("qgpu", "aliquot-scheduler"), ("t9k", "aliquot-scheduler,t9k=t9k-scheduler"), ("gpushare", "aliquot-scheduler")],
)
def test_scheduler_names_are_those_of_the_mode(mode: str, names: str) -> None:
    (scheduler, *_) = _by_kind(mode=mode)["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert f"--scheduler-name={names}" in scheduler["args"]


def test_agents_of_a_mode_without_gpushare_do_not_select_by_its_labels() -> None:
    spec = _by_kind(mode="qgpu")["DaemonSet"]["spec"]["template"]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    keys = [term["matchExpressions"][0]["key"] for term in terms]
    assert keys[0] == "qgpu-device-enable"
    assert {"nvidia.com/gpu.present", "aliquot.dev/share-cards-with-other-plugins"} <= {*keys}
    assert not {"gpushare", "ack.node.gpu.schedule"} & {*keys}
