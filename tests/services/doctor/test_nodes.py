"""Do nodes advertise what their labels say: one planted fault after the other."""

from __future__ import annotations

import pytest

from aliquot.dialects import DEFAULT_RULES, Rules
from aliquot.services.doctor.findings import Finding, Level
from aliquot.services.doctor.nodes import node_findings
from aliquot.services.explain.snapshot import take_snapshot
from kit.values.manifests import (
    COUNT,
    MEM,
    QGPU,
    QGPU_CORE,
    QGPU_MEMORY,
    SGN,
    T9K_CARDS,
    T9K_PERCENT,
    XGN,
    Json,
    a_node,
)

TAINT = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}
FULL = {MEM: "32", COUNT: "2"}


def everything(*objects: Json, rules: Rules = DEFAULT_RULES) -> list[Finding]:
    return list(node_findings(take_snapshot(objects, policy="binpack", rules=rules)))


def findings(*objects: Json, rules: Rules = DEFAULT_RULES) -> list[Finding]:
    return [finding for finding in everything(*objects, rules=rules) if finding.level is Level.FINDING]


WELL = [
    a_node("g", labels={"gpushare": "true"}, capacity=FULL),
    a_node("q", 16, labels=QGPU, capacity={QGPU_MEMORY: "16", QGPU_CORE: "100"}),
    a_node("x", 16, labels=XGN, capacity={T9K_CARDS: "1"}, taints=[TAINT]),
    a_node("s", 16, labels=SGN, capacity={T9K_PERCENT: "100"}),
    a_node("plain"),
]


def test_nodes_that_are_well_are_counted_and_nothing_else() -> None:
    assert [(finding.level, finding.what) for finding in everything(*WELL)] == [(Level.OK, "4 offer GPUs")]


@pytest.mark.parametrize(
    ("node", "check", "what", "fix"),
    [
        (a_node("n1", 16, labels=QGPU), "labels", "does not advertise", "kubectl label node n1 qgpu-device-enable-"),
        (
            a_node("n1", 16, labels=SGN, capacity={T9K_PERCENT: "0"}),
            "labels",
            "advertises 0 of",
            "kubectl label node n1 sched.tensorstack.dev/node-alloc-mode-",
        ),
        (a_node("n1", 16, labels={"gpushare": "true"}), "labels", f"advertise {MEM}", "gpushare-"),
        (
            a_node("n1", 16, capacity={QGPU_MEMORY: "16"}),
            "labels",
            "is not labelled",
            "kubectl label node n1 qgpu-device-enable=enable",
        ),
        (
            a_node("n1", 16, labels={"qgpu-device-enable": "yes"}, capacity={QGPU_MEMORY: "16"}),
            "labels",
            '"yes" is neither enable nor disable',
            "kubectl label node n1 --overwrite qgpu-device-enable=enable",
        ),
        (
            a_node("n1", 16, labels={"gpushare": "ture"}),
            "labels",
            '"ture" is neither true nor false, and counts as false',
            "kubectl label node n1 --overwrite gpushare=true",
        ),
        (a_node("n1", 16, capacity={T9K_CARDS: "1"}), "labels", "is not labelled", "node-alloc-mode=xgn"),
        (a_node("n1", 16, capacity={T9K_PERCENT: "100"}), "labels", "is not labelled", "node-alloc-mode=sgn"),
        (
            a_node("n1", 16, labels={**XGN, **QGPU}, capacity={QGPU_MEMORY: "16"}, taints=[TAINT]),
            "labels",
            "a node of qGPU offers no whole cards",
            "kubectl label node n1 --overwrite qgpu-device-enable=disable; or, to mix both on purpose, "
            "kubectl label node n1 aliquot.dev/mix-qgpu-and-whole-cards=true",
        ),
        (
            a_node("n1", 16, labels=XGN, capacity={T9K_CARDS: "1"}),
            "taints",
            "lacks the taint",
            "kubectl taint node n1 sched.tensorstack.dev/xgn-mode=true:NoSchedule",
        ),
        (
            a_node("n1", 16, labels=SGN, capacity={T9K_PERCENT: "100"}, taints=[TAINT]),
            "taints",
            "although it is not labelled xgn",
            "kubectl taint node n1 sched.tensorstack.dev/xgn-mode:NoSchedule-",
        ),
        (
            a_node("n1", labels={"sched.tensorstack.dev/node-alloc-mode": "both"}),
            "nodes",
            "xgn (exclusive) or sgn (shared)",
            "kubectl edit node n1",
        ),
        (
            a_node("n1", 16, 16, 16, labels={"gpushare": "true"}, capacity=FULL),
            "cards",
            "the agent found 3 cards, but the kubelet advertises 2",
            "restart the node agent on n1",
        ),
        (
            a_node("n1", 40, 40, labels={"gpushare": "true"}, capacity=FULL),
            "cards",
            "80 GiB of GPU memory, but the kubelet advertises 32 GiB",
            "restart the node agent on n1",
        ),
    ],
)
def test_node_fault_is_found_with_its_fix(node: Json, check: str, what: str, fix: str) -> None:
    (finding,) = findings(node, WELL[0])
    assert finding.check == check
    assert finding.about == ("n1",)
    assert what in finding.what
    assert fix in str(finding.advice)


