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
    parse_args,
    parse_binding,
    parse_preemption,
    render_binding,
    render_bound,
    render_error,
    render_filtered,
    render_preemption,
    render_scores,
    requested_names,
    without_percent_sign,
)
from kit.values.anyjson import any_json, atoms
from kit.values.deepjson import MANAGED, with_deep_fields
from kit.values.manifests import MEM, a_node, gpushare_pod

POD = gpushare_pod("web", 4)
NODE = a_node("n1", 16)
BINDING = {"PodName": "web", "PodNamespace": "ns", "PodUID": "u1", "Node": "n1"}


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def args(**fields: Any) -> Args:
    return parse_args(body(Pod=POD, **fields))


# --- questions -------------------------------------------------------------------------------------------------------


def test_node_names_are_parsed() -> None:
    asked = args(Nodes=None, NodeNames=["n1", "n2"])
    assert asked.Pod.metadata.name == "web"
    assert requested_names(asked) == ["n1", "n2"]


def test_whole_nodes_are_parsed_to_names() -> None:
    assert requested_names(args(Nodes={"items": [NODE, a_node("n2")]}, NodeNames=None)) == ["n1", "n2"]
    assert requested_names(args(Nodes={"items": None})) == []


CASES = [str.lower, str.upper, str.swapcase, lambda key: key[:1].lower() + key[1:]]


@pytest.mark.parametrize("spelled", CASES, ids=["lower", "upper", "swapped", "camel"])
def test_keys_are_case_insensitive(spelled: Any) -> None:
    asked = parse_args(body(**{spelled("Pod"): POD, spelled("NodeNames"): ["n1"]}))
    assert (asked.Pod.metadata.name, requested_names(asked)) == ("web", ["n1"])
    whole = parse_args(body(**{spelled("Pod"): POD, spelled("Nodes"): {"items": [NODE]}}))
    assert requested_names(whole) == ["n1"]
    assert json.loads(render_filtered(whole, ["n1"], ["n1"], {}, {}))["Nodes"]["items"] == [NODE]
    assert parse_binding(body(**{spelled(key): value for key, value in BINDING.items()})) == Binding(**BINDING)
    victims = {"n1": {"Pods": [{"UID": "u2"}], "NumPDBViolations": 1}}
    preempting = parse_preemption(body(**{spelled("Pod"): POD, spelled("NodeNameToMetaVictims"): victims}))
    assert preempting.NodeNameToMetaVictims == {"n1": Victims([Victim("u2")], 1)}


def test_unknown_fields_are_ignored() -> None:
    assert requested_names(args(NodeNames=["n1"], Something={"new": [1]})) == ["n1"]


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
def test_invalid_args_name_field_and_reason(sent: bytes, says: str) -> None:
    with pytest.raises(WireError) as refused:
        parse_args(sent)
    assert says in str(refused.value)


@pytest.mark.parametrize("field", ["name", "namespace", "uid"])
def test_invalid_pod_name_is_refused(field: str) -> None:
    pod = {**POD, "metadata": {**POD["metadata"], field: "x" * 254}}
    with pytest.raises(WireError, match=rf"Pod\.metadata\.{field} is longer than 253"):
        parse_args(body(Pod=pod, NodeNames=[]))


def test_args_without_nodes_are_refused() -> None:
    with pytest.raises(WireError, match="neither NodeNames nor Nodes"):
        requested_names(args())


def test_whole_node_without_name_is_refused() -> None:
    with pytest.raises(WireError, match=r"Nodes\.items: .*metadata"):
        requested_names(args(Nodes={"items": [{"kind": "Node"}]}))


@pytest.mark.parametrize("name", [b'"\xff"', b'"\xed\xa0\x80"'])
def test_whole_node_whose_name_is_no_utf8_is_refused(name: bytes) -> None:
    asked = parse_args(body(Pod=POD, Nodes={"items": [{"metadata": {"name": "@"}}]}).replace(b'"@"', name))
    with pytest.raises(WireError, match=r"Nodes\.items: .*utf-8"):
        requested_names(asked)


@pytest.mark.parametrize("field", ["PodName", "PodNamespace", "Node"])
def test_incomplete_binding_names_the_field(field: str) -> None:
    with pytest.raises(WireError, match=f"{field} is empty: bind requires it"):
        parse_binding(body(**{**BINDING, field: ""}))
    with pytest.raises(WireError, match=f"missing required field `{field}`"):
        parse_binding(body(**{key: value for key, value in BINDING.items() if key != field}))


@pytest.mark.parametrize("field", ["PodName", "PodNamespace", "Node"])
@pytest.mark.parametrize(
    "name", ["a/b", "../secrets/x", "a%2fb", "a?b", "a#b", "a b", "A", "a\n", "x" * 254, ".", ".."]
)
def test_name_in_a_binding_is_one_part_of_a_path(field: str, name: str) -> None:
    with pytest.raises(WireError, match=f"(?s){field}: .* is not allowed: a Kubernetes name"):
        parse_binding(body(**{**BINDING, field: name}))


@given(st.binary(max_size=60) | st.text(max_size=30).map(str.encode))
def test_parse_args_accepts_any_bytes(sent: bytes) -> None:
    for parse in (parse_args, parse_binding, parse_preemption):
        with suppress(WireError):
            parse(sent)


