"""HAMi's Pods and nodes in the scheduler's view of the cluster: nothing that others do frees cards that are in use."""

from __future__ import annotations

import pytest

from aliquot.dialects import Rules
from aliquot.dialects.rules import DIALECTS, EVERY
from aliquot.services.scheduler.cluster import Cluster
from kit.clusters.watchobjects import as_pod, assumed, bound, claim_of, free, live_node, pod_json
from kit.running.counting import steps
from kit.values.manifests import Json

GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"
SERVED = {"aliquot.dev/serve-nvidia-gpu": "true"}
SHARED = {**SERVED, "aliquot.dev/share-cards-with-other-plugins": "true"}
RULES = Rules(served=frozenset(EVERY))
ASKED = {GPU: "1", MEMORY: "4096"}


def a_cluster(labels: dict[str, str], amount: int) -> Cluster:
    """A node with a card of 16 GiB that has so many of nvidia.com/gpu."""
    cluster = Cluster("binpack", RULES)
    cluster.set_node(live_node("n1", 16, labels=labels, **{GPU: str(amount)}))
    return cluster


def running(cluster: Cluster) -> Json:
    """A Pod that was bound by us."""
    pod = pod_json("p", ASKED)
    placed = assumed(cluster, as_pod(pod))
    cluster.set_pod(bound(cluster, pod, placed))
    assert free(cluster) == 12
    annotations = bound(cluster, pod, placed).metadata.annotations
    return {
        **pod,
        "metadata": {**pod["metadata"], "annotations": dict(annotations or {})},
        "spec": {**pod["spec"], "nodeName": "n1"},
        "status": {"phase": "Running"},
    }


def test_pod_of_hami_is_not_sent_to_a_node_where_another_plugin_serves_its_cards() -> None:
    ours = a_cluster(SERVED, 100)
    assert list(ours.filter(claim_of(ours, as_pod(pod_json("p", ASKED))), ["n1"]).fit) == ["n1"]
    theirs = a_cluster(SHARED, 1)
    assert list(theirs.filter(claim_of(theirs, as_pod(pod_json("p", ASKED))), ["n1"]).fit) == []


def test_pod_whose_author_makes_its_request_invalid_keeps_its_cards() -> None:
    cluster = a_cluster(SERVED, 100)
    changed = running(cluster)
    changed["metadata"]["annotations"]["nvidia.com/numa-bind"] = "true"
    cluster.set_pod(as_pod(changed))
    assert free(cluster) == 12
    assert "numa-bind" in str(cluster.placed["uid-p"].doubt)


def test_pod_with_an_unreadable_request_keeps_its_cards_over_a_restart() -> None:
    """The grant says which: nothing else is left of what was booked."""
    changed = running(a_cluster(SERVED, 100))
    changed["metadata"]["annotations"]["nvidia.com/numa-bind"] = "true"
    cluster = a_cluster(SERVED, 100)
    cluster.set_pod(as_pod(changed))
    assert free(cluster) == 12
    assert "numa-bind" in str(cluster.placed["uid-p"].doubt)
    (key,) = cluster.seen
    cluster.drop_pod(key)
    assert free(cluster) == 16


def test_node_of_a_pod_with_unreadable_request_and_grant_takes_no_others_after_a_restart() -> None:
    changed = running(a_cluster(SERVED, 100))
    changed["metadata"]["annotations"] |= {"nvidia.com/numa-bind": "true", "aliquot.dev/grant": '{"v":7}'}
    cluster = a_cluster(SERVED, 100)
    cluster.set_pod(as_pod(changed))
    assert list(cluster.filter(claim_of(cluster, as_pod(pod_json("q", ASKED))), ["n1"]).fit) == []
    assert "its node takes no other Pods" in str(cluster.placed["uid-p"].doubt)
    (key,) = cluster.seen
    cluster.drop_pod(key)
    assert list(cluster.filter(claim_of(cluster, as_pod(pod_json("q", ASKED))), ["n1"]).fit) == ["n1"]


def test_pod_of_a_dialect_that_is_not_served_any_more_keeps_its_cards() -> None:
    pod = running(a_cluster(SERVED, 100))
    cluster = Cluster("binpack", Rules(served=frozenset(DIALECTS)))
    cluster.set_node(live_node("n1", 16))
    cluster.set_pod(as_pod(pod))
    assert free(cluster) == 12
    del pod["metadata"]["annotations"]["aliquot.dev/grant"]
    cluster.set_pod(as_pod(pod))
    assert free(cluster) == 16  # somebody else's


@pytest.mark.parametrize("key", ["nvidia.com/use-gputype", "nvidia.com/nouse-gputype", "aliquot.dev/card-models"])
def test_pod_that_others_placed_is_booked_however_many_models_it_lists(key: str) -> None:
    """A new Pod may list 256, which bounds how long a decision takes. Nothing is decided for one that is on a node."""
    cluster = a_cluster(SERVED, 100)
    pod = pod_json("p", ASKED, on="n1")
    pod["metadata"]["annotations"] = {key: ",".join(f"w{at}" for at in range(300))}
    cluster.set_pod(as_pod(pod))
    assert free(cluster) == 12
    assert cluster.placed["uid-p"].claim.uid == "uid-p"
    pod["metadata"]["annotations"]["nvidia.com/numa-bind"] = "true"
    cluster.set_pod(as_pod(pod))
    assert "numa-bind" in str(cluster.placed["uid-p"].doubt)


def test_thousands_of_uuids_hold_the_scheduler_up_for_no_long() -> None:
    cluster = Cluster("binpack", RULES)
    names = [f"n{at}" for at in range(500)]
    for name in names:
        cluster.set_node(live_node(name, *[16] * 8, labels=SERVED, **{GPU: "800"}))
    pod = pod_json("p", ASKED)
    pod["metadata"]["annotations"] = {"nvidia.com/use-gpuuuid": ",".join(f"GPU-{at:032x}" for at in range(7000))}
    read = as_pod(pod)
    fit: list[str] = []
    taken = steps(lambda: fit.extend(cluster.filter(claim_of(cluster, read), names).fit))
    assert fit == []
    assert taken < 100 * 7000  # a third of it, and 28 million where each card was compared with each UUID
