"""Our objects as an installation was asked for them and what is kept of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aliquot import dialects
from aliquot.cli.install.options import rendered
from aliquot.dialects.wire import deployment as made
from aliquot.dialects.wire.deployment import Identity, Options
from aliquot.model.claim import Claim
from aliquot.model.refusal import Invalid

FILE = rendered()
OPTIONS = Options(image="here/aliquot:9", kube_scheduler_image="kube-scheduler:9")


def _tailored(**more: Any) -> dict[str, Any]:
    options = Options(**{"image": OPTIONS.image, "kube_scheduler_image": OPTIONS.kube_scheduler_image, **more})
    return {each["kind"]: each for each in made.tailored(FILE, options, "9.9.9")}


def _containers(workload: Any) -> dict[str, Any]:
    inner = workload["spec"]["template"]["spec"]
    return {each["name"]: each for each in (*inner.get("initContainers", ()), *inner["containers"])}


# --- what is asked for -----------------------------------------------------------------------------------------------


def test_every_object_is_in_the_namespace_that_is_asked_for() -> None:
    whole = json.dumps(made.tailored(FILE, Options("i", "k", namespace="elsewhere", monitoring=True), "1"))
    assert "aliquot-system" not in whole
    assert '"namespace": "elsewhere"' in whole


def test_images_version_and_manager_are_said_everywhere() -> None:
    found = _tailored()
    assert {container["image"] for container in _containers(found["DaemonSet"]).values()} == {"here/aliquot:9"}
    assert _containers(found["Deployment"])["kube-scheduler"]["image"] == "kube-scheduler:9"
    for each in found.values():
        labels = each["metadata"]["labels"]
        assert (labels[made.VERSION_LABEL], labels[made.MANAGED_LABEL]) == ("9.9.9", "aliquot"), each["kind"]


@pytest.mark.parametrize(("mode", "dialects"), [("all", "qgpu,t9k,gpushare"), ("t9k", "t9k"), ("gpushare", "gpushare")])
def test_the_mode_is_told_to_both_programs(mode: str, dialects: str) -> None:
    found = _tailored(mode=mode)
    for kind, name in (("Deployment", "scheduler"), ("DaemonSet", "agent")):
        assert f"--dialects={dialects}" in _containers(found[kind])[name]["args"]


def test_the_kube_scheduler_beside_ours_asks_about_the_modes_resources_only() -> None:
    def asked(mode: str) -> tuple[list[str], list[str]]:
        options = Options("i", "k", mode=mode)
        maps = [each for each in made.tailored(FILE, options, "1") if "config.yaml" in each.get("data", {})]
        config = json.loads(maps[0]["data"]["config.yaml"])
        names = [managed_resource["name"] for managed_resource in config["extenders"][0]["managedResources"]]
        return names, [profile["schedulerName"] for profile in config["profiles"]]

    assert asked("gpushare") == (["aliyun.com/gpu-mem", "aliyun.com/gpu-count"], ["aliquot-scheduler"])
    assert asked("all")[1] == ["aliquot-scheduler", "t9k-scheduler"]


def test_agents_go_to_nodes_of_the_mode_and_to_those_that_are_known_to_have_cards() -> None:
    spec = _tailored(mode="gpushare")["DaemonSet"]["spec"]["template"]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    keys = [term["matchExpressions"][0]["key"] for term in terms]
    assert keys == ["gpushare", "nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present"]


def test_simulated_cards_are_the_agents() -> None:
    agents = _containers(_tailored(simulate="4x16GiB")["DaemonSet"])
    assert agents["agent"]["args"][-2] == "--simulate=4x16GiB"
    assert not any("--simulate" in word for word in agents["install-shim"]["args"])


def test_what_a_cluster_needs_of_its_own_is_said_where_it_belongs() -> None:
    """Held to what the chart renders: tests/e2e/ship/test_install.py."""
    found = _tailored(
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
    assert "--memory-unit=auto" in scheduler["containers"][0]["args"], "which reads it off the nodes"
    assert "--webhook-failure=ignore" in scheduler["containers"][0]["args"]
    mounts = {mount["mountPath"]: mount["name"] for mount in agent["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in agent["volumes"]}
    assert volumes[mounts["/etc/cdi"]] == "/etc/cdi"


def test_none_of_it_is_there_unless_it_is_asked_for() -> None:
    found = _tailored()
    spec = found["DaemonSet"]["spec"]["template"]["spec"]
    assert not {"runtimeClassName", "nodeSelector"} & set(spec)
    assert "imagePullSecrets" not in found["ServiceAccount"]
    assert "--webhook-failure=fail" in _containers(found["Deployment"])["scheduler"]["args"]


def test_what_prometheus_operator_reads_is_left_out_where_the_cluster_does_not_know_it() -> None:
    assert "PrometheusRule" in _tailored(monitoring=True)
    assert "PrometheusRule" not in _tailored(monitoring=False)


def test_what_an_older_cluster_does_not_know_is_left_out() -> None:
    assert "ValidatingAdmissionPolicy" in _tailored()
    assert not any(kind.startswith("Validating") for kind in _tailored(policies=False))


def test_rights_that_are_for_gpushares_tools_are_given_in_its_mode_only() -> None:
    def rights(mode: str) -> str:
        return json.dumps([each for each in made.tailored(FILE, Options("i", "k", mode=mode), "1") if "rules" in each])

    marks = json.dumps({"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]})
    assert rights("gpushare").count(marks) == rights("qgpu").count(marks) + 1
    assert '"kube-system"' in rights("gpushare")
    assert '"kube-system"' not in rights("qgpu")


def test_the_file_itself_is_not_changed() -> None:
    before = json.dumps(FILE)
    made.tailored(FILE, OPTIONS, "1")
    assert json.dumps(FILE) == before


def test_rights_come_before_agents_and_agents_before_the_scheduler() -> None:
    kinds = [each["kind"] for each in made.tailored(FILE, OPTIONS, "1")]
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
def test_an_object_is_found_by_its_identity(which: Identity, path: str) -> None:
    assert which.path == path


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_the_record_is_read_as_it_was_written_and_leads_back_to_what_was_before() -> None:
    first = made.new_record("1", OPTIONS, FILE, labelled={"n1": {"a": "b"}}, settled=True)
    then = made.new_record("2", OPTIONS, FILE[:3], before=made.replacing(first))
    assert made.parse_record(made.render_record(then)) == then
    before = made.record_before(then)
    assert before == first
    assert before is not None
    assert made.unpack(before.packed) == FILE


def test_an_upgrade_that_was_begun_twice_still_leads_back_to_the_last_that_stood() -> None:
    first = made.new_record("1", OPTIONS, FILE, settled=True)
    half = made.new_record("2", OPTIONS, FILE, before=made.replacing(first))
    again = made.new_record("3", OPTIONS, FILE, before=made.replacing(half))
    assert made.record_before(again) == first


def test_one_that_nobody_waited_for_and_that_stands_is_led_back_to_and_takes_with_it_what_it_replaced() -> None:
    first = made.new_record("1", OPTIONS, FILE, settled=True)
    unseen = made.new_record("2", OPTIONS, FILE[:3], applied=True, before=made.replacing(first))
    then = made.new_record("3", OPTIONS, FILE[:2], before=made.replacing(made.seen_to_stand(unseen)))
    before = made.record_before(then)
    assert before is not None
    assert before.version == "2"
    assert made.unpack(before.packed) == FILE[:3]
    assert set(before.objects) == set(first.objects)


def test_a_record_of_a_release_that_knew_fewer_options_is_read() -> None:
    made_then = made.render_record(made.new_record("1", OPTIONS, FILE[:1]))
    record = json.loads(made_then["data"]["record"])
    new = ("pull_secrets", "runtime_class", "memory_unit", "driver_folder", "node_selector", "webhook_failure")
    for name in new:
        record["options"].pop(name, None)
    told = made.parse_record({"data": {"record": json.dumps(record)}})
    assert isinstance(told, made.Record)
    assert told.options == OPTIONS


@pytest.mark.parametrize("data", [None, {}, {"record": 7}, {"record": "{"}, {"record": '{"v":1}'}, {"record": "[]"}])
def test_a_record_that_cannot_be_read_is_told_and_not_guessed(data: object) -> None:
    assert isinstance(made.parse_record({"data": data}), Invalid)


def test_a_record_of_a_later_version_is_for_a_later_program() -> None:
    text = made.render_record(made.new_record("1", OPTIONS, FILE[:1]))["data"]["record"]
    told = made.parse_record({"data": {"record": text.replace('"v":1', '"v":2')}})
    assert isinstance(told, Invalid)
    assert "version 1" in told.sentence()


# --- what is said next -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", made.MODES)
def test_the_example_of_each_mode_is_a_pod_of_that_mode(mode: str) -> None:
    claim = dialects.parse_pod(json.loads(made.example(mode)))
    assert isinstance(claim, Claim)
    assert claim.dialect == ("qgpu" if mode == "all" else mode)
    assert made.label(mode)
