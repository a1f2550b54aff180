"""Fields that a Pod does not have are named, with the field that the user probably meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given

from aliquot.dialects.kube.podfields import unknown_fields, unknown_fields_of, unquoted, with_slips, wrong_metadata
from aliquot.model.refusal import Invalid
from kit.values.strategies import anything

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    ("spec", "note"),
    [
        (
            {"containers": [{"resource": {}}]},
            "spec.containers[0].resource is not a field of a container: did you mean resources?",
        ),
        (
            {"initContainers": [{"arg": []}]},
            "spec.initContainers[0].arg is not a field of a container: did you mean args?",
        ),
        ({"restartPolcy": "Never"}, "spec.restartPolcy is not a field of a Pod's spec: did you mean restartPolicy?"),
        ({"zzz": 1}, "spec.zzz is not a field of a Pod's spec: it is ignored"),
        (
            {"containers": [{"resources": {"limit": {}}}]},
            "spec.containers[0].resources.limit is not a field of resources: did you mean limits?",
        ),
    ],
)
def test_a_misspelled_field_is_named_with_the_one_that_was_meant(spec: dict[str, Any], note: str) -> None:
    assert unknown_fields(spec) == [note]


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Pod", "spec"),
        ("Deployment", "spec.template.spec"),
        ("CronJob", "spec.jobTemplate.spec.template.spec"),
    ],
)
def test_a_misspelled_field_of_a_template_is_named_by_its_path(kind: str, path: str) -> None:
    manifest: dict[str, Any] = {"containers": [{"resource": {}}]}
    for key in reversed(path.split(".")):
        manifest = {key: manifest}
    (note,) = unknown_fields_of({"kind": kind, **manifest})
    assert note == f"{path}.containers[0].resource is not a field of a container: did you mean resources?"
    assert unknown_fields_of({"kind": "Service", **manifest}) == []


@given(anything)
def test_any_json_has_fields_and_texts(value: Any) -> None:
    for kind in ("Pod", "Deployment", "CronJob"):
        unknown_fields_of({"kind": kind, "spec": value})
    unknown_fields_of(value)
    assert unknown_fields_of({"kind": []}) == []
    assert unquoted(value) is not None
    assert unquoted({"metadata": {"labels": value}}) is not None


@pytest.mark.parametrize(("value", "quoted"), [(4, ', "4"'), (True, ', "true"'), (0.5, ""), (1.1, ""), ([], "")])
@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_label_or_annotation_that_is_no_text_is_refused(part: str, value: object, quoted: str) -> None:
    (found,) = unquoted({"metadata": {part: {"example.com/x": value, "a": "4", "b": None}}})
    assert found.field == f'metadata.{part}["example.com/x"]'
    assert found.allowed == f"text: put it in quotes{quoted}"


@pytest.mark.parametrize(("name", "wrong"), [("n" * 253, False), ("n" * 254, True), ("My-Pod", True), ("a_b", True)])
def test_name_that_the_api_server_does_not_take_is_refused(name: str, wrong: bool) -> None:
    metadata: dict[str, Any] = {"name": name, "labels": {"a": 1}}
    found = [problem.field for problem in wrong_metadata({"metadata": metadata})]
    assert found == ["metadata.name"] * wrong + ['metadata.labels["a"]']
    made = {"metadata": {"name": name, "ownerReferences": [{"kind": "Deployment"}]}}
    assert wrong_metadata(made) == []


def test_field_that_is_no_text_is_named_once() -> None:
    slips = unquoted({"metadata": {"annotations": {"gpu-memory": 2000}}})
    broken = [Invalid('metadata.annotations["gpu-memory"]', 2000, "digits"), Invalid("spec", None, "a mapping")]
    assert with_slips(slips, broken) == (*slips, broken[1])


def test_misspelled_fields_are_limited_in_number() -> None:
    assert len(unknown_fields({f"x{at}": 1 for at in range(1000)})) == 10


def specs(value: Any) -> list[dict[str, Any]]:
    """Whatever has containers, however deep."""
    if isinstance(value, list):
        return [found for item in value for found in specs(item)]
    if not isinstance(value, dict):
        return []
    here = [value] if isinstance(value.get("containers"), list) else []
    return here + [found for item in value.values() for found in specs(item)]


def test_examples_have_no_misspelled_fields() -> None:
    found = [
        spec
        for path in EXAMPLES.rglob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
        for spec in specs(document)
    ]
    assert found
    assert [note for spec in found for note in unknown_fields(spec)] == []