@pytest.mark.parametrize(("factor", "what"), [("two", '"two" is not allowed: 1.0 to 8.0'), ("1.5", "no host pool")])
def test_factor_of_oversubscription_that_does_not_hold_is_found(factor: str, what: str) -> None:
    labels = {**QGPU, "aliquot.dev/oversubscribe": factor}
    (finding,) = findings(a_node("n1", 16, labels=labels, capacity={QGPU_MEMORY: "16", QGPU_CORE: "100"}))
    assert finding.check == "oversubscribe"
    assert what in finding.what


def test_node_that_counts_in_another_unit_is_found_with_the_settings_to_change() -> None:
    node = a_node("n1", *[80] * 8, labels={"gpushare": "true"}, capacity={MEM: str(8 * 81_920), COUNT: "8"})
    node["metadata"]["annotations"]["aliquot.dev/counted-resources"] = MEM
    finding = next(finding for finding in findings(node) if "this cluster in GiB" in finding.what)
    assert (finding.check, finding.about) == ("memory-unit", ("n1",))
    assert "scheduler.memoryUnit and agent.memoryUnit" in str(finding.advice)


def test_unknown_mode_of_ack_is_found_as_a_label() -> None:
    labels = {"gpushare": "true", "ack.node.gpu.schedule": "shared"}
    (finding,) = findings(a_node("n1", 16, labels=labels, capacity={MEM: "16", COUNT: "1"}))
    assert finding.check == "labels"
    assert "kubectl label node n1 --overwrite ack.node.gpu.schedule=" in str(finding.advice)


def test_oversubscribed_node_that_advertises_as_much_is_well() -> None:
    node = a_node(
        "n1", 16, labels={**QGPU, "aliquot.dev/oversubscribe": "1.5"}, capacity={QGPU_MEMORY: "24", QGPU_CORE: "100"}
    )
    node["metadata"]["annotations"]["aliquot.dev/host-pool"] = "65536"
    assert findings(node) == []


def test_amount_of_a_plugin_that_has_left_is_not_compared() -> None:
    """The label gpushare=true was removed: for five minutes the kubelet keeps the capacity, with nothing available."""
    labels, capacity = {**QGPU, "aliquot.dev/oversubscribe": "1.5"}, {QGPU_MEMORY: "24", QGPU_CORE: "100"}
    node = a_node("n1", 16, labels=labels, capacity={**capacity, MEM: "16", COUNT: "1"})
    node["status"]["allocatable"] = {**capacity, MEM: "0", COUNT: "0"}
    node["metadata"]["annotations"]["aliquot.dev/host-pool"] = "65536"
    assert findings(node) == []


def test_assumed_cards_are_a_note() -> None:
    node = a_node("n1", labels={"gpushare": "true"}, capacity={MEM: "32"})
    (note,) = [finding for finding in everything(node) if finding.level is Level.NOTE]
    assert "one is assumed" in note.what
    assert "set annotation aliquot.dev/inventory" in str(note.advice)


def test_sick_card_by_configmap_is_found() -> None:
    node = a_node("n1", 16, 16, labels={"gpushare": "true"}, capacity=FULL)
    metadata = {"name": "unhealthy-gpu-n1", "namespace": "kube-system"}
    (finding,) = findings(node, {"kind": "ConfigMap", "metadata": metadata, "data": {"gpus": "1"}})
    assert finding.what == "GPU 1 of 2 is unhealthy or taken out: new Pods avoid it"


def test_a_cluster_where_no_node_offers_anything_is_a_finding() -> None:
    (finding,) = findings(a_node("plain"))
    assert finding.what == "no node offers GPUs in any of the dialects"


def test_labels_to_set_are_those_of_served_dialects() -> None:
    served = Rules(served=frozenset({"qgpu", "gpushare"}))
    (finding,) = findings(a_node("plain"), rules=served)
    assert "`kubectl label node NAME qgpu-device-enable=enable`" in str(finding.advice)
    assert "`kubectl label node NAME gpushare=true`" in str(finding.advice)
    assert "tensorstack" not in str(finding.advice)


@pytest.mark.parametrize("node", [{}, {"metadata": 3}, {"metadata": {"name": "n", "labels": []}}, {"status": []}])
def test_node_of_any_shape_is_a_finding(node: Json) -> None:
    assert findings({"kind": "Node", **node}, WELL[0])


def test_cards_of_a_node_whose_agent_is_away_are_not_called_sick() -> None:
    node = a_node("n1", 16, 16, labels={"gpushare": "true"}, capacity=FULL)
    node["metadata"]["annotations"]["aliquot.dev/agent"] = "away"
    assert findings(node) == []


def test_node_switched_off_by_label_is_no_finding() -> None:
    node = a_node("n1", 16, labels={"qgpu-device-enable": "disable"}, capacity={QGPU_MEMORY: "16"})
    assert findings(node, WELL[0]) == []
