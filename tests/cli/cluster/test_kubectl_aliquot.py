"""`kubectl aliquot`: all dialects on one page, for one node and for five thousand, and why each waiting Pod waits."""

from __future__ import annotations

import json

from aliquot.cli.cluster.explain import explain
from aliquot.cli.cluster.kubectl_aliquot import aliquot
from aliquot.dialects import render_inventory
from aliquot.model.device import Card
from kit.agents.draclaims import a_claim, a_config, a_result, parameters
from kit.clusters.kubectl import FakeCluster, invoked
from kit.values.manifests import (
    APP_CLASS,
    COUNT,
    MIXED,
    QGPU,
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    T9K_CARDS,
    T9K_NODE,
    XGN,
    Json,
    a_container,
    a_node,
    a_pod,
    asking,
    gpushare_node,
    gpushare_pod,
    on_card,
)

BURST = {**MIXED, "tke.cloud.tencent.com/qgpu-schedule-policy": "bs"}


def granted(pod: Json, node: str, *cards: Json) -> Json:
    """The Pod on the node, with our annotation for its only container."""
    grant = {"v": 1, "node": node, "containers": [{"name": "main", "cards": list(cards)}]}
    pod["metadata"]["annotations"]["aliquot.dev/grant"] = json.dumps(grant)
    pod["metadata"]["uid"] = f"uid-of-{pod['metadata']['name']}"
    pod["spec"]["nodeName"] = node
    return pod


MIXTURE = (
    a_node("a", 24, 24, labels=BURST),
    gpushare_node("b", 16, 16, unschedulable=True),
    a_node("c", 80, labels=XGN),
    a_node("plain"),
    granted(asking({QGPU_MEMORY: 4}, "on", annotations={APP_CLASS: "online"}), "a", {"index": 0, "memory_mib": 4096}),
    granted(
        asking({QGPU_MEMORY: 2, QGPU_GREEDY: 50}, "off", annotations={APP_CLASS: "offline"}),
        "a",
        {"index": 0, "memory_mib": 2048, "greedy_milli": 500},
    ),
    granted(asking({QGPU_MEMORY: 1, QGPU_CORE: 30}, "norm"), "a", {"index": 1, "memory_mib": 1024, "core_milli": 300}),
    a_pod(
        "multi",
        a_container("main", {"aliyun.com/gpu-mem": 12}),
        on="b",
        annotations={COUNT: "2", "scheduler.framework.gpushare.allocation": '{"0":{"0":6,"1":6}}'},
    ),
    asking({T9K_NODE: 1}, "all", on="c"),
    asking({T9K_CARDS: 1}, "waits"),
    a_pod("web", a_container(), on="plain"),
)


