"""The one sentence that a waiting Pod's event carries: whether waiting helps, and what decides, on any cluster."""

from __future__ import annotations

import pytest

from aliquot.dialects import Rules, parse_pod
from aliquot.model.claim import Claim
from aliquot.model.refusal import Reason, Refusal
from aliquot.services.explain.snapshot import take_snapshot
from aliquot.wording.refusals import one_sentence
from kit.manifests import QGPU_MEMORY, Json, a_node, asking, gpushare_node, gpushare_pod, on_card


def sentence(pod: Json, cluster: list[Json]) -> str:
    verdict = take_snapshot(cluster, policy="binpack", rules=Rules()).place(pod)
    assert verdict.claim is not None
    nodes = [each for each in cluster if each["kind"] == "Node"]
    return one_sentence(verdict.refusals, verdict.claim, len(nodes))


def test_busy_nodes_come_first_and_each_group_says_what_decides() -> None:
    busy = [each for at in range(3) for each in (gpushare_node(f"b{at}", 16), on_card(f"r{at}", 12, 0, f"b{at}"))]
    cluster = [*busy, a_node("other", 16), gpushare_node("closed", 16, unschedulable=True)]
    assert sentence(gpushare_pod("p", 12), cluster) == (
        "fits none of 5 nodes: "
        "3 are busy (GPU memory: 12 GiB wanted, at most 4 GiB free on 3 cards), "
        "1 is closed to it for now (cordoned), "
        "1 will not take it (not for gpushare Pods: that takes capacity aliyun.com/gpu-mem, or label gpushare=true and"
        " cards that the agent found)"
    )


def test_reasons_of_some_nodes_of_a_group_say_of_how_many() -> None:
    cluster = [a_node("other", 16), gpushare_node("small", 4), gpushare_node("tiny", 3)]
    assert sentence(gpushare_pod("p", 12), cluster).startswith(
        "fits none of 3 nodes: 3 will not take it (2 of them: GPU memory: 12 GiB wanted of a card, too small for that:"
        " 2 cards; 1 of them: not for gpushare Pods"
    )


def test_a_cluster_without_nodes_is_told_as_that() -> None:
    assert sentence(gpushare_pod(), []) == "fits nowhere: there is no node to try"


def test_a_group_without_a_deciding_reason_tells_what_it_has() -> None:
    claim = parse_pod(asking({QGPU_MEMORY: 1}))
    assert isinstance(claim, Claim)
    assert one_sentence([], claim, 3) == "fits none of 3 nodes"


@pytest.mark.parametrize("nodes", [5, 5000])
def test_it_stays_short_whatever_the_nodes_say_of_themselves(nodes: int) -> None:
    """Five thousand nodes with a taint of their own each, as long as Kubernetes takes it."""
    claim = parse_pod(gpushare_pod())
    assert isinstance(claim, Claim)
    refusals = [
        *(Refusal(f"n{at}", None, Reason.TAINT, None, f"{'k' * 250}{at}", never=False) for at in range(nodes)),
        *(Refusal(f"m{at}", None, Reason.INVALID, None, f"{'w' * 250}{at}", never=True) for at in range(nodes)),
    ]
    told = one_sentence(refusals, claim, 2 * nodes)
    assert len(told) <= 900
    assert f"{nodes:,} are closed to it for now" in told
    assert f"{nodes:,} will not take it" in told
    assert f"{nodes - 3:,} more reasons" in told
