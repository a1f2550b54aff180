"""Pod templates inside other operators' objects, and how many Pods are made of one."""

from __future__ import annotations

from collections.abc import Iterator

from aliquot.dialects.kube.shapes import mapping
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.refusal import Invalid

Parts = Iterator[tuple[str, int, JsonObject]]  # name, how many, template
MOST = 150_000  # Pods, as of every workload


class WrongTemplate(Exception):
    """A shape that the operator would refuse too."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field)
        self.invalid = Invalid(field, value, allowed)


def number_of(spec: JsonView, key: str, path: str, default: int = 1, most: int = MOST) -> int:
    """How many Pods a field asks for."""
    number = spec.get(key)
    number = default if number is None else number
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
        raise WrongTemplate(f"{path}.{key}", number, f"a whole number, 0 to {most}")
    return number


def template_of(spec: JsonView, key: str, path: str) -> JsonObject:
    """The Pod template in a field."""
    template = spec.get(key)
    inner = mapping(template).get("spec")
    if (
        not isinstance(template, dict)
        or not isinstance(inner, dict)
        or not isinstance(template.get("metadata", {}), (dict, type(None)))
    ):
        raise WrongTemplate(f"{path}.{key}", template, "a Pod template with a spec")
    return template


def lower(text: object) -> str:
    """The text as a part of a Pod's name."""
    return str(text).lower()
