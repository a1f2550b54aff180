"""The table of reasons: words for every reason, and codes that survive what kube-scheduler makes of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects import parse_pod
from aliquot.model.claim import Claim
from aliquot.model.refusal import Invalid, Reason, Refusal
from aliquot.wording import reasons
from aliquot.wording.reasons import codes
from aliquot.wording.refusals import UNKNOWN_NODE, as_data, coded_reason, invalid_node, invalid_pod, short_reason
from kit.values.manifests import (
    APP_CLASS,
    COUNT,
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    T9K_CARDS,
    T9K_NODE,
    T9K_PERCENT,
    Json,
    asking,
    gpushare_pod,
)

PODS = [
    gpushare_pod("p", 4),
    gpushare_pod("p", 8, annotations={COUNT: "2"}),
    asking({QGPU_MEMORY: 1, QGPU_CORE: 20}),
    asking({QGPU_MEMORY: 1, QGPU_GREEDY: 20}, annotations={APP_CLASS: "offline"}),
    asking({T9K_CARDS: 2}),
    asking({T9K_PERCENT: 30}),
    asking({T9K_NODE: 1}),
]

OF_CARDS = [reason for reason in Reason if reasons.words(reason).card]
FOREIGN = [
    "Insufficient cpu",
    "Insufficient aliyun.com/gpu-mem",
    "node(s) had untolerated taint {aliquot.dev/memory: }",
    "node(s) didn't match Pod's node affinity/selector",
    "Too many pods",
]


def claim_of(pod: Json) -> Claim:
    claim = parse_pod(pod)
    assert isinstance(claim, Claim)
    return claim


def scheduler_message(nodes: list[str]) -> str:
    """As kube-scheduler's FitError has it: equal reasons are counted, and the counts sorted as text."""
    counted = sorted(f"{count} {reason}" for reason, count in Counter(nodes).items())
    return (
        f"0/{len(nodes)} nodes are available: {', '.join(counted)}. preemption: 0/{len(nodes)} nodes are available:"
        f" {len(nodes)} No preemption victims found for incoming pod."
    )


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("never", [True, False], ids=["never", "now"])
def test_short_reason_has_words_for_every_reason_and_every_kind_of_pod(reason: Reason, never: bool) -> None:
    for pod in PODS:
        words = short_reason(reason, never, claim_of(pod))
        assert words
        assert "None" not in words
        assert "{" not in words
        assert len(words) < 200


@given(
    st.lists(st.tuples(st.sampled_from(Reason), st.booleans()), max_size=8),
    st.lists(st.sampled_from(FOREIGN), max_size=4),
    st.sampled_from(PODS),
)
def test_codes_come_back_from_a_kube_scheduler_message(
    ours: list[tuple[Reason, bool]], foreign: list[str], pod: Json
) -> None:
    claim = claim_of(pod)
    message = scheduler_message([*(coded_reason(reason, never, claim) for reason, never in ours), *foreign])
    assert codes(message) == {reason.value for reason, _ in ours}


def test_codes_of_all_reasons_are_distinguished_in_one_text() -> None:
    claim = claim_of(gpushare_pod("p", 4))
    message = scheduler_message([coded_reason(reason, False, claim) for reason in Reason])
    assert codes(message) == frozenset(Reason)


@given(st.text(), st.text())
def test_codes_of_invalid_pods_and_nodes_are_found_whatever_their_fields_say(field: str, value: str) -> None:
    broken = [Invalid(field, value, "a number")]
    assert Reason.INVALID_POD in codes(scheduler_message([invalid_pod(broken)] * 3))
    assert Reason.INVALID in codes(scheduler_message([invalid_node(broken), UNKNOWN_NODE]))


@pytest.mark.parametrize(
    "message",
    [
        "0/2 nodes are available: 2 Insufficient aliyun.com/gpu-mem. preemption: 0/2 nodes are available",
        "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 didn't match Pod's node affinity/selector",
        "0/2 nodes are available: 1 Too many pods, 1 node(s) were unschedulable. No preemption victims found",
        "0/1 nodes are available: 1 node(s) had untolerated taint {aliquot/memory: memory}",
        "GPU memory: needs 4 GiB per card; no card has that much free",
        "",
    ],
)
def test_codes_are_not_found_in_what_others_say(message: str) -> None:
    assert codes(message) == frozenset()


def test_short_reason_words_percentages_as_percentages() -> None:
    words = "GPU memory: needs 30% per card; no card has that much free"
    assert short_reason(Reason.MEMORY, False, claim_of(asking({T9K_PERCENT: 30}))) == words


@pytest.mark.parametrize("reason", OF_CARDS)
def test_card_has_words_for_every_reason_about_a_card(reason: Reason) -> None:
    assert "{" not in reasons.card(reason, 10, 5)


def test_reasons_about_cards_are_the_first_nine() -> None:
    assert list(Reason)[:9] == OF_CARDS


def test_as_data_has_amounts_in_the_units_people_use() -> None:
    claim = claim_of(gpushare_pod("p", 4))
    memory = Refusal("n1", 0, Reason.MEMORY, 10_240, 3_071, never=False)
    assert as_data(memory, claim) == {
        "code": "memory",
        "node": "n1",
        "card": 0,
        "wanted": 10,
        "had": 2.99,
        "unit": "GiB",
        "never": False,
    }
    assert as_data(Refusal("n1", 0, Reason.CORE, 125, 0, never=False), claim)["wanted"] == 12.5
    taint = as_data(Refusal("n1", None, Reason.TAINT, None, "a=b:NoSchedule", never=False), claim)
    assert (taint["had"], taint["unit"]) == ("a=b:NoSchedule", None)
