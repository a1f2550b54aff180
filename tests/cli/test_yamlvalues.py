"""YAML as plain values: what Kubernetes reads, whatever the spelling."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aliquot.cli.yamlvalues import Document, ValuesError, parse_yaml
from kit.values.anyjson import any_json


def read(text: str) -> Any:
    (document,) = parse_yaml(text.encode())
    return document.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-3", -3), ("0", 0), ("1_000", 1000), ("0x1F", 31), ("0b11", 3), ("017", 15), ("0o17", 15),
        ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("1.", 1.0), ("-.inf", -math.inf),
        ("true", True), ("Yes", True), ("on", True), ("OFF", False), ("no", False),
        ("~", None), ("null", None), ("", None),
        ("5Gi", "5Gi"), ("500m", "500m"), ("1:30", "1:30"), ("2026-01-01", "2026-01-01"), ("2026-01-01T00:00:00Z",) * 2,
        ("0x", "0x"), ("08", 8.0), ("1.2.3", "1.2.3"), ("oN", "oN"), ("'3'", "3"), ('"on"', "on"),
        ("!!str 3", "3"), ("!!int 3", 3), ("!!timestamp x", "x"), ("! 3", "3"),
    ],
    ids=str,
)  # fmt: skip
def test_yaml_scalars_like_kubernetes(text: str, value: object) -> None:
    found = read(f"k: {text}\n")["k"]
    assert (found, type(found)) == (value, type(value))


def test_yaml_keys_are_strings() -> None:
    assert read("{1: a, true: b, ~: c, 1.0: d}") == {"1": "a", "true": "b", "~": "c", "1.0": "d"}


def test_yaml_alias_and_merge() -> None:
    assert read("base: &b {x: 1, y: [2]}\nsame: *b\nmore: {<<: *b, x: 3}\nboth: {<<: [{x: 5}, *b]}") == {
        "base": {"x": 1, "y": [2]},
        "same": {"x": 1, "y": [2]},
        "more": {"x": 3, "y": [2]},
        "both": {"x": 5, "y": [2]},
    }


def test_yaml_anchor_is_per_document() -> None:
    with pytest.raises(ValuesError, match="unknown anchor"):
        list(parse_yaml(b"a: &x 1\n---\nb: *x\n"))


def test_yaml_positions() -> None:
    first, second = parse_yaml(b"# a comment\nkind: Pod\n---\nkind: List\nitems:\n- kind: Pod\n- {kind: Node}\n")
    assert (first.position, second.position) == ((2, 1), (4, 1))
    assert [second.position_of(item) for item in second.value["items"]] == [(6, 3), (7, 3)]
    assert second.position_of({}) == (4, 1)


def test_yaml_skips_empty_documents() -> None:
    assert [document.value for document in parse_yaml(b"---\n---\na: 1\n---\n# no more\n")] == [{"a": 1}]


# Without digits: PyYAML writes the text 0E0 without quotes, which Kubernetes reads as a number.
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Nd"]))
json_values = any_json(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | texts,
    texts,
    most=4,
    leaves=20,
)


@given(value=json_values, flow=st.booleans())
def test_yaml_round_trip(value: object, flow: bool) -> None:
    written = yaml.safe_dump({"value": value}, default_flow_style=flow)
    (document,) = parse_yaml(written.encode())
    assert document.value == {"value": value}


@given(raw=st.binary(max_size=60) | st.text("[]{}:,-?&*a1<|>!'\"#\n \t%@`", max_size=60).map(str.encode))
def test_yaml_any_bytes(raw: bytes) -> None:
    try:
        assert all(isinstance(document, Document) for document in parse_yaml(raw))
    except ValuesError as error:
        line, column = error.position
        assert 1 <= line <= raw.count(b"\n") + 1
        assert column >= 1
