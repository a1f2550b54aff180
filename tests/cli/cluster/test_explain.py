"""`aliquot explain`: where Pods would go, or every reason why not; as JSON, and by exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from aliquot.cli.cluster.explain import explain
from aliquot.cli.main import cli
from kit.clusters.explain import assert_shape, explained, places, run
from kit.clusters.kubectl import FakeCluster, invoked
from kit.values.manifests import (
    APP_CLASS,
    COUNT,
    MEM,
    MIXED,
    QGPU,
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    SGN,
    T9K_CARDS,
    T9K_NODE,
    T9K_PERCENT,
    XGN,
    Json,
    a_container,
    a_node,
    a_pod,
    asking,
    gpushare_node,
    gpushare_pod,
    on_card,
    replicas,
)


def a_share(card: int, gib: float, core: int | None, *, whole: bool = False) -> Json:
    """A share in the JSON, of a Pod that is not offline."""
    return {"card": card, "memory_gib": gib, "core": core, "core_greedy": None, "whole": whole}


def test_custom_resource_that_asks_for_gpus_beside_pods_is_a_note(tmp_path: Path) -> None:
    """It was passed over without a word, as if it were not in the file."""
    training = {"apiVersion": "run.ai/v2alpha1", "kind": "TrainingWorkload", "metadata": {"name": "tw"}}
    training["spec"] = {"gpu": {"value": "0.5"}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"selector": {"gpu": "a"}}}
    mesh = {"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "g"}, "spec": {"a": [1]}}
    pods, cluster = tmp_path / "pods.yaml", tmp_path / "cluster.yaml"
    pods.write_text(yaml.safe_dump_all([training, service, mesh, gpushare_pod("p", 1)]))
    cluster.write_text(yaml.safe_dump(gpushare_node("n1", 16)))
    done = CliRunner().invoke(cli, ["explain", "-f", str(pods), "--cluster", str(cluster)])
    assert done.exit_code == 0, done.output
    said = "note: TrainingWorkload default/tw is not read: explain knows no Pods of this kind"
    assert [line for line in done.stderr.splitlines() if "not read" in line] == [said]


def test_changed_stateful_set_that_can_never_fit_does_not_fit_though_its_pod_runs(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        [replicas(1, gpushare_pod("", 40), "StatefulSet", "web")],
        [gpushare_node("n1", 16), on_card("web-0", 3, 0)],
    )
    assert result.exit_code == 1
    assert "GPU memory: needs 40 GiB per card; the largest card has 16 GiB" in result.stdout


# --- the answer ---------------------------------------------------------------------------------------------------


def test_explain_json_has_cards_and_refusals_of_other_nodes(tmp_path: Path) -> None:
    pod = asking({QGPU_MEMORY: 3, QGPU_CORE: 30}, "name")
    pod["metadata"]["namespace"] = "ns"
    (entry,) = explained(
        tmp_path, [pod], [a_node("n1", 16, labels=QGPU), a_node("n2", 16, 2, labels=QGPU, unschedulable=True)]
    )
    assert entry == {
        "pod": "ns/name",
        "ours": True,
        "fits": True,
        "node": "n1",
        "containers": {"main": [{"card": 0, "memory_gib": 3, "core": 30, "core_greedy": None, "whole": False}]},
        "error": None,
        "scheduling_gates": [],
        "preemption": None,
        "claims": [],
        "refusals": [
            {"node": "n2", "card": None, "reason": "unschedulable", "wanted": None, "had": "cordoned", "never": False}
        ],
    }


def test_explain_marks_too_small_cards_as_never(tmp_path: Path) -> None:
    (entry,) = explained(tmp_path, [gpushare_pod("p", 5)], [gpushare_node("n2", 4, 32), on_card("r", 29, 1, "n2")])
    assert entry["refusals"] == [
        {"node": "n2", "card": 0, "reason": "memory", "wanted": 5, "had": 4, "never": True},
        {"node": "n2", "card": 1, "reason": "memory", "wanted": 5, "had": 3, "never": False},
    ]


def test_explain_counts_on_the_webhook_for_manifests_and_not_for_pods_that_exist(tmp_path: Path) -> None:
    """In MiB, on a node with more of it than the kubelet handles as devices."""
    node = a_node("n1", *[80] * 8, labels={"gpushare": "true"}, capacity={MEM: str(8 * 81_920), COUNT: "8"})
    (entry,) = explained(tmp_path, [asking({MEM: 70_000}, "new")], [node])
    assert entry["fits"]
    old = asking({MEM: 70_000}, "old")
    old["metadata"]["uid"] = "uid-old"
    (entry,) = explained(tmp_path, [old], [node])
    assert [refusal["reason"] for refusal in entry["refusals"]] == ["mode"]
    assert "create the Pod again" in entry["refusals"][0]["wanted"]


def test_a_manifest_that_breaks_a_rule_has_the_sentence_as_its_error(tmp_path: Path) -> None:
    (entry,) = explained(tmp_path, [asking({QGPU_MEMORY: "1.5"})], [a_node("n1", 16, labels=QGPU)])
    assert not entry["fits"]
    assert "qgpu-memory" in entry["error"]
    assert "1.5" in entry["error"]
    assert entry["refusals"] == []


def test_json_has_the_greedy_figure_of_offline_pods_and_marks_whole_cards(tmp_path: Path) -> None:
    offline = asking({QGPU_MEMORY: 2, QGPU_GREEDY: 50}, annotations={APP_CLASS: "offline"})
    whole = asking({"tensorstack.dev/nvidia-gpu": 1}, "whole")
    cluster = [a_node("n1", 16, labels=MIXED), a_node("n2", 16, labels=XGN)]
    shares = [entry["containers"]["main"][0] for entry in explained(tmp_path, [offline, whole], cluster)]
    assert [(share["core"], share["core_greedy"], share["whole"]) for share in shares] == [
        (None, 50, False),
        (100, None, True),
    ]


def test_a_pod_with_scheduling_gates_is_held_back(tmp_path: Path) -> None:
    pod = gpushare_pod("p", 1, schedulingGates=[{"name": "example.com/quota"}])
    (entry,) = explained(tmp_path, [pod], [gpushare_node()])
    assert (entry["fits"], entry["scheduling_gates"]) == (False, ["example.com/quota"])
    printed = run(tmp_path, [pod], [gpushare_node()])
    assert printed.exit_code == 1
    assert "default/p  is held back by its scheduling gates: example.com/quota" in printed.stdout


def test_a_misspelled_resource_is_refused_with_the_name_that_was_meant(tmp_path: Path) -> None:
    (entry,) = explained(tmp_path, [asking({"aliyun.com/gpumem": 1})], [gpushare_node()])
    assert entry["fits"] is False
    assert "did you mean aliyun.com/gpu-mem?" in entry["error"]


def test_a_daemon_set_counts_as_one_pod_on_every_node_it_selects(tmp_path: Path) -> None:
    cluster = [gpushare_node("n1", 16), gpushare_node("n2", 16), gpushare_node("n3", 16, labels={"zone": "b"})]
    cluster[1]["spec"] = {"taints": [{"key": "team", "effect": "NoSchedule"}]}
    daemon = replicas(1, gpushare_pod("d", 3), "DaemonSet", "d")
    assert places(explained(tmp_path, [daemon], cluster)) == [("d-n1", "n1", [0]), ("d-n3", "n3", [0])]
    daemon["spec"]["template"]["spec"]["nodeSelector"] = {"zone": "b"}
    assert places(explained(tmp_path, [daemon], cluster)) == [("d-n3", "n3", [0])]


def test_a_suspended_job_makes_no_pods_and_a_cron_job_those_of_one_run(tmp_path: Path) -> None:
    job = replicas(1, gpushare_pod("j", 3), "Job", "j")
    job["spec"]["parallelism"] = 2
    spec = {"schedule": "* * * * *", "jobTemplate": {"spec": dict(job["spec"])}}
    cron: Json = {"kind": "CronJob", "metadata": {"name": "c"}, "spec": spec}
    answer = explained(tmp_path, [cron], [gpushare_node("n1", 16)])
    assert [entry["pod"] for entry in answer] == ["default/c-0", "default/c-1"]
    for suspended in (job, cron):
        suspended["spec"]["suspend"] = True
        assert explained(tmp_path, [suspended], [gpushare_node("n1", 16)]) == []


def test_a_pod_that_is_not_ours_blocks_no_other_pod(tmp_path: Path) -> None:
    result = run(tmp_path, [a_pod("web", a_container())], [gpushare_node()], "-o", "json")
    (entry,) = json.loads(result.stdout)
    assert_shape(entry)
    assert (result.exit_code, entry["fits"], entry["node"]) == (0, None, None)
    assert "default/web: requests no GPU" in result.stderr


def test_explain_exits_1_when_some_pods_do_not_fit(tmp_path: Path) -> None:
    pods = [gpushare_pod("small", 4), gpushare_pod("huge", 99), gpushare_pod("next", 4)]
    answer = explained(tmp_path, pods, [gpushare_node("n1", 16)])
    assert places(answer) == [("small", "n1", [0]), ("huge", None, []), ("next", "n1", [0])]


def test_each_pod_is_booked_before_the_next(tmp_path: Path) -> None:
    answer = explained(tmp_path, [gpushare_pod(f"p{at}", 8) for at in range(3)], [gpushare_node("n1", 16)])
    assert [entry["fits"] for entry in answer] == [True, True, False]
    assert answer[2]["refusals"] == [
        {"node": "n1", "card": 0, "reason": "memory", "wanted": 8, "had": 0, "never": False}
    ]


@pytest.mark.parametrize("name", ["x", None])
def test_pods_without_unique_names_are_booked_separately(tmp_path: Path, name: str | None) -> None:
    pod = gpushare_pod("x", 8)
    pod["metadata"]["name"] = name
    answer = explained(tmp_path, [pod] * 3, [gpushare_node("n1", 16)])
    assert [entry["fits"] for entry in answer] == [True, True, False]
    assert {entry["pod"] for entry in answer} == {"default/x" if name else "default/(no name)"}


def test_memory_that_is_nearly_enough_does_not_look_enough(tmp_path: Path) -> None:
    node = gpushare_node("n1", 1)
    node["metadata"]["annotations"]["aliquot.dev/inventory"] = '{"v":1,"cards":[{"index":0,"memory_mib":3071}]}'
    (entry,) = explained(tmp_path, [gpushare_pod("p", 3)], [node])
    assert [(refusal["wanted"], refusal["had"]) for refusal in entry["refusals"]] == [(3, 2.99)]


# --- manifests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet"])
def test_a_workload_counts_as_its_replicas(tmp_path: Path, kind: str) -> None:
    answer = explained(tmp_path, [replicas(3, gpushare_pod("", 3), kind, "web")], [gpushare_node("n1", 23, 23)])
    assert places(answer) == [("web-0", "n1", [0]), ("web-1", "n1", [0]), ("web-2", "n1", [0])]


def test_a_job_counts_as_its_parallelism(tmp_path: Path) -> None:
    job = replicas(0, gpushare_pod("", 3), "Job", "train")
    job["spec"]["parallelism"] = 2
    assert len(explained(tmp_path, [job], [gpushare_node()])) == 2


def test_a_workload_of_no_replicas_is_an_empty_list(tmp_path: Path) -> None:
    assert explained(tmp_path, [replicas(0, gpushare_pod("", 3))], [gpushare_node()]) == []


def test_nested_lists_and_other_kinds_are_read(tmp_path: Path) -> None:
    pods = {"kind": "PodList", "items": [{k: v for k, v in gpushare_pod("inner").items() if k != "kind"}]}
    beside = {"kind": "Service", "metadata": {"name": "s"}}
    answer = explained(tmp_path, [beside, {"kind": "List", "items": [pods, gpushare_pod("outer")]}], [gpushare_node()])
    assert [entry["pod"] for entry in answer] == ["default/inner", "default/outer"]


def test_the_cluster_may_be_yaml_of_several_documents_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "pods.json").write_text(json.dumps(gpushare_pod("p", 12)))
    cluster = [on_card("running", 8, 0), gpushare_node("n1", 16, 16), {"kind": "NodeList", "items": []}]
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump_all(cluster))
    files = ["-f", str(tmp_path / "pods.json"), "--cluster", str(tmp_path / "cluster.yaml"), "-o", "json"]
    assert places(json.loads(CliRunner().invoke(cli, ["explain", *files]).stdout)) == [("p", "n1", [1])]


def test_pods_come_from_stdin(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps(gpushare_node()))
    arguments = ["explain", "-f", "-", "--cluster", str(tmp_path / "cluster.json"), "-o", "json"]
    result = CliRunner().invoke(cli, arguments, input=json.dumps(gpushare_pod()))
    assert places(json.loads(result.stdout)) == [("p", "n1", [0])]


# --- the seeds' manifests -----------------------------------------------------------------------------------------


def test_seed_000_online_avoids_offline_and_offline_avoids_online(tmp_path: Path) -> None:
    online = asking({QGPU_MEMORY: 4}, "online", annotations={APP_CLASS: "online"})
    offline = asking({QGPU_MEMORY: 4, QGPU_GREEDY: 50}, "off", annotations={APP_CLASS: "offline"})
    plain = asking({QGPU_CORE: 30, QGPU_MEMORY: 5}, "common")
    cluster = [a_node("plain", 32, labels=QGPU), a_node("mixed", 32, 32, labels=MIXED)]
    (first, second, third) = explained(tmp_path, [online, offline, plain], cluster)
    assert (first["node"], second["node"]) == ("mixed", "mixed")
    assert first["containers"]["main"][0]["card"] != second["containers"]["main"][0]["card"]
    assert third["containers"]["main"][0] == a_share(0, 5, 30)
    assert {"node": "plain", "card": None, "reason": "mixed", "never": True}.items() <= first["refusals"][0].items()


def test_seed_001_no_more_than_a_quarter_of_the_gibibytes_share_a_card(tmp_path: Path) -> None:
    pods = [asking({QGPU_MEMORY: 1, QGPU_CORE: 1}, f"p{at}") for at in range(5)]
    answer = explained(tmp_path, pods, [a_node("n1", 16, labels=QGPU)])
    assert [entry["fits"] for entry in answer] == [True] * 4 + [False]
    assert answer[4]["refusals"] == [
        {"node": "n1", "card": 0, "reason": "slices", "wanted": 1, "had": 0, "never": False}
    ]
    assert explained(tmp_path, pods, [a_node("n1", 16, labels=QGPU)], "--rules", "2026")[4]["error"]
    steps = [asking({QGPU_MEMORY: 1, QGPU_CORE: 5}, f"p{at}") for at in range(5)]
    assert all(
        entry["fits"] for entry in explained(tmp_path, steps, [a_node("n1", 16, labels=QGPU)], "--rules", "2026")
    )


def test_the_rules_of_2026_spread_160_percent_over_two_cards(tmp_path: Path) -> None:
    pod = asking({QGPU_CORE: 160, QGPU_MEMORY: 60})
    (entry,) = explained(tmp_path, [pod], [a_node("n1", 32, 32, labels=QGPU)], "--rules", "2026")
    assert entry["containers"]["main"] == [
        a_share(0, 30, 80),
        a_share(1, 30, 80),
    ]
    (entry,) = explained(tmp_path, [pod], [a_node("n1", 32, 32, labels=QGPU)])
    assert "160" in entry["error"]


def test_seed_003_whole_cards_shared_cards_and_whole_nodes_go_to_nodes_of_their_mode(tmp_path: Path) -> None:
    pods = [asking({T9K_CARDS: 2}, "two"), asking({T9K_PERCENT: 30}, "part"), asking({T9K_NODE: 1}, "all")]
    cluster = [a_node("s", 16, labels=SGN), a_node("x1", 16, 16, labels=XGN), a_node("x2", 8, 24, labels=XGN)]
    (two, part, whole) = explained(tmp_path, pods, cluster)
    assert (two["node"], part["node"], whole["node"]) == ("x1", "s", "x2")
    assert two["containers"]["main"][1] == a_share(1, 16, 100, whole=True)
    assert part["containers"]["main"] == [a_share(0, 4.8, None)]
    assert [share["memory_gib"] for share in whole["containers"]["main"]] == [8, 24]


def test_seed_004_binpack_puts_three_times_3_gib_on_one_card(tmp_path: Path) -> None:
    node = a_node("dev-server-153", labels={"gpushare": "true"}, capacity={MEM: "184", COUNT: "8"})
    stateful = replicas(3, gpushare_pod("", 3), "StatefulSet", "binpack-1")
    answer = explained(tmp_path, [stateful], [node])
    assert places(answer) == [(f"binpack-1-{at}", "dev-server-153", [0]) for at in range(3)]
    spread = explained(tmp_path, [stateful], [node], "--priority", "spread")
    assert len({tuple(cards) for _, _, cards in places(spread)}) == 3


def test_seed_004_four_cards_of_3_gib_are_distinct_cards(tmp_path: Path) -> None:
    pod = gpushare_pod("p", 12, labels={COUNT: "4"})
    (entry,) = explained(tmp_path, [pod], [gpushare_node("n1", 16, 16, 2, 16, 16)])
    assert entry["containers"]["main"] == [a_share(card, 3, None) for card in (0, 1, 3, 4)]


def test_gpu_mem_in_mib_is_known_by_the_nodes(tmp_path: Path) -> None:
    node = a_node("n1", labels={"gpushare": "true"}, capacity={MEM: "32256", COUNT: "2"})
    (entry,) = explained(tmp_path, [gpushare_pod("p", 1536)], [node])
    assert entry["containers"]["main"] == [a_share(0, 1.5, None)]


# --- as the cluster's own scheduler does --------------------------------------------------------------------------


def _scheduler_with(cluster: FakeCluster, *options: str) -> None:
    containers = [{"name": "scheduler", "args": ["scheduler", *options]}]
    spec = {"template": {"spec": {"serviceAccountName": "aliquot-scheduler", "containers": containers}}}
    deployment = {"metadata": {"namespace": "gpu", "name": "aliquot-scheduler"}, "spec": spec}
    cluster.answer("/apis/apps/v1/deployments", [deployment])


def test_explain_does_not_count_the_scheduler_itself_on_a_whole_node(cluster: FakeCluster, tmp_path: Path) -> None:
    own = a_pod("aliquot-scheduler-x", a_container(), on="n1", serviceAccountName="aliquot-scheduler")
    own["metadata"]["namespace"] = "gpu"
    cluster.show(a_node("n1", 16, labels=XGN), own)
    (tmp_path / "pod.json").write_text(json.dumps(asking({T9K_NODE: 1})))
    assert "other Pods are on it" in invoked(explain, "-f", str(tmp_path / "pod.json")).output, "no Deployment tells"
    _scheduler_with(cluster)
    assert "other Pods are on it" not in invoked(explain, "-f", str(tmp_path / "pod.json")).output


def test_explain_uses_the_options_of_the_clusters_scheduler(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.show(gpushare_node("n1", 16, 16), on_card("r", 8, 1))
    (tmp_path / "pod.json").write_text(json.dumps(gpushare_pod("p", 4)))
    arguments = ("-f", str(tmp_path / "pod.json"))
    assert "GPU 1" in invoked(explain, *arguments).output, "binpack without a Deployment"
    _scheduler_with(cluster, "--priority=spread")
    assert "GPU 0" in invoked(explain, *arguments).output
    assert "GPU 1" in invoked(explain, *arguments, "--priority", "binpack").output, "the user's option wins"
    _scheduler_with(cluster, "--dialects=qgpu")
    assert "Aliquot does not place it" in invoked(explain, *arguments).output


def test_explain_refuses_scheduler_options_of_another_version(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.show(gpushare_node("n1", 16))
    (tmp_path / "pod.json").write_text(json.dumps(gpushare_pod("p", 4)))
    _scheduler_with(cluster, "--rules=2031")
    result = invoked(explain, "-f", str(tmp_path / "pod.json"))
    assert result.exit_code == 2
    assert (
        "runs with --rules=2031, which this version does not know: name one with --rules (2026, seed)" in result.output
    )


@pytest.mark.parametrize(
    ("words", "here"),
    [(("-f", "{file}"), "; `aliquot run --dry-run -f {file}` shows its runs here"), (("web-0",), "")],
)
def test_explain_without_a_cluster_names_what_works_without(
    cluster: FakeCluster, tmp_path: Path, words: tuple[str, ...], here: str
) -> None:
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(gpushare_pod("p", 4)))
    cluster.answer("/api/v1/nodes", "The connection to the server localhost:8080 was refused")
    result = invoked(explain, *(word.format(file=file) for word in words))
    assert result.exit_code == 2
    assert ". Without a cluster: --cluster FILE has its nodes and Pods (see --help)" in result.output
    assert result.output.endswith(f"(see --help){here.format(file=file)}\n")
    cluster.answer("/api/v1/nodes", "Error from server (Forbidden): no")
    assert "Without a cluster" not in invoked(explain, *(word.format(file=file) for word in words)).output


def test_annotation_on_a_deployment_instead_of_its_template_is_noted(tmp_path: Path) -> None:
    deployment = replicas(1, a_pod("p", a_container("main", {})))
    deployment["metadata"]["annotations"] = {APP_CLASS: "offline"}
    said = run(tmp_path, [deployment], [a_node("n1", 16, labels=QGPU)]).stderr
    assert f'note: default/web: metadata.annotations["{APP_CLASS}"]' in said
    assert "move it to spec.template.metadata.annotations" in said


def test_label_without_quotes_is_refused_as_kubernetes_does(tmp_path: Path) -> None:
    pod = gpushare_pod("p", 12)
    pod["metadata"]["labels"] = {COUNT: 4}
    (entry,) = explained(tmp_path, [pod], [gpushare_node("n1", 4)])
    assert entry["error"] == f'metadata.labels["{COUNT}"]: 4 is not allowed: text: put it in quotes, "4"'


def test_misspelled_field_is_noted(tmp_path: Path) -> None:
    pod = a_pod("p", {"name": "main", "resource": {"limits": {MEM: 3}}})
    result = run(tmp_path, [pod], [gpushare_node("n1", 4)])
    assert "note: default/p: spec.containers[0].resource is not a field of a container: did you mean resources?" in (
        result.stderr
    )


@pytest.mark.parametrize(
    ("name", "known"), [("volcano", False), ("hami-scheduler", False), ("t9k-scheduler", True), ("", True)]
)
def test_scheduler_that_does_not_ask_us_is_remarked(tmp_path: Path, name: str, known: bool) -> None:
    result = run(tmp_path, [gpushare_pod("p", 2, schedulerName=name)], [gpushare_node("n1")])
    remark = f"(only if scheduler {name} asks aliquot: its configuration must have Aliquot's extender)"
    assert (remark in result.stdout) is not known
    assert "all 1 fit" in result.stdout


# --- namespaces ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "CronJob", "CloneSet"])
@pytest.mark.parametrize(
    ("own", "given", "of_kubectl", "wanted"),
    [
        ("", "team", "other", "team"),
        ("", None, "team", "team"),
        ("own", "team", "other", "own"),
        ("", None, "", "default"),
    ],
)
def test_manifest_without_a_namespace_is_where_kubectl_would_create_it(
    cluster: FakeCluster, tmp_path: Path, kind: str, own: str, given: str | None, of_kubectl: str, wanted: str
) -> None:
    cluster.show(a_node("n1", 16, labels={"gpushare": "true"}))
    cluster.answer("namespace", of_kubectl)
    spec: Json = {"template": {"spec": gpushare_pod("p", 4)["spec"]}}
    spec = {"jobTemplate": {"spec": spec}} if kind == "CronJob" else spec
    spec = gpushare_pod("p", 4)["spec"] if kind == "Pod" else spec
    api = "apps.kruise.io/v1alpha1" if kind == "CloneSet" else "v1"
    pods = tmp_path / "pods.yaml"
    metadata = {"name": "p", "namespace": own}
    pods.write_text(yaml.safe_dump({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}))
    result = invoked(explain, "-f", str(pods), *(["-n", given] if given else []))
    assert result.stdout.startswith(f"{wanted}/p")
    assert result.exit_code == 0
