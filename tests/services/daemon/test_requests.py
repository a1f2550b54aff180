"""The JSON of a stranger becomes a struct, or a refusal that names the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.node import Isolation
from aliquot.model.status import requests
from aliquot.model.status.requests import PolicyRequest, StopRequest
from aliquot.services.daemon.control import RefusedError
from aliquot.services.daemon.requests import parse_request

KINDS = [kind for kind in vars(requests).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def refused(request: dict[str, Any], kind: type[msgspec.Struct]) -> tuple[Any, ...]:
    with pytest.raises(RefusedError) as error:
        parse_request(request, kind)
    return tuple(error.value.details[key] for key in ("kind", "field", "value", "allowed"))


def test_request_is_read_with_its_defaults_and_without_fields_of_other_releases() -> None:
    assert parse_request({"op": "stop", "name": "a", "new": [1]}, StopRequest) == StopRequest("a", 10.0)
    read = parse_request({"policy": "fixed-share", "release_delay": 1, "oversubscribe": 2, "card": 0}, PolicyRequest)
    assert read == PolicyRequest(Isolation.FIXED_SHARE, 1.0, 2.0, 0)
    assert parse_request({"release_delay": "auto"}, PolicyRequest).release_delay == "auto"


@pytest.mark.parametrize("timeout", [-0.1, 86400.1, True, None, "5", float("nan"), float("inf"), 10**400, [1]])
def test_number_that_is_not_allowed_is_refused_with_what_is(timeout: object) -> None:
    assert refused({"name": "a", "timeout": timeout}, StopRequest)[:2] == ("invalid", "timeout")
    assert refused({"name": "a", "timeout": timeout}, StopRequest)[3] == "0 to 24h"


def test_refusal_names_the_field_as_people_know_it() -> None:
    allowed = "auto, or 0 to 60s, for example 100ms"
    assert refused({"release_delay": 61}, PolicyRequest) == ("invalid", "release-delay", 61, allowed)
    assert refused({"policy": "fair"}, PolicyRequest) == ("invalid", "policy", "fair", ", ".join(Isolation))


@given(st.sampled_from(KINDS), st.data())
def test_any_json_is_a_request_or_refused(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    names = st.sampled_from([*kind.__struct_fields__, "op"])
    request = data.draw(st.dictionaries(names, _json))
    try:
        read: object = parse_request(request, kind)
    except RefusedError as error:
        read = error.details
    assert isinstance(read, kind) or (isinstance(read, dict) and read["kind"] == "invalid" and read["allowed"])


def test_half_a_character_is_refused_as_any_other_value() -> None:
    assert refused({"policy": "\ud800"}, PolicyRequest)[1:3] == ("policy", "\ud800")