def printed(*arguments: str) -> list[str]:
    result = invoked(aliquot, *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


def test_a_node_takes_a_line_and_the_cluster_one(cluster: FakeCluster) -> None:
    cluster.show(*MIXTURE)
    assert printed()[:6] == [
        "NODE  OFFERS           POLICY       GPU  MEMORY (GiB)      CORE  PODS  ONLINE  OFFLINE  STATE",
        "a     qgpu,qgpu-mixed  burst-share    2          7/48   30/200%     3       1        1",
        "b     gpushare         best-effort    2         12/32    0/200%     1       0        0  cordoned",
        "c     t9k-xgn          best-effort    1         80/80  100/100%     1       0        0",
        "",
        "3 nodes, 5 GPUs: memory 99 of 160 GiB, core 1.3 of 5 GPUs, 5 Pods (1 online, 1 offline)",
    ]


def test_each_pod_that_waits_says_why_in_one_sentence(cluster: FakeCluster) -> None:
    cluster.show(*MIXTURE)
    output = printed("--pending")
    assert output[:2] == ["1 Pod waits:", "  default/waits"]
    assert output[2].startswith(
        "    fits none of 4 nodes. 1 is busy: another Pod has the whole node. 3 will not take it"
    )
    assert output == printed()[7:]


def test_details_show_every_card_and_every_pod(cluster: FakeCluster) -> None:
    cluster.show(*MIXTURE)
    assert printed("a", "-d") == [
        "a  qgpu, qgpu-mixed  burst-share",
        "  GPU  MODEL  MEMORY (GiB)     CORE  GREEDY  SHARED BY  STATE",
        "  0    -              6/24   0/100%     50%        2/6  ok",
        "  1    -              1/24  30/100%       -        1/6  ok",
        "",
        "  POD           CLASS    DIALECT  GPU  MEMORY (GiB)  CORE",
        "  default/off   offline  qgpu     0    2             greedy 50%",
        "  default/on    online   qgpu     0    4             -",
        "  default/norm  normal   qgpu     1    1             30%",
    ]
    assert "  default/multi  normal  gpushare  0,1  2 x 6         -" in printed("-d")
    assert any("whole" in line and "the whole node" in line for line in printed("c", "-d"))


def test_a_pod_with_unknown_cards_is_marked_as_a_guess(cluster: FakeCluster) -> None:
    cluster.show(gpushare_node("n1", 16), gpushare_pod("p", 4, on="n1"))
    assert printed("n1", "-d")[-1].endswith("a guess: no annotation names its cards")


def test_sick_cards_and_broken_nodes_are_seen(cluster: FakeCluster) -> None:
    sick = {
        "kind": "ConfigMap",
        "metadata": {"name": "unhealthy-gpu-n1", "namespace": "kube-system"},
        "data": {"gpus": "1"},
    }
    broken = a_node("n2", 16, labels={"sched.tensorstack.dev/node-alloc-mode": "zz"})
    cluster.show(gpushare_node("n1", 16, 16), broken, sick)
    output = printed("-o", "wide")
    assert output[1].endswith("0:0/16 1:0/16!  unhealthy: GPU 1")
    assert "is not allowed: xgn (exclusive) or sgn (shared)" in output[2]


def test_who_may_not_read_the_sick_cards_still_sees_the_rest(cluster: FakeCluster) -> None:
    cluster.show(gpushare_node("n1", 16))
    cluster.answer(
        "/api/v1/namespaces/kube-system/configmaps", "Error from server (Forbidden): configmaps is forbidden"
    )
    result = invoked(aliquot)
    assert result.exit_code == 0
    assert result.stderr.startswith("note: ")


def test_many_nodes_are_summed_up_by_kind(cluster: FakeCluster) -> None:
    nodes = [gpushare_node(f"n{at}", 16, 16, unschedulable=at < 12) for at in range(60)]
    others = [a_node(f"x{at}", 80, labels=XGN) for at in range(5)]
    cluster.show(*nodes, *others, *(on_card(f"p{at}", 4, 0, f"n{at}") for at in range(60)))
    output = printed()
    assert output[:5] == [
        "NODES  OFFERS    POLICY       GPU         MEMORY (GiB)  CORE (GPU)  FREE GPU  PODS  ONLINE  OFFLINE",
        "   60  gpushare  best-effort  2 x 16 GiB     240/1,920       0/120        60    60       0        0",
        "    5  t9k-xgn   best-effort  1 x 80 GiB         0/400         0/5         5     0       0        0",
        "",
        "65 nodes, 125 GPUs: memory 240 of 2,320 GiB, core 0 of 125 GPUs, 60 Pods (0 online, 0 offline)",
    ]
    assert output[5] == "12 nodes with trouble:"
    assert output[-2:] == ["  and 2 more", "-o wide shows every node, NODE -d one of them with its Pods"]
    assert len(printed("-o", "wide")) == 68


def test_pods_that_wait_for_the_same_reason_are_reported_together(cluster: FakeCluster) -> None:
    cluster.show(gpushare_node("n1", 16), *(gpushare_pod(f"p{at:02}", 17) for at in range(30)))
    assert printed("--pending")[:2] == ["30 Pods wait:", "  default/p00 ... default/p29 (30 Pods)"]


def test_beside_the_nodes_only_the_first_reasons_are_reported(cluster: FakeCluster) -> None:
    cluster.show(gpushare_node("n1", 16), *(gpushare_pod(f"p{at:02}", 17 + at) for at in range(30)))
    assert printed()[-1] == "  and 20 more: --pending shows them all"
    assert len(printed("--pending")) == 61


def test_a_pod_that_waits_although_it_fits_is_reported_so(cluster: FakeCluster) -> None:
    cluster.show(gpushare_node("n1", 16), gpushare_pod("p", 4))
    assert printed("--pending")[2] == "    fits on n1: kube-scheduler has not tried it since, or does not ask Aliquot"


def test_a_pod_that_kube_scheduler_refuses_for_another_reason_shows_that_reason(cluster: FakeCluster) -> None:
    said = (
        "0/5 nodes are available: 5 Insufficient cpu. no new claims to deallocate, preemption: 0/5 nodes are available."
    )
    pod = gpushare_pod("p", 4)
    pod["status"] = {"conditions": [{"type": "PodScheduled", "reason": "Unschedulable", "message": said}]}
    cluster.show(gpushare_node("n1", 16), pod)
    assert printed("--pending")[2] == (
        "    its GPU would fit on n1, but kube-scheduler last said: 0/5 nodes are available: 5 Insufficient cpu"
    )


def test_a_pod_that_is_held_back_or_breaks_a_rule_says_so(cluster: FakeCluster) -> None:
    held = gpushare_pod("p", 4, schedulingGates=[{"name": "example.com/wait"}])
    cluster.show(gpushare_node("n1", 16), held, gpushare_pod("q", 3, annotations={COUNT: "2"}))
    output = printed("--pending")
    assert output[2] == "    is held back by its scheduling gates: example.com/wait"
    assert output[4].startswith("    breaks a rule: spec.containers[0]")


def test_json_has_all_of_it(cluster: FakeCluster) -> None:
    cluster.show(*MIXTURE)
    answer = json.loads("\n".join(printed("-o", "json")))
    assert [node["name"] for node in answer["nodes"]] == ["a", "b", "c"]
    first = answer["nodes"][0]
    assert first["offers"] == ["qgpu", "qgpu-mixed"]
    assert first["policy"] == "burst-share"
    assert first["cards"][0]["memory_used_gib"] == 6
    assert {pod["pod"]: pod["class"] for pod in first["pods"]} == {
        "default/on": "online",
        "default/off": "offline",
        "default/norm": "normal",
    }
    assert [pod["pod"] for pod in answer["pending"]] == ["default/waits"]
    assert json.loads("\n".join(printed("-o", "json", "--pending"))) == {"pending": answer["pending"]}


def test_a_cluster_without_gpus_says_what_to_do(cluster: FakeCluster) -> None:
    cluster.show(a_node("plain"))
    assert printed() == ["Aliquot shares no GPU of this cluster: `aliquot doctor` shows what the nodes lack"]
    assert printed("--pending") == ["no Pod waits for a GPU that Aliquot shares"]


def test_a_node_that_is_not_there_is_one_line(cluster: FakeCluster) -> None:
    result = invoked(aliquot, "gone")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


# --- explain on the live cluster -------------------------------------------------------------------------------------


def test_explain_asks_the_live_cluster_for_a_pod_by_name(cluster: FakeCluster) -> None:
    cluster.show(gpushare_node("n1", 16), on_card("r", 13, 0), gpushare_pod("p", 4))
    result = invoked(explain, "p")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[:3] == [
        "default/p  fits none of 1 node",
        "  1 node is busy: it could take the Pod when others leave",
        "    1  GPU memory: needs 4 GiB per card; at most 3 GiB free (1 card)  [n1]",
    ]


def test_explain_looks_in_the_namespace_of_kubectl_unless_one_is_named(cluster: FakeCluster) -> None:
    pod = gpushare_pod("p", 4)
    pod["metadata"]["namespace"] = "team"
    cluster.show(gpushare_node("n1", 16), pod, namespace="team")
    assert invoked(explain, "p").stdout.startswith("team/p")
    assert invoked(explain, "p", "-n", "team").exit_code == 0
    missing = invoked(explain, "p", "-n", "other")
    assert missing.exit_code == 2
    assert missing.stderr.startswith("aliquot: other/p is not there")


def test_explain_of_a_pod_that_runs_says_where(cluster: FakeCluster) -> None:
    cluster.show(gpushare_node("n1", 16), on_card("r", 13, 0))
    result = invoked(explain, "r")
    assert result.exit_code == 0
    assert result.stdout.startswith("default/r  n1  main: GPU 0 (13 GiB)  (runs there already)")


def test_explain_takes_a_file_to_the_live_cluster(cluster: FakeCluster) -> None:
    cluster.show(a_node("n1", 16, labels=QGPU))
    file = cluster.folder / "pods.json"
    file.write_text(json.dumps(asking({QGPU_MEMORY: 4})))
    result = invoked(explain, "-f", str(file))
    assert result.exit_code == 0, result.stderr
    assert "n1" in result.stdout


def test_explain_wants_a_pod_or_a_file_and_not_both(cluster: FakeCluster) -> None:
    assert invoked(explain).exit_code == 2
    assert invoked(explain, "p", "-f", "x").exit_code == 2


def oversubscribed() -> tuple[Json, ...]:
    """A card of 24 GiB with 27 booked, and beside it a node as ever."""
    node = a_node("a", 24, labels={**MIXED, "aliquot.dev/oversubscribe": "1.5"})
    node["metadata"]["annotations"]["aliquot.dev/host-pool"] = str(32 * 1024)
    offline = [
        granted(
            asking({QGPU_MEMORY: gib, QGPU_GREEDY: 20}, name, annotations={APP_CLASS: "offline"}),
            "a",
            {"index": 0, "memory_mib": gib * 1024, "greedy_milli": 200},
        )
        for name, gib in (("one", 18), ("two", 9))
    ]
    return (node, a_node("b", 4, labels=MIXED), *offline)


def test_memory_booked_beyond_a_card_is_shown_with_the_pool(cluster: FakeCluster) -> None:
    cluster.show(*oversubscribed())
    head, *rows = printed()[:3]
    assert head.endswith("OFFLINE  BOOKABLE  POOL (GiB)  STATE")
    assert rows == [
        "a     qgpu,qgpu-mixed  best-effort    1         27/24  0/100%     2       0        2  1.5x      3/32",
        "b     qgpu,qgpu-mixed  best-effort    1           0/4  0/100%     0       0        0  1x        -",
    ]
    assert printed("a", "-d")[0] == "a  qgpu, qgpu-mixed  best-effort  books 1.5x its memory, pool 3 of 32 GiB"
    found = json.loads("\n".join(printed("a", "-o", "json")))["nodes"][0]
    assert (found["oversubscribe"], found["pool_gib"], found["pool_booked_gib"]) == (1.5, 32, 3)
    assert [pod["parkable"] for pod in found["pods"]] == [True, True]


def test_explain_books_parkable_pods_beyond_a_card_and_no_others(cluster: FakeCluster) -> None:
    cluster.show(
        *oversubscribed(),
        asking({QGPU_MEMORY: 9, QGPU_GREEDY: 20}, "parkable", annotations={APP_CLASS: "offline"}),
        asking({QGPU_MEMORY: 9, QGPU_CORE: 10}, "stays"),
        asking({QGPU_MEMORY: 9, QGPU_CORE: 10}, "asks", annotations={"aliquot.dev/park": "30s"}),
    )
    assert invoked(explain, "parkable").stdout.startswith("default/parkable  a  main: GPU 0 (9 GiB, ")
    assert invoked(explain, "asks").stdout.startswith("default/asks  a  main: GPU 0 (9 GiB, ")
    said = invoked(explain, "stays").stdout
    # of 24 GiB: the larger one has 18, the mover 1, the context of the other half
    assert "1  GPU memory: needs 9 GiB per card; at most 4.5 GiB free (1 card)  [a]" in said, said


def test_claims_that_hold_cards_are_shown(cluster: FakeCluster) -> None:
    cards = [Card(at, 16384, f"GPU-{at}") for at in range(2)]
    node = a_node("n1", 16, 16, labels={"aliquot.dev/dra": "true"})
    node["metadata"]["annotations"] |= render_inventory(cards)
    offline = a_config(parameters(class_="offline"), source="FromClass")
    cluster.show(node)
    assert "CLAIM" not in invoked(aliquot, "-d").stdout
    claims = [
        a_claim(a_result(cards[1], 4096, 30), config=[offline], name="train", pods={"u1": "b", "u2": "a"}),
        a_claim(a_result(cards[1], 2048), name="elsewhere") | {"status": {}},
    ]
    cluster.answer("/apis/resource.k8s.io/v1/resourceclaims", claims)
    said = invoked(aliquot, "-d").stdout
    assert "n1  claims" in said
    assert [line.split() for line in said.splitlines()][-2:] == [
        ["CLAIM", "CLASS", "GPU", "MEMORY", "(GiB)", "CORE", "USED", "BY"],
        ["ml/train", "offline", "1", "4", "greedy", "30%", "a,", "b"],
    ]
    (shown,) = json.loads(invoked(aliquot, "-o", "json").stdout)["nodes"]
    assert shown["claims"] == [
        {
            "claim": "ml/train",
            "class": "offline",
            "cards": [{"index": 1, "memory_gib": 4, "core": 0, "greedy": 30}],
            "pods": ["a", "b"],
        }
    ]
    assert [card["memory_used_gib"] for card in shown["cards"]] == [0, 4]
