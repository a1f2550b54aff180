"""The one sentence that a waiting Pod's event carries: whether waiting helps, and what decides, on any cluster."""

from __future__ import annotations

import pytest

from aliquot.dialects import Rules, parse_pod
from aliquot.model.claim import Claim
from aliquot.model.refusal import Reason, Refusal
from aliquot.services.explain.snapshot import take_snapshot
from aliquot.wording.refusals import one_sentence
from kit.values.manifests import QGPU_MEMORY, Json, a_node, asking, gpushare_node, gpushare_pod, on_card


def sentence(pod: Json, cluster: list[Json]) -> str:
    verdict = take_snapshot(cluster, policy="binpack", rules=Rules()).place(pod)
    assert verdict.claim is not None
    nodes = [item for item in cluster if item["kind"] == "Node"]
    return one_sentence(verdict.refusals, verdict.claim, len(nodes))


def test_one_sentence_names_busy_nodes_first_and_what_decides_in_each_group() -> None:
    busy = [item for at in range(3) for item in (gpushare_node(f"b{at}", 16), on_card(f"r{at}", 12, 0, f"b{at}"))]
    cluster = [*busy, a_node("other", 16), gpushare_node("closed", 16, unschedulable=True)]
    assert sentence(gpushare_pod("p", 12), cluster) == (
        "fits none of 5 nodes. "
        "3 are busy: GPU memory: needs 12 GiB per card, at most 4 GiB free (3 cards). "
        "1 is closed to it for now: cordoned. "
        "1 will not take it: does not serve gpushare Pods: requires capacity aliyun.com/gpu-mem, or label gpushare=true"
        " and cards that the agent found"
    )


def test_one_sentence_counts_the_nodes_of_a_reason() -> None:
    cluster = [a_node("other", 16), gpushare_node("small", 4), gpushare_node("tiny", 3)]
    assert sentence(gpushare_pod("p", 12), cluster).startswith(
        "fits none of 3 nodes. 3 will not take it: 2 of them: GPU memory: needs 12 GiB per card, the largest card has"
        " 4 GiB (2 cards); 1 of them: does not serve gpushare Pods"
    )


def test_one_sentence_says_that_there_is_no_node() -> None:
    assert sentence(gpushare_pod(), []) == "fits nowhere: there is no node to try"


def test_one_sentence_without_refusals() -> None:
    claim = parse_pod(asking({QGPU_MEMORY: 1}))
    assert isinstance(claim, Claim)
    assert one_sentence([], claim, 3) == "fits none of 3 nodes"


@pytest.mark.parametrize("nodes", [5, 5000])
def test_one_sentence_stays_short_whatever_the_nodes_say(nodes: int) -> None:
    """Five thousand nodes with a taint of their own each, as long as Kubernetes takes it."""
    claim = parse_pod(gpushare_pod())
    assert isinstance(claim, Claim)
    refusals = [
        *(Refusal(f"n{at}", None, Reason.TAINT, None, f"{'k' * 250}{at}", never=False) for at in range(nodes)),
        *(Refusal(f"m{at}", None, Reason.INVALID, None, f"{'w' * 250}{at}", never=True) for at in range(nodes)),
    ]
    text = one_sentence(refusals, claim, 2 * nodes)
    assert len(text) <= 900
    assert f"{nodes:,} are closed to it for now" in text
    assert f"{nodes:,} will not take it" in text
    assert f"{nodes - 3:,} more reasons" in text
