"""The scheduler in Prometheus's words: base units, sums over the cluster, and a card given twice is seen."""

from __future__ import annotations

import json

from prometheus_client.parser import text_string_to_metric_families

from aliquot.services.daemon.calls import Calls
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.metrics import exposition
from kit.clusters.watchobjects import a_cluster, claim_of, live_node, live_pod
from kit.values.manifests import MEM, QGPU_CORE, QGPU_MEMORY

ON_CARD_0 = {"ALIYUN_COM_GPU_MEM_IDX": "0"}


def scraped(cluster: Cluster, calls: Calls | None = None) -> dict[str, float]:
    """Every sample by name, with its labels where it has any."""
    text = exposition(
        cluster,
        calls or Calls(lambda: "now"),
        {"aliquot_leading": ("1 where", 1.0)},
        {"aliquot_relists": ("Lists", 2.0)},
    ).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("aliquot_")
        assert family.documentation
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_metrics_sum_the_cluster_in_base_units() -> None:
    cluster = a_cluster(
        live_node("n1", 16, 16), live_node("bad", labels={"sched.tensorstack.dev/node-alloc-mode": "x"})
    )
    cluster.set_pod(live_pod("a", {MEM: "4"}, on="n1", annotations=ON_CARD_0))
    cluster.set_pod(live_pod("b", {QGPU_MEMORY: "4", QGPU_CORE: "50"}, on="n1"))
    cluster.assume(claim_of(cluster, live_pod("c")), "n1")
    cluster.set_pod(live_pod("d"))
    cluster.set_pod(live_pod("e", {MEM: "64"}, refused=True))
    found = scraped(cluster)
    gib = 2.0**30
    for name, value in {
        "aliquot_nodes": 1,
        "aliquot_nodes_unusable": 1,
        "aliquot_cards": 2,
        "aliquot_cards_memory_bytes": 32 * gib,
        "aliquot_cards_memory_booked_bytes": 12 * gib,
        "aliquot_cards_core_booked_ratio": 0.5,
        "aliquot_cards_overbooked": 0,
        "aliquot_pods_placed": 2,
        "aliquot_pods_assumed": 1,
        "aliquot_pods_doubtful": 1,
        "aliquot_pods_pending": 2,
        "aliquot_pods_waiting": 1,
        "aliquot_leading": 1,
        "aliquot_relists_total": 2,
    }.items():
        assert found[name] == value, name


def test_metrics_count_cards_with_overbooked_memory() -> None:
    cluster = a_cluster(live_node("n1", 16))
    for name in ("a", "b"):
        cluster.set_pod(live_pod(name, {MEM: "12"}, on="n1", annotations=ON_CARD_0))
    assert scraped(cluster)["aliquot_cards_overbooked"] == 1


def test_metrics_count_cards_with_overbooked_compute() -> None:
    cluster = a_cluster(live_node("n1", 16))
    card = {"index": 0, "memory_mib": 1024, "core_milli": 600}
    grant = {"v": 1, "node": "n1", "containers": [{"name": "main", "cards": [card]}]}
    for name in ("a", "b"):
        limits = {QGPU_CORE: "60", QGPU_MEMORY: "1"}
        cluster.set_pod(live_pod(name, limits, on="n1", annotations={"aliquot.dev/grant": json.dumps(grant)}))
    assert scraped(cluster)["aliquot_cards_overbooked"] == 1


def test_metrics_count_and_time_calls() -> None:
    calls = Calls(lambda: "now")
    for seconds in (0.0004, 0.003, 9.0):
        calls.count("filter", "ok", seconds)
    calls.count("bind", "refused", 0.1)
    found = scraped(Cluster("binpack"), calls)
    assert found["aliquot_extender_calls_total{outcome=ok,verb=filter}"] == 3
    assert found["aliquot_extender_calls_total{outcome=refused,verb=bind}"] == 1
    assert found["aliquot_extender_call_seconds_bucket{le=0.0005,verb=filter}"] == 1
    assert found["aliquot_extender_call_seconds_bucket{le=0.005,verb=filter}"] == 2
    assert found["aliquot_extender_call_seconds_bucket{le=+Inf,verb=filter}"] == 3
    assert found["aliquot_extender_call_seconds_count{verb=filter}"] == 3


def test_metrics_of_an_empty_cluster_are_zero() -> None:
    found = scraped(Cluster("binpack"))
    assert (found["aliquot_nodes"], found["aliquot_cards_free_ratio"]) == (0, 0)
