"""No JSON whatever raises: it parses, is refused, or is not ours."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.dialects import (
    PodReader,
    Rules,
    guess_gpushare_unit,
    missing_tolerations,
    parse_grant,
    parse_node,
    parse_pod,
    parse_unhealthy,
    render_pod,
    taints,
)
from aliquot.dialects.kube.conditions import node_refusals
from aliquot.dialects.kube.manifests import expand
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid
from kit.values.claims import CLAIM, LATER, SEED, bound, modest, nodes, pods
from kit.values.strategies import anything, mutated, places_of


def read_all(pod: object, node: object, rules: Rules) -> None:
    """Everything that is read from outside, at once; what comes out is always of a kind that was promised."""
    parsed_node = parse_node(node, rules)
    assert isinstance(parsed_node, (Node, tuple))
    claim = parse_pod(pod, rules)
    assert claim is None or isinstance(claim, (Claim, tuple))
    made = expand(pod)
    answers = [answer for answer in (claim, parsed_node) if isinstance(answer, tuple)]
    answers += [(made,)] if isinstance(made, Invalid) else []
    for problems in answers:
        assert problems
        assert all(problem.sentence() and problem.field for problem in problems)
    for of_claim in (claim if isinstance(claim, Claim) else CLAIM, CLAIM):
        grant = parse_grant(pod, of_claim, parsed_node if isinstance(parsed_node, Node) else None)
        assert grant is None or isinstance(grant, (Grant, tuple))
        missing_tolerations(pod, of_claim)
        read = read_object(node, NodeObject, "node")
        if isinstance(read, NodeObject):
            node_refusals(pod, of_claim, read)
            taints(read.metadata.labels or {}, read.spec.taints or ())
    parse_unhealthy(pod)
    guess_gpushare_unit([node])
    typed = read_object(pod, PodObject, "pod")
    if isinstance(typed, PodObject):
        asked = PodReader(rules).read(typed)
        assert min(asked.cpu_milli, asked.memory_mib) >= 0
        assert isinstance(typed.daemon, bool)
        assert isinstance(typed.finished, bool)


def test_nothing_raises_on_a_number_too_long_to_print() -> None:
    """YAML makes such a number of 0xfff...; hypothesis could not print it."""
    enormous = 16**5000
    valid = render_pod(CLAIM)
    for holder, key in places_of(valid):
        before, holder[key] = holder[key], enormous
        read_all(valid, {"metadata": {"name": "n"}, "status": {"capacity": {"aliyun.com/gpu-mem": enormous}}}, SEED)
        holder[key] = before


@settings(modest, max_examples=200)
@given(anything, anything, st.sampled_from([SEED, LATER]))
def test_nothing_raises_on_any_json(pod: object, node: object, rules: Rules) -> None:
    read_all(pod, node, rules)


@settings(modest, max_examples=400)
@given(mutated(pods), mutated(nodes), st.sampled_from([SEED, LATER]))
def test_nothing_raises_on_a_valid_object_with_some_of_it_replaced(pod: object, node: object, rules: Rules) -> None:
    read_all(pod, node, rules)


OUR_JSON = {
    "aliquot.dev/grant": {
        "v": 1,
        "node": "n1",
        "containers": [{"name": "c", "cards": [{"index": 0, "memory_mib": 1}]}],
    },
    "scheduler.framework.gpushare.allocation": {"0": {"0": 1}},
    "aliquot.dev/inventory": {"v": 1, "cards": [{"index": 0, "memory_mib": 1, "uuid": "a", "numa": 0}]},
}


@modest
@given(st.sampled_from(list(OUR_JSON)).flatmap(lambda key: st.tuples(st.just(key), mutated(st.just(OUR_JSON[key])))))
def test_nothing_raises_on_an_annotation_with_some_of_its_json_replaced(case: tuple[str, object]) -> None:
    key, value = case
    pod = bound(CLAIM, SEED, {key: json.dumps(value)})
    read_all(pod, {"metadata": {"name": "n1", "annotations": {key: json.dumps(value)}}}, SEED)


UNHEALTHY = {
    "kind": "ConfigMap",
    "metadata": {"name": "unhealthy-gpu-n", "namespace": "kube-system"},
    "data": {"gpus": "0,2"},
}


@modest
@given(mutated(st.just(UNHEALTHY)))
def test_nothing_raises_on_an_unhealthy_list_with_some_of_it_replaced(configmap: object) -> None:
    parsed = parse_unhealthy(configmap)
    assert parsed is None or isinstance(parsed, (tuple, Invalid))
