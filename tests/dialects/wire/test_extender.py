"""The words between kube-scheduler and its extender: read in any case, answered in the form of the question."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.wire.extender import (
    Args,
    Binding,
    Victim,
    Victims,
    WireError,
    asked_names,
    parse_args,
    parse_binding,
    parse_preemption,
    render_binding,
    render_bound,
    render_error,
    render_filtered,
    render_preemption,
    render_scores,
)
from kit.manifests import MEM, a_node, gpushare_pod

POD = gpushare_pod("web", 4)
NODE = a_node("n1", 16)
BINDING = {"PodName": "web", "PodNamespace": "ns", "PodUID": "u1", "Node": "n1"}


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def args(**fields: Any) -> Args:
    return parse_args(body(Pod=POD, **fields))


# --- questions -------------------------------------------------------------------------------------------------------


def test_names_come_as_they_are() -> None:
    asked = args(Nodes=None, NodeNames=["n1", "n2"])
    assert asked.Pod.metadata.name == "web"
    assert asked_names(asked) == ["n1", "n2"]


def test_whole_nodes_are_known_by_their_names() -> None:
    assert asked_names(args(Nodes={"items": [NODE, a_node("n2")]}, NodeNames=None)) == ["n1", "n2"]
    assert asked_names(args(Nodes={"items": None})) == []


CASES = [str.lower, str.upper, str.swapcase, lambda key: key[:1].lower() + key[1:]]


@pytest.mark.parametrize("spelled", CASES, ids=["lower", "upper", "swapped", "camel"])
def test_keys_are_read_in_any_case(spelled: Any) -> None:
    asked = parse_args(body(**{spelled("Pod"): POD, spelled("NodeNames"): ["n1"]}))
    assert (asked.Pod.metadata.name, asked_names(asked)) == ("web", ["n1"])
    whole = parse_args(body(**{spelled("Pod"): POD, spelled("Nodes"): {"items": [NODE]}}))
    assert asked_names(whole) == ["n1"]
    assert json.loads(render_filtered(whole, ["n1"], ["n1"], {}, {}))["Nodes"]["items"] == [NODE]
    assert parse_binding(body(**{spelled(key): value for key, value in BINDING.items()})) == Binding(**BINDING)
    victims = {"n1": {"Pods": [{"UID": "u2"}], "NumPDBViolations": 1}}
    preempting = parse_preemption(body(**{spelled("Pod"): POD, spelled("NodeNameToMetaVictims"): victims}))
    assert preempting.NodeNameToMetaVictims == {"n1": Victims([Victim("u2")], 1)}


def test_fields_that_nobody_knows_are_passed_over() -> None:
    assert asked_names(args(NodeNames=["n1"], Something={"new": [1]})) == ["n1"]


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b'{"Pod":{"metadata":{"name":"\xff"}}}', "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"x":' * 100_000, "cannot be read"),
        (b"[]", "Expected `object`, got `array`"),
        (b'"text"', "Expected `object`, got `str`"),
        (b"null", "Expected `object`, got `null`"),
        (b"{}", "missing required field `Pod`"),
        (body(Pod=5), "$.Pod"),
        (body(Pod={}), "metadata"),
        (body(Pod={"metadata": {"name": 5}}), "$.Pod.metadata.name"),
        (body(Pod=POD, NodeNames="n1"), "$.NodeNames"),
        (body(Pod=POD, NodeNames=[1]), "$.NodeNames[0]"),
        (body(Pod=POD, Nodes=[]), "$.Nodes"),
        (body(pod=POD, nodenames=[1]), "$.NodeNames[0]"),
    ],
    ids=lambda value: value[:24].decode(errors="replace") if isinstance(value, bytes) else value[:24],
)
def test_a_question_that_cannot_be_read_says_where_and_why(sent: bytes, says: str) -> None:
    with pytest.raises(WireError) as refused:
        parse_args(sent)
    assert says in str(refused.value)


@pytest.mark.parametrize("field", ["name", "namespace", "uid"])
def test_a_pod_with_a_name_that_no_pod_can_have_is_told(field: str) -> None:
    pod = {**POD, "metadata": {**POD["metadata"], field: "x" * 254}}
    with pytest.raises(WireError, match=rf"Pod\.metadata\.{field} is longer than 253"):
        parse_args(body(Pod=pod, NodeNames=[]))


def test_a_question_about_no_nodes_at_all_is_told() -> None:
    with pytest.raises(WireError, match="neither NodeNames nor Nodes is there"):
        asked_names(args())


def test_a_whole_node_without_a_name_is_told() -> None:
    with pytest.raises(WireError, match=r"Nodes\.items: .*metadata"):
        asked_names(args(Nodes={"items": [{"kind": "Node"}]}))


@pytest.mark.parametrize("field", ["PodName", "PodNamespace", "Node"])
def test_a_bind_without_what_it_needs_names_the_field(field: str) -> None:
    with pytest.raises(WireError, match=f"{field} is empty: bind needs it"):
        parse_binding(body(**{**BINDING, field: ""}))
    with pytest.raises(WireError, match=f"missing required field `{field}`"):
        parse_binding(body(**{key: value for key, value in BINDING.items() if key != field}))


@given(st.binary(max_size=60) | st.text(max_size=30).map(str.encode))
def test_no_bytes_make_anything_but_a_question_or_a_wire_error(sent: bytes) -> None:
    for parse in (parse_args, parse_binding, parse_preemption):
        with suppress(WireError):
            parse(sent)


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["Pod", "metadata", MEM])
jsons = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["Pod", "pod", "Nodes", "NodeNames", "items", "metadata", "name", "PodName", "Node"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(jsons)
def test_no_json_makes_anything_but_a_question_or_a_wire_error(value: object) -> None:
    for parse in (parse_args, parse_binding, parse_preemption):
        with suppress(WireError):
            asked = parse(json.dumps(value).encode())
            if isinstance(asked, Args):
                asked_names(asked)


# --- answers ---------------------------------------------------------------------------------------------------------


def test_names_are_answered_with_names() -> None:
    asked = args(NodeNames=["a", "b", "c"])
    assert json.loads(render_filtered(asked, ["a", "b", "c"], ["a"], {"b": "busy"}, {"c": "never"})) == {
        "Nodes": None,
        "NodeNames": ["a"],
        "FailedNodes": {"b": "busy"},
        "FailedAndUnresolvableNodes": {"c": "never"},
        "Error": "",
    }


def test_whole_nodes_are_answered_with_whole_nodes_as_they_came() -> None:
    odd = {"metadata": {"name": "n2"}, "spec": {"whatever": [1.5, None, "ü"]}}
    asked = args(Nodes={"items": [NODE, odd, a_node("n3")]})
    answer = json.loads(render_filtered(asked, asked_names(asked), ["n2", "n1"], {"n3": "busy"}, {}))
    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == [NODE, odd]


def test_no_node_that_fits_is_an_empty_list_and_not_nothing() -> None:
    """Go reads null as "the extender did not say", and then keeps what it had."""
    assert json.loads(render_filtered(args(NodeNames=["a"]), ["a"], [], {"a": "x"}, {}))["NodeNames"] == []
    whole = args(Nodes={"items": [NODE]})
    assert json.loads(render_filtered(whole, ["n1"], [], {"n1": "x"}, {}))["Nodes"]["items"] == []


def test_both_forms_at_once_are_answered_with_names() -> None:
    asked = args(Nodes={"items": [NODE]}, NodeNames=["n1"])
    answer = json.loads(render_filtered(asked, asked_names(asked), ["n1"], {}, {}))
    assert (answer["Nodes"], answer["NodeNames"]) == (None, ["n1"])


def test_an_error_is_said_where_kube_scheduler_looks_for_it() -> None:
    assert json.loads(render_error("why"))["Error"] == "why"
    assert json.loads(render_bound("why")) == {"Error": "why"}
    assert json.loads(render_bound()) == {"Error": ""}


def test_scores_are_a_bare_list_of_whole_numbers() -> None:
    assert json.loads(render_scores(["a", "b"], [10, 0])) == [{"Host": "a", "Score": 10}, {"Host": "b", "Score": 0}]


def test_victims_are_handed_back_in_the_words_they_came_in() -> None:
    victims = {"n1": {"Pods": [{"UID": "u2"}], "NumPDBViolations": 1}, "n2": {"Pods": None, "NumPDBViolations": 0}}
    asked = parse_preemption(body(Pod=POD, NodeNameToMetaVictims=victims))
    assert json.loads(render_preemption(asked.NodeNameToMetaVictims or {})) == {"NodeNameToMetaVictims": victims}


def test_the_binding_carries_the_annotations_and_the_uid_it_is_meant_for() -> None:
    assert render_binding(Binding(**BINDING), "u1", {"a": "b"}) == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "annotations": {"a": "b"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    assert "uid" not in render_binding(Binding(**BINDING), "", {})["metadata"]
