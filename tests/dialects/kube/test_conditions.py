"""Kubernetes' own verdicts: cordons, readiness, taints, selectors."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects import parse_pod
from aliquot.dialects.kube.conditions import asked_of_kubernetes, node_refusals, scheduling_gates
from aliquot.model.claim import Claim
from aliquot.model.refusal import Reason
from kit.clusters.watchobjects import as_node

MEM = "aliyun.com/gpu-mem"
XGN = {"sched.tensorstack.dev/accelerator": "nvidia-gpu", "sched.tensorstack.dev/node-alloc-mode": "xgn"}


def pod(resource: str = MEM, **spec: object) -> dict[str, Any]:
    container = {"name": "c", "resources": {"limits": {resource: 1}}}
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container], **spec}}


def node(
    *, labels: dict[str, str] | None = None, ready: object = None, taints: object = None, unschedulable: object = None
) -> dict[str, Any]:
    conditions = [{"type": "MemoryPressure", "status": "False"}]
    if ready is not None:
        conditions.append({"type": "Ready", "status": ready})  # type: ignore[dict-item]
    return {
        "metadata": {"name": "n1", "labels": labels},
        "spec": {"taints": taints, "unschedulable": unschedulable},
        "status": {"conditions": conditions},
    }


def refused(manifest: dict[str, Any], node_obj: dict[str, Any]) -> list[tuple[Reason, object, object, bool]]:
    claim = parse_pod(manifest)
    assert isinstance(claim, Claim)
    return [
        (refusal.reason, refusal.wanted, refusal.had, refusal.never)
        for refusal in node_refusals(manifest, claim, as_node(node_obj))
    ]


def test_a_plain_node_takes_a_plain_pod() -> None:
    assert refused(pod(), node(ready="True")) == []


def test_node_without_ready_condition_is_ready() -> None:
    assert refused(pod(), node()) == []


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_that_is_not_ready_takes_nothing_for_now(status: str) -> None:
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    assert refused(pod(), node(ready=status, taints=[taint])) == [(Reason.NOT_READY, "True", status, False)]


def test_a_cordoned_node_takes_only_pods_that_tolerate_it() -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    cordoned = node(unschedulable=True, taints=[taint])
    assert refused(pod(), cordoned) == [(Reason.UNSCHEDULABLE, None, "cordoned", False)]
    assert refused(pod(tolerations=[{"operator": "Exists"}]), cordoned) == []


# taints

TAINT = {"key": "team", "value": "ml", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "helps"),
    [
        ({"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}, True),
        ({"key": "team", "value": "ml"}, True),
        ({"key": "team", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "team", "value": "web"}, False),
        ({"key": "team", "value": "ml", "effect": "NoExecute"}, False),
        ({"key": "teams", "operator": "Exists"}, False),
        ({"value": "ml"}, False),
        ({"key": "team", "operator": "Like", "value": "ml"}, False),
        (None, False),
    ],
)
def test_a_taint_keeps_pods_away_that_do_not_tolerate_it(toleration: object, helps: bool) -> None:
    expected = [] if helps else [(Reason.TAINT, None, "team=ml:NoSchedule", False)]
    assert refused(pod(tolerations=[toleration]), node(taints=[TAINT])) == expected


def test_prefer_no_schedule_taint_is_ignored() -> None:
    assert refused(pod(), node(taints=[{**TAINT, "effect": "PreferNoSchedule"}])) == []
    assert refused(pod(), node(taints=[{**TAINT, "effect": "NoExecute"}]))[0][0] is Reason.TAINT


def test_an_xgn_node_keeps_other_pods_away_even_before_its_taint_is_written() -> None:
    shown = "sched.tensorstack.dev/xgn-mode=true:NoSchedule"
    assert refused(pod(), node(labels=XGN)) == [(Reason.TAINT, None, shown, False)]


def test_pod_for_whole_cards_tolerates_xgn_taint() -> None:
    assert refused(pod("tensorstack.dev/nvidia-gpu"), node(labels=XGN)) == []


# selectors


def affinity(*terms: object) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return pod(affinity={"nodeAffinity": required})


def expression(operator: object, *values: object, key: object = "zone") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_every_label_of_a_node_selector_must_be_there() -> None:
    wanted = pod(nodeSelector={"zone": "a", "gpu": "t4"})
    assert refused(wanted, node(labels={"zone": "a", "gpu": "t4"})) == []
    assert refused(wanted, node(labels={"zone": "b"})) == [
        (Reason.SELECTOR, "zone=a", "zone=b", True),
        (Reason.SELECTOR, "gpu=t4", None, True),
    ]


@pytest.mark.parametrize(
    ("term", "matches"),
    [
        (expression("In", "a", "b"), True),
        (expression("In", "b"), False),
        (expression("In", "a", key="nowhere"), False),
        (expression("NotIn", "b"), True),
        (expression("NotIn", "a"), False),
        (expression("NotIn", "a", key="nowhere"), True),
        (expression("Exists"), True),
        (expression("Exists", key="nowhere"), False),
        (expression("DoesNotExist"), False),
        (expression("DoesNotExist", key="nowhere"), True),
        (expression("Gt", "7", key="cards"), True),
        (expression("Gt", "8", key="cards"), False),
        (expression("Lt", "9", key="cards"), True),
        (expression("Lt", "8", key="cards"), False),
        (expression("Gt", "x", key="cards"), False),
        (expression("Gt", "1", "2", key="cards"), False),
        (expression("Gt", "7"), False),
        (expression("Near", "a"), False),
        (expression("In", "a", key=["zone"]), False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}, False),
        ({}, False),
        ("nonsense", False),
    ],
)
def test_required_affinity(term: object, matches: bool) -> None:
    refusals = refused(affinity(term), node(labels={"zone": "a", "cards": "8"}))
    assert [(reason, never) for reason, _, _, never in refusals] == ([] if matches else [(Reason.SELECTOR, True)])


def test_affinity_needs_one_term_and_all_its_expressions() -> None:
    parts = [expression("In", "a"), expression("Exists", key="x")]
    both = {"matchExpressions": [match_expression for part in parts for match_expression in part["matchExpressions"]]}
    there = node(labels={"zone": "a"})
    assert refused(affinity(both, expression("In", "a")), there) == []
    assert refused(affinity(both), there) == [(Reason.SELECTOR, "zone In [a] and x Exists", None, True)]
    assert refused(affinity(), there) == [(Reason.SELECTOR, "nothing at all", None, True)]


def test_pod_with_node_name_fits_only_that_node() -> None:
    assert refused(pod(nodeName="n1"), node()) == []
    assert refused(pod(nodeName="n2"), node()) == [(Reason.SELECTOR, "spec.nodeName=n2", "n1", True)]


def test_gates_that_hold_a_pod_back() -> None:
    assert scheduling_gates({"schedulingGates": [{"name": "a"}, {"name": "b"}, 7]}) == ("a", "b", "nothing")
    assert scheduling_gates({}) == ()


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({"affinity": {"nodeAffinity": {"a": 1}}}, []),
        ({"affinity": {"podAffinity": {"a": 1}}}, ["Pod affinity"]),
        ({"containers": [{"ports": [{"containerPort": 80}]}]}, []),
        ({"containers": [{}, {"ports": [{"hostPort": 80}]}]}, ["host ports"]),
        ({"affinity": 7, "containers": 7, "topologySpreadConstraints": 7}, ["topology spread"]),
    ],
)
def test_what_kube_scheduler_alone_decides(spec: Any, asked: list[str]) -> None:
    assert asked_of_kubernetes(spec) == asked
