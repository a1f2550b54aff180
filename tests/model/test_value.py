"""`@value` makes dataclasses: equal by their fields, hashable, to be replaced and not changed."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from aliquot.model.claim import Usage
from aliquot.model.value import value


@value
class Place:
    """A thing of two fields."""

    node: str
    card: int = 0


def test_value_is_a_dataclass_that_can_be_hashed() -> None:
    place = Place("a", 1)
    assert place == Place("a", 1) != Place("a")
    assert len({place, Place("a", 1), Place("b")}) == 2
    assert replace(place, node="b") == Place("b", 1)
    assert asdict(place) == {"node": "a", "card": 1}
    assert repr(place) == "Place(node='a', card=1)"


def test_value_has_no_other_fields() -> None:
    with pytest.raises(AttributeError):
        Usage(1).weight = 3  # type: ignore[attr-defined]
