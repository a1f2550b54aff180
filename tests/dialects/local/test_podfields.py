"""Words that are no field of a Pod are told by name, with what was probably meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.dialects.local.podfields import unknown_fields

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