WORDS = ["Pod", "pod", "Nodes", "NodeNames", "items", "metadata", "name", "PodName", "Node"]


@given(any_json(atoms | st.sampled_from(["Pod", "metadata", MEM]), WORDS, most=4, leaves=10))
def test_parse_args_accepts_any_json(value: object) -> None:
    for parse in (parse_args, parse_binding, parse_preemption):
        with suppress(WireError):
            asked = parse(json.dumps(value).encode())
            if isinstance(asked, Args):
                requested_names(asked)


# --- answers ---------------------------------------------------------------------------------------------------------


def test_filter_result_has_names_for_names() -> None:
    asked = args(NodeNames=["a", "b", "c"])
    assert json.loads(render_filtered(asked, ["a", "b", "c"], ["a"], {"b": "busy"}, {"c": "never"})) == {
        "Nodes": None,
        "NodeNames": ["a"],
        "FailedNodes": {"b": "busy"},
        "FailedAndUnresolvableNodes": {"c": "never"},
        "Error": "",
    }


def test_filter_result_has_unchanged_whole_nodes() -> None:
    odd = {"metadata": {"name": "n2"}, "spec": {"whatever": [1.5, None, "ü"]}}
    asked = args(Nodes={"items": [NODE, odd, a_node("n3")]})
    answer = json.loads(render_filtered(asked, requested_names(asked), ["n2", "n1"], {"n3": "busy"}, {}))
    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == [NODE, odd]


def test_filter_result_without_fit_is_an_empty_list() -> None:
    """Go reads null as "the extender did not say", and then keeps what it had."""
    assert json.loads(render_filtered(args(NodeNames=["a"]), ["a"], [], {"a": "x"}, {}))["NodeNames"] == []
    whole = args(Nodes={"items": [NODE]})
    assert json.loads(render_filtered(whole, ["n1"], [], {"n1": "x"}, {}))["Nodes"]["items"] == []


def test_filter_result_prefers_names() -> None:
    asked = args(Nodes={"items": [NODE]}, NodeNames=["n1"])
    answer = json.loads(render_filtered(asked, requested_names(asked), ["n1"], {}, {}))
    assert (answer["Nodes"], answer["NodeNames"]) == (None, ["n1"])


def test_render_error_uses_the_error_field() -> None:
    assert json.loads(render_error("why"))["Error"] == "why"
    assert json.loads(render_bound("why")) == {"Error": "why"}
    assert json.loads(render_bound()) == {"Error": ""}


def test_render_scores_is_a_list_of_integers() -> None:
    assert json.loads(render_scores(["a", "b"], [10, 0])) == [{"Host": "a", "Score": 10}, {"Host": "b", "Score": 0}]


def test_render_preemption_keeps_victim_form() -> None:
    victims = {"n1": {"Pods": [{"UID": "u2"}], "NumPDBViolations": 1}, "n2": {"Pods": None, "NumPDBViolations": 0}}
    asked = parse_preemption(body(Pod=POD, NodeNameToMetaVictims=victims))
    assert json.loads(render_preemption(asked.NodeNameToMetaVictims or {})) == {"NodeNameToMetaVictims": victims}


def test_render_binding_has_annotations_and_uid() -> None:
    assert render_binding(Binding(**BINDING), "u1", {"a": "b"}) == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "annotations": {"a": "b"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    assert "uid" not in render_binding(Binding(**BINDING), "", {})["metadata"]


# --- percent signs: kube-scheduler uses what we answer as a format of Printf ------------------------------------------


def test_percentages_are_written_in_words() -> None:
    assert without_percent_sign("needs 80% of a card; 12.5 % free") == "needs 80 percent of a card; 12.5 percent free"
    assert without_percent_sign('app-class: "%d%" is not allowed') == (
        'app-class: "(percent sign)d(percent sign)" is not allowed'
    )
    assert without_percent_sign("no card is that large") == "no card is that large"


@given(st.text() | st.text(alphabet="a1 %.!d"))
def test_no_answer_has_a_percent_sign(sentence: str) -> None:
    filtered = json.loads(render_filtered(args(NodeNames=["a", "b"]), ["a", "b"], [], {"a": sentence}, {"b": sentence}))
    expected = without_percent_sign(sentence)
    assert filtered["FailedNodes"] == {"a": expected}
    assert filtered["FailedAndUnresolvableNodes"] == {"b": expected}
    assert json.loads(render_error(sentence))["Error"] == json.loads(render_bound(sentence))["Error"] == expected
    assert "%" not in expected
    if "%" not in sentence:
        assert expected == sentence


def test_whole_nodes_keep_their_percent_signs() -> None:
    """They are returned as they came: kube-scheduler prints none of them."""
    node = a_node("n1", 16, labels={"note": "90% full"})
    asked = args(Nodes={"items": [node]}, NodeNames=None)
    assert json.loads(render_filtered(asked, ["n1"], ["n1"], {}, {}))["Nodes"]["items"] == [node]


@pytest.mark.parametrize("key", ["Pod", "pod"])
def test_pod_that_is_nested_very_deep_is_read(key: str) -> None:
    deep = {**POD, "metadata": {**POD["metadata"], "managedFields": MANAGED}}
    asked = parse_args(with_deep_fields({key: deep, "NodeNames": ["n1"]}))
    assert (asked.Pod.metadata.name, asked.NodeNames) == ("web", ["n1"])
