"""Do annotations and reality agree, and who waits why: one planted fault after the other."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from aliquot.dialects import Rules
from aliquot.services.doctor.findings import Finding, Level
from aliquot.services.doctor.pods import pod_findings, waiting_findings
from aliquot.services.explain.overview import look
from kit.values.manifests import (
    COUNT,
    QGPU,
    QGPU_CORE,
    QGPU_MEMORY,
    T9K_CARDS,
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

NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"


def granted(name: str, limits: Json, node: str, *cards: Json) -> Json:
    grant = {"v": 1, "node": node, "containers": [{"name": "main", "cards": list(cards)}]}
    return asking(limits, name, on=node, annotations={"aliquot.dev/grant": json.dumps(grant)})


def looked(*objects: Json) -> list[Finding]:
    return list(pod_findings(look(objects, Rules()).snapshot, NOW))


def faults(*objects: Json) -> list[Finding]:
    return [finding for finding in looked(*objects) if finding.level is Level.FINDING]


def test_cards_that_are_full_and_no_fuller_are_well() -> None:
    (finding,) = looked(gpushare_node("n1", 16), on_card("a", 8, 0), on_card("b", 8, 0))
    assert (finding.level, finding.what) == (Level.OK, "2 on nodes, no card given to too many Pods")


def test_memory_given_away_twice_is_found_by_the_annotations_alone() -> None:
    (finding,) = faults(gpushare_node("n1", 16), on_card("a", 10, 0), on_card("b", 10, 0), on_card("c", 10, 1))[:1]
    assert (finding.check, finding.about) == ("over-allocated", ("n1, GPU 0",))
    assert finding.what == "20 GiB of 16 GiB are allocated"
    assert str(finding.fix).startswith("delete one of its Pods (default/a, default/b), best one that does not run")


def test_a_card_that_the_node_does_not_have_is_found() -> None:
    (finding,) = faults(gpushare_node("n1", 16), on_card("a", 10, 3))
    assert "the node has no such card" in finding.what


def test_compute_given_away_twice_is_found() -> None:
    share = {"index": 0, "memory_mib": 1024, "core_milli": 600}
    pods = [granted(name, {QGPU_MEMORY: 1, QGPU_CORE: 60}, "n1", share) for name in "ab"]
    (finding,) = faults(a_node("n1", 16, labels=QGPU), *pods)
    assert finding.what == "120% of its compute is allocated"


def test_a_card_that_is_held_whole_and_shared_is_found() -> None:
    whole = granted("w", {T9K_CARDS: 1}, "n1", {"index": 0, "memory_mib": 8192, "exclusive": True})
    share = granted("q", {QGPU_MEMORY: 1}, "n1", {"index": 0, "memory_mib": 1024})
    (finding,) = faults(a_node("n1", 16, labels={**XGN, **QGPU}), whole, share)
    assert finding.what == "is held whole by one Pod, and 2 are on it"


def test_an_annotation_that_cannot_be_read_is_found() -> None:
    pod = gpushare_pod("p", on="n1", annotations={"aliquot.dev/grant": "{"})
    (finding,) = faults(gpushare_node("n1", 16), pod)
    assert "cannot be read" in finding.what
    assert finding.advice == "create it again: kubectl delete pod p -n default"


def test_a_bound_pod_that_breaks_a_rule_is_found() -> None:
    (finding,) = faults(gpushare_node("n1", 16), gpushare_pod("p", 3, on="n1", annotations={COUNT: "2"}))
    assert "breaks a rule" in finding.what


def test_a_bound_pod_that_breaks_a_rule_and_keeps_its_cards_is_found() -> None:
    grant = '{"v":1,"node":"n1","containers":[{"name":"c0","cards":[{"index":0,"memory_mib":3072}]}]}'
    pod = gpushare_pod("p", 3, on="n1", annotations={COUNT: "2", "aliquot.dev/grant": grant})
    (finding,) = faults(gpushare_node("n1", 16), pod)
    assert "breaks a rule, and its GPU stays booked by its grant" in finding.what


def test_pods_with_a_misspelled_resource_are_found() -> None:
    """The webhook did not see them; kube-scheduler does not ask us about them."""
    bound, waiting = (
        a_pod("bound", a_container("main", {"aliyun.com/gpumem": 2}), on="n1"),
        asking({"tke.cloud.tencent.com/qgpu-mem": 2}, "waiting"),
    )
    (finding,) = faults(gpushare_node("n1", 16), bound)
    assert "did you mean aliyun.com/gpu-mem?" in finding.what
    seen = look([gpushare_node("n1", 16), waiting], Rules())
    (finding,) = waiting_findings(seen)
    assert (finding.level, finding.about) == (Level.FINDING, ("default/waiting",))
    assert "did you mean tke.cloud.tencent.com/qgpu-memory?" in finding.what


def test_a_pod_with_scheduling_gates_is_no_fault() -> None:
    gated = gpushare_pod("p", 1, schedulingGates=[{"name": "example.com/quota"}])
    (finding,) = waiting_findings(look([gpushare_node("n1", 16), gated], Rules()))
    assert (finding.level, finding.what) == (Level.NOTE, "is held back by its scheduling gates: example.com/quota")


@pytest.mark.parametrize(
    ("assigned", "phase", "since", "found"),
    [
        ("false", "Running", "2026-11-15T11:00:00Z", 1),
        ("false", "Running", "2026-11-15T11:59:50Z", 0),
        ("false", "Pending", "2026-11-15T11:00:00Z", 0),
        ("true", "Running", "2026-11-15T11:00:00Z", 0),
    ],
)
def test_a_pod_that_runs_without_its_card_confirmed_is_found(assigned: str, phase: str, since: str, found: int) -> None:
    pod = on_card("p", 3, 0, status={"phase": phase, "startTime": since})
    pod["metadata"]["annotations"][ASSIGNED] = assigned
    assert len(faults(gpushare_node("n1", 16), pod)) == found


@pytest.mark.parametrize(
    ("reason", "found"), [("UnexpectedAdmissionError", 1), ("OutOfaliyun.com/gpu-mem", 1), ("Evicted", 0), (None, 0)]
)
def test_a_pod_that_the_kubelet_turned_away_is_found(reason: str | None, found: int) -> None:
    pod = on_card("p", 3, 0, status={"phase": "Failed", "reason": reason, "message": "no healthy devices"})
    assert len(faults(gpushare_node("n1", 16), pod)) == found


# --- who waits -------------------------------------------------------------------------------------------------------


def waits(*objects: Json) -> list[Finding]:
    return list(waiting_findings(look(objects, Rules())))


def test_pod_waiting_for_room_is_a_note() -> None:
    (found,) = waits(gpushare_node("n1", 16), on_card("r", 14, 0), gpushare_pod("p", 4))
    assert found.level is Level.NOTE
    assert found.what.startswith("fits none of 1 node. 1 is busy")


def test_pod_waiting_for_what_never_fits_is_a_finding() -> None:
    (found,) = waits(gpushare_node("n1", 16), gpushare_pod("p", 40))
    assert found.level is Level.FINDING
    assert found.advice == "`aliquot explain p -n default` shows every reason"


def test_waiting_pod_refused_for_another_reason_is_a_note() -> None:
    condition = {
        "type": "PodScheduled",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient cpu.",
    }
    (found,) = waits(gpushare_node("n1", 16), {**gpushare_pod("p", 4), "status": {"conditions": [condition]}})
    assert found.level is Level.NOTE
    assert found.what.endswith("kube-scheduler last said: 0/1 nodes are available: 1 Insufficient cpu")
    assert waits(gpushare_node("n1", 16), gpushare_pod("p", 4)) == []


def test_waiting_pod_that_breaks_a_rule_names_it() -> None:
    (found,) = waits(gpushare_node("n1", 16), gpushare_pod("p", 3, annotations={COUNT: "2"}))
    assert (found.level, found.fix) == (Level.FINDING, "correct its manifest")


def test_no_waiting_pod_is_ok() -> None:
    assert [wait.level for wait in waits(gpushare_node("n1", 16))] == [Level.OK]
