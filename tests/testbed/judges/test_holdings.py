"""The judge of the scenarios sees what is wrong: otherwise they would prove nothing."""

from __future__ import annotations

import json
from typing import Any

from kit.values.manifests import MEM, QGPU_CORE, QGPU_MEMORY
from testbed.gpus import gpushare_node, inventory, qgpu_node
from testbed.judges.holdings import held, judge
from testbed.objects import Object, container, pod


def _holding(name: str, *shares: dict[str, Any], node: str = "n", whole_node: bool = False, **more: Any) -> Object:
    """A Pod on the node whose container `main` has those shares of cards."""
    made = pod(name, more.pop("limits", {MEM: 1}), node=node, **more)
    grant = {"v": 1, "node": "n", "whole_node": whole_node, "containers": [{"name": "main", "cards": list(shares)}]}
    made["metadata"]["annotations"]["aliquot.dev/grant"] = json.dumps(grant)
    return made


def _share(card: int, gib: int, **more: Any) -> dict[str, Any]:
    return {"index": card, "memory_mib": gib * 1024, **more}


NODES = {"n": gpushare_node("n", 8, 8)}


def test_holdings_accept_full_cards() -> None:
    full = [_holding("a", _share(0, 5), _share(1, 8)), _holding("b", _share(0, 3))]
    assert judge(NODES, full) == []


def test_more_memory_than_a_card_has_is_seen_until_one_of_them_is_done() -> None:
    pods = [_holding("a", _share(1, 5)), _holding("b", _share(1, 4))]
    assert judge(NODES, pods) == ["card 1 of n has 8192 MiB, 9216 given to ['a', 'b']"]
    pods[0]["status"] = {"phase": "Succeeded"}
    assert judge(NODES, pods) == []


def test_more_compute_than_a_card_has_is_seen() -> None:
    pods = [_holding(name, _share(0, 1, core_milli=600)) for name in "ab"]
    assert judge(NODES, pods) == ["card 0 of n: core_milli 1200 given to ['a', 'b']"]


def test_a_card_that_is_not_shared_and_yet_is_is_seen() -> None:
    pods = [_holding("a", _share(0, 8, exclusive=True)), _holding("b", _share(0, 0))]
    assert judge(NODES, pods) == ["card 0 of n is a's alone, and yet there are ['a', 'b']"]


def test_a_whole_node_that_is_not_whole_is_seen_but_for_daemon_sets() -> None:
    whole, plain = _holding("a", _share(0, 8), whole_node=True), pod("b", node="n")
    assert judge(NODES, [whole, plain]) == ["n is a's alone, and yet there are ['a', 'b']"]
    plain["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d"}]
    assert judge(NODES, [whole, plain]) == []


def test_a_grant_of_another_node_is_seen() -> None:
    assert judge(NODES, [_holding("a", _share(0, 1), node="m")]) == ["a is on m with a grant of n"]


def test_more_slices_than_a_quarter_of_the_gib_are_seen() -> None:
    nodes = {"n": qgpu_node("n", 8)}
    assert nodes["n"]["status"]["capacity"][QGPU_CORE] == "100"
    two, three = ([_holding(name, _share(0, 1), limits={QGPU_MEMORY: 1}) for name in names] for names in ("ab", "abc"))
    assert judge(nodes, two) == []
    assert len(judge(nodes, three)) == 1


def test_the_quarter_is_of_the_size_that_the_card_is_sold_with() -> None:
    t4 = {"index": 0, "memory_mib": 15360}
    nodes = {"n": qgpu_node("n", 15, annotations={"aliquot.dev/inventory": json.dumps({"v": 1, "cards": [t4]})})}
    pods = [_holding(name, _share(0, 1), limits={QGPU_MEMORY: 1}) for name in "abcde"]
    assert judge(nodes, pods[:4]) == []
    assert len(judge(nodes, pods)) == 1


def test_pods_of_other_dialects_do_not_heed_qgpus_rule() -> None:
    nodes = {"n": qgpu_node("n", 8)}
    pods = [_holding(name, _share(0, 1), limits={QGPU_MEMORY: 1}) for name in "ab"]
    assert judge(nodes, [*pods, _holding("c", _share(0, 1))]) == []


def test_a_card_is_who_its_uuid_says() -> None:
    nodes = {"n": gpushare_node("n", 8, 8, annotations=inventory(8, 8))}
    assert judge(nodes, [_holding("a", _share(0, 6, uuid="GPU-1")), _holding("b", _share(0, 6, uuid="GPU-0"))]) == []


def test_what_a_pod_holds_is_the_larger_of_its_init_containers_and_the_sum_of_the_others() -> None:
    made = pod(
        "p",
        containers=[container("main"), container("more")],
        init=[container("sidecar", restartPolicy="Always"), container("before")],
    )
    gib = {"sidecar": 1, "before": 6, "main": 3, "more": 2}
    grant = {"node": "n", "containers": [{"name": name, "cards": [_share(0, size)]} for name, size in gib.items()]}
    made["metadata"]["annotations"]["aliquot.dev/grant"] = json.dumps(grant)
    assert held(made)[0]["memory_mib"] == 7 * 1024, (
        "before it a sidecar of 1 and the init container of 6; then 1 + 3 + 2"
    )
